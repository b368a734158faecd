"""Confidence intervals (95 %) of proportions, areas and errors."""

from __future__ import annotations

import math

QUANTILE = 1.959964  # of the normal distribution, for 95 %


def compute_wilson_interval(count: float, n_rows: float) -> tuple[float, float]:
    """Return the interval of a proportion, count of rows (Wilson 1927)."""
    if n_rows <= 0:
        return 0.0, 1.0
    rate, extra = count / n_rows, QUANTILE**2 / n_rows
    middle = (rate + extra / 2) / (1 + extra)
    half = QUANTILE * math.sqrt(rate * (1 - rate) / n_rows + extra / n_rows / 4)
    half /= 1 + extra
    return max(middle - half, 0.0), min(middle + half, 1.0)


def compute_interval_on_logit_scale(
    value: float, variance: float
) -> tuple[float, float]:
    """Return the interval of an area between 0 and 1, on the scale of logits."""
    value = min(max(value, 1e-6), 1 - 1e-6)
    centre = math.log(value / (1 - value))
    # By the delta method; the cap keeps the ends within reach of `exp`.
    half = min(QUANTILE * math.sqrt(variance) / (value * (1 - value)), 50.0)
    low, high = (1 / (1 + math.exp(-(centre + sign * half))) for sign in (-1, 1))
    return low, high


def compute_rmse_interval(error: float, n_rows: float) -> tuple[float, float]:
    """Return the interval of a root mean squared error of normal residuals."""
    factor = math.exp(QUANTILE * math.sqrt(0.5 / n_rows))
    return error / factor, error * factor
