"""How often `cirm compare` raises a false alarm, and how often it sees a change.

Two tables with ten columns are drawn again and again: equal in distribution, or with
one change. A part of the report counts if it is significant.

    python -m benchmarks.comparison
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from cirm import compare

SIZES = (100, 300, 1000)  # rows of each table
CHANGES: dict[str, dict[str, float]] = {
    "nothing": {},
    "an input by 0.3 standard deviations": {"shift": 0.3},
    "the base rate from 35 % to 25 %": {"rate": 0.25},
    "a column from 90 % to 75 % agreement": {"habit": 0.75},
    "a column from 90 % to 20 % agreement": {"habit": 0.2},
}


def draw_table(
    draws: np.random.Generator,
    rows: int,
    shift: float = 0.0,
    rate: float = 0.35,
    habit: float = 0.9,
) -> pd.DataFrame:
    """Draw a table: the outcome depends on six numbers, a category and a habit."""
    ill = draws.random(rows) < rate
    numbers = draws.normal(size=(rows, 6))
    numbers[:, :3] += 0.5 * ill[:, None]
    numbers[:, 5] = np.exp(numbers[:, 5])  # with outliers
    table = pd.DataFrame(numbers, columns=[f"x{n}" for n in range(6)])
    table["x0"] += shift
    follows = draws.random(rows) < habit
    gaps = draws.random(rows) < 0.1
    return table.assign(
        x4=table["x4"].mask(gaps),
        sex=draws.choice(["female", "male"], rows),
        ward=draws.choice(list("abcde"), rows, p=[0.4, 0.3, 0.15, 0.1, 0.05]),
        smoker=draws.random(rows) < 0.3,
        scanner=np.where(np.where(follows, ill, ~ill), "portable", "fixed"),
        outcome=np.where(ill, "ill", "well"),
    )


def list_findings(report: Mapping[str, Any]) -> list[bool]:
    """Return whether inputs, base rate and meaning are called changed, or anything."""
    joint = report["joint"]
    parts = [
        any(one["significant"] for one in report["inputs"])
        or bool(joint and joint["significant"]),
        bool(report["base_rate"]["significant"]),
        bool(report["meaning"]["columns"]),
    ]
    return [*parts, any(parts)]


def main() -> None:
    """Print how many percent of the comparisons find something."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=300, help="of equal tables; of others a quarter"
    )
    parser.add_argument("--rows", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| what changed | rows of each | inputs | base rate | meaning | anything |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, change in CHANGES.items():
        for rows in options.rows:
            found = []
            pairs = options.pairs // 4 if change else options.pairs
            for seed in range(pairs):
                draws = np.random.default_rng((rows, seed))
                tables = draw_table(draws, rows), draw_table(draws, rows, **change)
                found.append(list_findings(compare(*tables, target="outcome")))
            cells = [f"{100 * share:.1f}" for share in np.mean(found, axis=0)]
            print(f"| {name} | {rows:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
