"""Clinics in which a shortcut depends on the site, and models that learn quickly."""

import numpy as np
import pandas as pd
import pytest

QUICK = {"hidden": (8,), "epochs": 15, "rate": 0.02, "batch": 64}


def clinic_table(rows, agreement, seed):
    """Rows whose outcome the marker tells everywhere, and the scanner by the site."""
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, rows)
    site = np.where(rng.random(rows) < agreement, outcome, 1 - outcome)
    return pd.DataFrame(
        {
            "patient": [f"{seed}-{n:05d}" for n in range(rows)],
            "age": rng.normal(50, 10, rows).round(1),
            "marker": (rng.normal(size=rows) + 1.5 * (2 * outcome - 1)).round(4),
            "scanner": np.where(site == 1, "new", "old"),
            "visit": pd.to_datetime("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "smoker": rng.random(rows) < 0.3,
            "outcome": np.where(outcome == 1, "ill", "well"),
        }
    )


@pytest.fixture
def quick():
    return dict(QUICK)


@pytest.fixture
def clinic():
    return clinic_table


@pytest.fixture
def files(tmp_path):
    """Three clinics as CSV files; the scanner misleads in the last one."""
    for name, agreement, seed in (("a", 0.95, 0), ("b", 0.8, 1), ("c", 0.1, 2)):
        frame = clinic_table(200, agreement, seed)
        frame.to_csv(tmp_path / f"clinic-{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def values():
    """A table with a real target, in large units."""

    def made(rows, seed, scale=1.0):
        rng = np.random.default_rng(seed)
        dose = rng.normal(10, 2, rows)
        noise = rng.normal(size=rows)
        effect = 5000 + scale * (800 * (dose - 10) + 300 * noise)
        return pd.DataFrame({"dose": dose, "other": rng.normal(size=rows), "y": effect})

    return made
