"""Coverage of prediction sets and intervals, and the error after abstention.

Places arrive one after another, in random order. After 2, 3, 5 and 10 of them the model
is evaluated at places that it has never seen. Simulated places differ in their inputs,
base rate or level, and noise, and one column changes its meaning. Real tables are read
from a folder with one folder for each of them and one CSV file for each place.

    python -m benchmarks.coverage
    python -m benchmarks.coverage --tables FOLDER
    python -m benchmarks.coverage --tables FOLDER --in-order
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cirm import evaluate, fit, update
from cirm.data.schema import TaskName
from cirm.data.sources import DataFrameSource

STEPS = (2, 3, 5, 10)  # places learned before the model is evaluated
UNSEEN = 8  # places that it is then evaluated at, at most
ROWS = 300  # of a simulated place
MOST_ROWS = 1500  # of a real one
TARGETS = {
    "gas_turbine": "NOX",
    "brain_age": "age",
    "gusto": "day30",
    "gas_drift": "gas",
}
Places = list[DataFrameSource]


def simulate_places(kind: str, seed: int, count: int = 18) -> Places:
    """Simulate places of values, of two classes, or of classes of which one is rare."""
    draws = np.random.default_rng(seed)
    effects = draws.normal(size=4)
    return [
        DataFrameSource(_simulate_place(kind, draws, effects), f"place {number}")
        for number in range(count)
    ]


def _simulate_place(
    kind: str, draws: np.random.Generator, effects: np.ndarray
) -> pd.DataFrame:
    inputs = draws.normal(size=(ROWS, 4)) + 0.5 * draws.normal(size=4)
    level, noise = 0.5 * draws.normal(), np.exp(0.2 * draws.normal())
    table = pd.DataFrame(inputs, columns=list("abcd"))
    if kind == "values":
        bend = 0.3 * inputs[:, 0] ** 2
        target = inputs @ effects / 2 + bend + level + noise * draws.normal(size=ROWS)
        slope = draws.normal()
        habit = slope * target + draws.normal(size=ROWS)
        return table.assign(habit=habit, y=target)
    odds = inputs @ effects + level - (3.5 if kind == "rare class" else 0.0)
    ill = draws.random(ROWS) < 1 / (1 + np.exp(-odds))
    ill[:3], ill[3:6] = True, False  # so that each place has both classes
    agrees = draws.random(ROWS) < draws.uniform(0.1, 0.95)
    habit = np.where(agrees, ill, ~ill)
    return table.assign(habit=habit.astype(int), y=np.where(ill, "yes", "no"))


def read_places(folder: Path, seed: int) -> Places:
    """Read the places of a table, in random order."""
    order = np.random.default_rng(seed).permutation(sorted(folder.glob("*.csv*")))
    tables = {path.name.partition(".")[0]: pd.read_csv(path) for path in order}
    return [
        DataFrameSource(
            table.sample(min(len(table), MOST_ROWS), random_state=0), name, name
        )
        for name, table in tables.items()
    ]


def list_classes(places: Places, target: str) -> list[str]:
    """Return all classes of text targets, some of which may come later."""
    values = pd.concat([place.frame[target] for place in places])
    return [] if values.dtype.kind in "if" else sorted(values.unique())


def measure_sequence(
    places: Places, target: str, task: TaskName
) -> dict[int, dict[str, Any]]:
    """Return what is measured at unseen places after so many have been learned."""
    found = {}
    model = fit([places[0]], target, task=task, classes=list_classes(places, target))
    for count in range(2, min(max(STEPS), len(places) - 1) + 1):
        place = places[count - 1]
        model = update(model, [place], accept_units=True, fill_missing=True)
        if count in STEPS:
            rate = 0.1 if model.task.classes else None
            found[count] = evaluate(
                model, places[count : count + UNSEEN], abstain=rate, fill_missing=True
            )
    return found


def measure_table(draw: Callable[[int], Places], sequences: int, target: str) -> None:
    """Print a row for each number of places."""
    results = defaultdict(list)
    task: TaskName = "regression" if target == "age" else "auto"
    for seed in range(sequences):
        sequence = measure_sequence(draw(seed), target, task)
        for count, report in sequence.items():
            results[count].append(report)
    for count, reports in results.items():
        print(f"| {count} | {describe_reports(reports)} |", flush=True)


def describe_reports(reports: list[dict[str, Any]]) -> str:
    """Return the means over sequences as cells of a table."""
    covered = [report["coverage"] for report in reports]
    shares = [
        place["coverage"] for one in covered for place in one["environments"].values()
    ]
    kind = "size" if "size" in covered[0]["overall"] else "width"
    sizes = [one["overall"][kind] for one in covered]
    cells = [f"{np.mean(shares):.1f}", f"{np.quantile(shares, 0.1):.0f}"]
    cells.append(f"{np.median(sizes):.3g}")
    if "abstention" not in reports[0]:
        return " | ".join([*cells, "", "", ""])
    by_class = defaultdict(list)
    for one in covered:
        for name, part in one["classes"].items():
            by_class[name].append(part["coverage"])
    cells.append(f"{min(np.mean(part) for part in by_class.values()):.1f}")
    places = [
        place for one in reports for place in one["abstention"]["environments"].values()
    ]
    errors = [place["error"] for place in places if "error" in place]
    cells.append(f"{np.mean(errors):.1f}" if errors else "none answered")
    cells.append(f"{np.mean([place['answered'] for place in places]):.0f}")
    return " | ".join(cells)


def print_coverage_in_order(folder: Path, target: str) -> None:
    """Print how well each later place is covered if places arrive in their order."""
    places = sorted(read_places(folder, 0), key=lambda place: place.name)
    task: TaskName = "regression" if target == "age" else "auto"
    model = fit([places[0]], target, task=task, classes=list_classes(places, target))
    for count in range(1, len(places)):
        if count > 1:
            arrived = [places[count - 1]]
            model = update(model, arrived, accept_units=True, fill_missing=True)
        report = evaluate(model, places[count:], fill_missing=True)
        parts = report["coverage"]["environments"].values()
        cells = [f"{part['coverage']:.0f}" for part in parts]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure simulated places, or the tables of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=Path, help="folder of real tables")
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--in-order", action="store_true", help="of the file names")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| places | coverage, % | worst tenth of places | size or width | ", end="")
    print("worst class | error after --abstain 0.1 | answered, % |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    kinds = () if options.tables else ("values", "classes", "rare class")
    for kind in kinds:
        print(f"| **{kind}** |")
        measure_table(partial(simulate_places, kind), options.sequences, "y")
    for folder in sorted(options.tables.iterdir()) if options.tables else ():
        print(f"| **{folder.name}** |")
        target = TARGETS[folder.name]
        if options.in_order:
            print_coverage_in_order(folder, target)
            continue
        measure_table(partial(read_places, folder), options.sequences, target)


if __name__ == "__main__":
    main()
