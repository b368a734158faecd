"""How often the verdict of `cirm evaluate` is wrong, on simulated places.

A model with a given accuracy arrives at one or more places and is then evaluated at
another one, with 1,000 rows. Between places the accuracy varies by a standard
deviation; at the last one it may have fallen by five points beyond that.

    python -m benchmarks.verdict_rates
"""

from __future__ import annotations

import argparse
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy import stats

from cirm.environments import Task
from cirm.model.comparison import compare_scores_with_past_environments
from cirm.model.estimates import collect_score_statistics

MODEL: Any = SimpleNamespace(task=Task(("no", "yes")), threshold=None)
CELLS = (
    *product((0.75, 0.85, 0.95), (0.0,), (1, 2, 3)),
    *product((0.85,), (0.01, 0.03), (1, 2, 3, 5)),
)
"""Accuracy, standard deviation between places, and number of arrivals."""
FALL = 0.05
ROWS = 1000  # of every place


def draw_place(
    rng: np.random.Generator, accuracy: float, usual: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return probabilities and targets of a place where the model has an accuracy.

    The two classes are as far apart as the accuracy demands; the model believes that
    they are as far apart as usual.
    """
    targets = rng.integers(0, 2, ROWS)
    apart, believed = (2 * stats.norm.ppf(min(a, 0.999)) for a in (accuracy, usual))
    x = rng.normal(size=ROWS) + (targets - 0.5) * apart
    p = 1 / (1 + np.exp(-believed * x))
    return torch.tensor(np.stack([1 - p, p], 1)), torch.tensor(targets)


def measure_alarm_rate(
    accuracy: float,
    arrivals: int,
    spread: float,
    fall: float,
    repeats: int,
    seed: int = 0,
) -> float:
    """Return in how many percent of the evaluations something is called worse."""
    rng = np.random.default_rng(seed)
    alarms = 0
    for _ in range(repeats):
        levels = accuracy + spread * rng.normal(size=arrivals + 1)
        past = [
            collect_score_statistics(MODEL, *draw_place(rng, level, accuracy))
            for level in levels[:-1]
        ]
        here = draw_place(rng, levels[-1] - fall, accuracy)
        alarms += any(
            one.is_worse
            for one in compare_scores_with_past_environments(MODEL, *here, past)
        )
    return 100 * alarms / repeats


def main() -> None:
    """Print a table of false alarms and missed falls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen = (arguments.repeats, arguments.seed)
    headings = ["accuracy, %", "sd between places, points", "arrivals"]
    headings += ["false alarms, %", "missed falls of 5 points, %"]
    print("|", " | ".join(headings), "|\n|--:|--:|--:|--:|--:|")
    for accuracy, spread, arrivals in CELLS:
        place = (accuracy, arrivals, spread)
        false = measure_alarm_rate(*place, 0.0, *chosen)
        missed = 100 - measure_alarm_rate(*place, FALL, *chosen)
        cells = [f"{100 * accuracy:.0f}", f"{100 * spread:.0f}", f"{arrivals}"]
        cells += [f"{false:.1f}", f"{missed:.1f}"]
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
