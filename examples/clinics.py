"""Make three clinics whose scanner tells the outcome by a habit of the place.

Two laboratory values tell the outcome everywhere, about as well in each clinic. Clinics
a and b scan most of the patients they believe to be ill with the portable scanner;
clinic c, the one that is never learned from, does the opposite. A model that trusts
the scanner does very well at a and b, and harm at c.

    python examples/clinics.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HABIT = {"clinic-a": 0.9, "clinic-b": 0.8, "clinic-c": 0.1}


def clinic(name: str, rows: int = 2000) -> pd.DataFrame:
    """The patients of one clinic; the same at every call."""
    rng = np.random.default_rng(sorted(HABIT).index(name))
    ill = rng.integers(0, 2, rows)
    follows = rng.random(rows) < HABIT[name]
    portable = np.where(follows, ill, 1 - ill)
    sign = 2 * ill - 1
    return pd.DataFrame(
        {
            "patient": [f"{name[-1].upper()}{number:05d}" for number in range(rows)],
            "age": rng.normal(58, 14, rows).round().clip(18, 97),
            "sex": rng.choice(["female", "male"], rows),
            "crp": np.exp(rng.normal(2.2 + 0.45 * sign, 0.9, rows)).round(1),
            "lactate": (rng.normal(1.8 + 0.25 * sign, 0.5, rows)).round(2),
            "scanner": np.where(portable == 1, "portable", "fixed"),
            "outcome": np.where(ill == 1, "ill", "well"),
        }
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name in HABIT:
        path = folder / f"{name}.csv"
        clinic(name).to_csv(path, index=False)
        print(f"Wrote {path}")
