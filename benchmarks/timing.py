"""Times of works that take turns, and how they compare.

A work's time is the processor time of this process, which runs on one thread: what
else the machine does matters little. Works take turns round by round, so that a slow
spell meets them all, and comparisons are made within a round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

Work = Callable[[], object]
Tell = Callable[[str], None]
"""Is told, in a few words, what is being measured."""


def interleaved(works: Mapping[str, Work], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work in each round, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            began = time.process_time()
            work()
            if number:
                times[name].append(time.process_time() - began)
    return times


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, _, high = quantiles(values, n=4, method="inclusive")
    return {"median": median(values), "low": low, "high": high}


def ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """How many times longer one takes than the other, compared within each round."""
    pairs = zip(over, under, strict=True)
    return spread([a / max(b, 1e-9) for a, b in pairs])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size that the values grow with: a slope of logarithms."""
    x = [math.log(size) for size in sizes]
    y = [math.log(max(value, 1e-12)) for value in values]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - middle_x) ** 2 for a in x)


def machine() -> dict[str, Any]:
    """What it was measured on."""
    import os
    import platform

    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
    }


def processor() -> str:
    """The processor's name, if the system tells."""
    import platform
    from pathlib import Path

    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
