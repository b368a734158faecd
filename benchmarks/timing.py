"""Timing functions that take turns, and comparing their times.

A time is the processor time of this process, which runs on one thread, so that other
processes matter little. The functions take turns in rounds and are compared within a
round, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

Work = Callable[[], object]
Report = Callable[[str], None]
"""Takes a few words that say what is being measured."""


def time_functions_in_turn(
    works: Mapping[str, Work], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each function in each round, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            began = time.process_time()
            work()
            if number:
                times[name].append(time.process_time() - began)
    return times


def compute_quartiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles."""
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, _, high = quantiles(values, n=4, method="inclusive")
    return {"median": median(values), "low": low, "high": high}


def compute_time_ratios(
    over: Sequence[float], under: Sequence[float]
) -> dict[str, float]:
    """Return quartiles of the ratio of two times, taken within each round."""
    pairs = zip(over, under, strict=True)
    return compute_quartiles([a / max(b, 1e-9) for a, b in pairs])


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent of a power law, fitted as the slope of the logarithms."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(value, 1e-12)) for value in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - middle_x) ** 2 for a in x)


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the versions used."""
    import os
    import platform

    import torch

    return {
        "processor": get_processor_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
    }


def get_processor_name() -> str:
    """Return the name of the processor, if the system reports one."""
    import platform
    from pathlib import Path

    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
