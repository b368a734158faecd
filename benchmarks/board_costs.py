"""What the board costs, from the recorded seconds of its jobs.

`python -m benchmarks.board_costs` reads `docs/results/board` and prints for each data
set the core-minutes of a cell: 4 trials and 5 runs with the chosen settings, for three
orders on PACS. The runs with the oracle's settings are not counted. A cell that has not
been run counts in relation to that of `erm`, as in the quick form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from cirm.board.columns import LeaderboardDataset, list_leaderboard_datasets
from cirm.board.plan import FULL, QUICK
from cirm.board.rows import OURS, SLOW, list_leaderboard_learners
from cirm.runs.archive import load_job_archive
from cirm.runs.search import format_setting_value

FOLDER, QUICK_FOLDER = Path("docs/results/board"), Path("docs/results/board-quick")
REGRESSIONS = ("brain-age", "gas-turbine", "regression")
PLAIN = "erm"
Minutes = dict[tuple[str, str], float]


def collect_minutes_of_cells(
    folder: Path, columns: Sequence[LeaderboardDataset], n_trials: int
) -> Minutes:
    """Return the core-minutes of a cell by data set and learner, where it has run."""
    trials: dict[tuple[str, str], list[float]] = defaultdict(list)
    runs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in load_job_archive(folder).entries.values():
        setup = entry["setup"]
        if column := find_column_of_job(setup["dataset"], columns):
            is_trial = setup["selection"] == "a trial of a search"
            found = (trials if is_trial else runs)[column.name, entry["by"]]
            found.append(entry["seconds"] / 60 / len(entry["seeds"]))
    orders = {column.name: len(column.variants) for column in columns}
    return {
        cell: orders[cell[0]]
        * (n_trials * fmean(own) + len(FULL.seeds) * fmean(runs[cell]))
        for cell, own in trials.items()
        if cell in runs
    }


def find_column_of_job(
    data: Mapping[str, object], columns: Sequence[LeaderboardDataset]
) -> LeaderboardDataset | None:
    """Return the data set of the board that a job's data belong to."""
    known = {name: format_setting_value(value) for name, value in data.items()}
    known = {"scheme": "b01", **known}  # the default
    for column in columns:
        for variant in column.variants:
            wanted = {"name": column.dataset, "scheme": "b01", **variant.data}
            wanted.pop("sweep", None)
            if wanted.items() <= known.items():
                return column
    return None


def average_minutes_relative_to_plain_training(minutes: Minutes) -> dict[str, float]:
    """Return by learner how much longer its cells take than those of `erm`."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for (column, learner), own in minutes.items():
        if (column, PLAIN) in minutes:
            ratios[learner].append(own / minutes[column, PLAIN])
    return {learner: fmean(own) for learner, own in ratios.items()}


def describe_costs_of_column(
    column: LeaderboardDataset, minutes: Minutes, ratios: Mapping[str, float]
) -> tuple[str, float, float]:
    """Return a line on a data set, the core-minutes of all cells and of slow ones."""
    task = "regression" if column.name in REGRESSIONS else "classification"
    rows = [row for row in list_leaderboard_learners() if task in row.tasks]
    if column.dataset != "colored":
        rows = [row for row in rows if not row.has_true_groups]
    if (column.name, PLAIN) not in minutes:
        return f"{column.title}: {PLAIN} has not run", 0.0, 0.0
    plain = minutes[column.name, PLAIN]
    known = {
        row.name: minutes.get(
            (column.name, row.learner), plain * ratios.get(row.learner, 1.0)
        )
        for row in rows
    }
    slow = [known[row.name] for row in rows if row.learner in SLOW]
    others = [known[row.name] for row in rows if row.learner not in (*SLOW, OURS)]
    measured = {row.learner for row in rows if (column.name, row.learner) in minutes}
    total = sum(known.values())
    line = (
        f"{column.title}: {OURS} {known[OURS]:.2f}, {PLAIN} {plain:.2f}, others "
        f"{median(others):.2f} (up to {max(others):.1f}), variational "
        f"{fmean(slow):.1f}; all {len(rows)} rows {total:.0f} ({len(measured)} "
        "learners measured)"
    )
    return line, total, sum(slow)


def main() -> None:
    """Print a line for each data set, and the sum."""
    columns = list_leaderboard_datasets()
    minutes = collect_minutes_of_cells(FOLDER, columns, FULL.trials)
    quick_columns = list_leaderboard_datasets(quick=True)
    quick = collect_minutes_of_cells(QUICK_FOLDER, quick_columns, QUICK.trials)
    ratios = average_minutes_relative_to_plain_training(quick)
    costs = [describe_costs_of_column(column, minutes, ratios) for column in columns]
    lines, totals, slow = zip(*costs, strict=True)
    print("\n".join(lines))
    print(
        f"All data sets: {sum(totals):.0f} core-minutes, of which variational learners "
        f"take {sum(slow):.0f}"
    )


if __name__ == "__main__":
    main()
