"""The results of the stress map: jobs to run, and what their records say by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cirm.records import AdaptedScoreRecord, Record, ScoreRecord
from cirm.report.summary import average_values_over_seeds
from cirm.runs.archive import FinishedJobArchive, load_job_archive, unpack_job_records
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import list_unfinished_jobs
from cirm.stress.cells import BASELINE, StressTestCell
from cirm.stress.limits import compute_bayes_optimal_score

MAX_GAP = 4.0  # points below the oracle that count as withstanding the shortcut
MAX_GAP_IF_RARE = 8.0  # where only a few per cent of the labels contradict it
MAX_GAP_OF_ANY_SEED = 10.0  # points below the oracle that no seed may have
MAX_ADAPTATION_LOSS = 1.0  # points that adapting to any number of rows may cost
RARE_CONTRADICTION_RATE = (
    0.05  # share of contradictions below which there are few of them
)


@dataclass(frozen=True)
class StressTestPlan:
    """The cells of a stress map and their jobs.

    Attributes:
        learner: Key of the learner that is tested.
        seeds: The seeds.
        cells: The cells, each with its jobs by role.
    """

    learner: str
    seeds: tuple[int, ...]
    cells: Sequence[tuple[StressTestCell, Mapping[str, list[TrainingJob]]]]

    @classmethod
    def from_cells(
        cls, cells: Sequence[StressTestCell], learner: str, seeds: Sequence[int]
    ) -> StressTestPlan:
        """Plan the jobs of all cells."""
        planned = [(cell, cell.plan_jobs_by_role(learner, seeds)) for cell in cells]
        return cls(learner, tuple(seeds), planned)

    @property
    def jobs(self) -> list[TrainingJob]:
        """All jobs, each once: cells share some."""
        jobs = [job for _, roles in self.cells for own in roles.values() for job in own]
        return list({job.key: job for job in jobs}.values())

    def list_jobs_without_results(self, folder: Path) -> list[TrainingJob]:
        """List the jobs without results in this folder."""
        entries = load_job_archive(folder).entries
        return list_unfinished_jobs(
            [j for j in self.jobs if j.key not in entries], folder
        )


def summarise_stress_test_cells(
    plan: StressTestPlan, archive: FinishedJobArchive
) -> list[dict[str, Any]]:
    """Return the scores of each cell that has results, as plain values.

    Scores are accuracies in percent; in a regression, the share of the target's
    variance at the first place that is explained, in percent.
    """
    return [
        summary
        for cell, roles in plan.cells
        if (summary := _summarise_stress_test_cell(cell, roles, archive)) is not None
    ]


def _summarise_stress_test_cell(
    cell: StressTestCell,
    roles: Mapping[str, list[TrainingJob]],
    archive: FinishedJobArchive,
) -> dict[str, Any] | None:
    records = {
        role: [
            record
            for job in jobs
            if job.key in archive.entries
            for record in unpack_job_records(archive.entries[job.key])
        ]
        for role, jobs in roles.items()
    }
    unseen, oracle, plain = (
        _select_unseen_scores(records[role]) for role in ("learner", "oracle", BASELINE)
    )
    if not unseen or not oracle:
        return None
    adapted: dict[str, list[AdaptedScoreRecord]] = {}
    for record in records["learner"]:
        if isinstance(record, AdaptedScoreRecord) and record.split == "test":
            adapted.setdefault(record.rows, []).append(record)
    gaps = _compute_score_difference_by_seed(unseen, oracle)
    gains = {
        rows: fmean(differences)
        for rows, own in adapted.items()
        if (differences := _compute_score_difference_by_seed(own, unseen))
    }
    flips = cell.data.get("flips") or (1.0,)
    allowed = MAX_GAP_IF_RARE if max(flips) <= RARE_CONTRADICTION_RATE else MAX_GAP
    is_close = fmean(gaps) >= -allowed and min(gaps) >= -MAX_GAP_OF_ANY_SEED
    return {
        "kind": cell.kind.name,
        "title": cell.kind.title,
        "factor": cell.condition.factor,
        "value": cell.condition.value,
        "metric": unseen[0].metric,
        "unseen": _average_scores_over_seeds(unseen),
        "adapted": {
            rows: _average_scores_over_seeds(own) for rows, own in adapted.items()
        },
        "oracle": _average_scores_over_seeds(oracle),
        "erm": _average_scores_over_seeds(plain),
        "limit": compute_bayes_optimal_score(cell),
        "gap": fmean(gaps),
        "worst_gap": min(gaps),
        "tolerance": allowed,
        "gain": gains.get("all"),
        "worst_gain": min(gains.values(), default=None),
        "withstands": is_close
        and min(gains.values(), default=0.0) >= -MAX_ADAPTATION_LOSS,
    }


def _select_unseen_scores(records: Sequence[Record]) -> list[ScoreRecord]:
    """Return the scores in the unseen environment after the last stage."""
    scores = [r for r in records if isinstance(r, ScoreRecord) and r.split == "test"]
    last = max((score.stage for score in scores), default=0)
    return [score for score in scores if score.stage == last]


def _average_scores_over_seeds(
    scores: Sequence[ScoreRecord | AdaptedScoreRecord],
) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, errors as explained variance."""
    statistic = average_values_over_seeds(scores)._asdict()
    if scores and scores[0].metric == "error" and statistic["mean"] is not None:
        statistic["mean"] = 100 * (1 - statistic["mean"])
        if statistic["std"] is not None:
            statistic["std"] *= 100
    return statistic


def _compute_score_difference_by_seed(
    scores: Sequence[ScoreRecord | AdaptedScoreRecord], others: Sequence[ScoreRecord]
) -> list[float]:
    """Return the difference of each seed, such that more is better."""
    base = {score.seed: score.value for score in others}
    sign = -100 if others and others[0].metric == "error" else 1
    return [sign * (s.value - base[s.seed]) for s in scores if s.seed in base]
