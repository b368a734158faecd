"""Adapting the default learner to rows of a new place, without their targets."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.timing import (
    Report,
    compute_quartiles,
    compute_time_ratios,
    time_functions_in_turn,
)
from cirm import adapt, fit, predict

SIZES = (100, 1_000, 10_000)
PLACES = (0.95, 0.8, 0.3, 0.9)
"""How often the unstable column agrees with the class at each place of training."""


def make_place(rows: int, agreement: float, seed: int) -> pd.DataFrame:
    """Return rows of a place: 27 stable columns, one that changes, and the class."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 27))
    is_positive = rng.random(rows) < 1 / (1 + np.exp(-x[:, :6].sum(1) / 2))
    is_alike = rng.random(rows) < agreement
    table = pd.DataFrame(x, columns=[f"x{number}" for number in range(27)])
    scanner = np.where(is_alike == is_positive, "new", "old")
    return table.assign(scanner=scanner, y=np.where(is_positive, "yes", "no"))


def measure_adapting(quick: bool, rounds: int, report: Report) -> list[dict[str, Any]]:
    """Measure adapting to some rows, as a multiple of predicting them."""
    size = 200 if quick else 2_000
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        places = pd.concat(
            make_place(size, agreement, seed).assign(place=f"place {seed}")
            for seed, agreement in enumerate(PLACES)
        )
        model = fit(places, "y", environment="place", order="sequential")
        for rows in (50, 100) if quick else SIZES:
            report(f"adapt, {rows:,} rows")
            new = make_place(rows, 0.1, 9).drop(columns="y")
            works = {
                "adapt": lambda new=new: adapt(model, new),
                "predict": lambda new=new: predict(model, new),
            }
            times = time_functions_in_turn(works, rounds)
            ratio = compute_time_ratios(times["adapt"], times["predict"])
            seconds = compute_quartiles(times["adapt"])
            results.append({"rows": rows, "adapt": seconds, "ratio": ratio})
    return results
