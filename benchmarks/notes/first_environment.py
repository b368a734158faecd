"""Compare test accuracies after the first environment with those after the last.

From the records of table 2 and of its rows on parts, without any training, beside the
paper's numbers and with their verdicts:

    PYTHONPATH=src:. python -m benchmarks.notes.first_environment docs/results
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cirm.paper import get_paper_experiment
from cirm.paper.experiment import PublishedValue
from cirm.paper.verdicts import compare_with_published_value
from cirm.records import ScoreRecord
from cirm.report.summary import average_values_over_seeds
from cirm.runs.archive import load_job_archive

SEEDS = range(5)


def format_scores(scores: Sequence[ScoreRecord], paper: PublishedValue) -> str:
    """Return mean, standard deviation and verdict of test accuracies."""
    mean, std, seeds = average_values_over_seeds(scores)
    if mean is None:
        return "not measured"
    verdict = compare_with_published_value(
        mean, std, paper._asdict(), "accuracy", "test"
    )
    spread = "one seed" if std is None else f"± {std:.1f}, {seeds} seeds"
    return f"{mean:.1f} ({spread}), {verdict}"


def print_accuracies_by_stage(results: Path) -> None:
    """Print a line of a Markdown table for each number of the paper."""
    print("| row | learner | paper | after the first | after the last |")
    print("|---|---|--:|--:|--:|")
    for name in ("table2", "parts"):
        archive = load_job_archive(results / name)
        for row in get_paper_experiment(name).rows:
            papers = {cell.learner: cell.paper for cell in row.cells if cell.paper}
            for trial in row.trials:
                scores = [
                    record
                    for record in archive.list_records(trial.identity, SEEDS)
                    if isinstance(record, ScoreRecord)
                    and (record.split, record.metric) == ("test", "accuracy")
                ]
                paper = papers.get(trial.label)
                if not paper or not scores:
                    continue
                last = max(score.stage for score in scores)
                first, final = (
                    format_scores([s for s in scores if s.stage == stage], paper)
                    for stage in (0, last)
                )
                line = (row.name, trial.label, str(paper.mean), first, final)
                print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    print_accuracies_by_stage(Path(sys.argv[1]))
