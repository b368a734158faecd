"""Make the files that stand for this version of the format, with what they predict.

Run once for each version that is released: python tests/model/files/make.py
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from cirm import fit, predict, save, update
from cirm.model.container import VERSION

HERE = Path(__file__).parent


def table(rows: int, seed: int) -> pd.DataFrame:
    """Numbers, a category with gaps, a date and a boolean."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    days = pd.to_timedelta(rng.integers(0, 99, rows), "D")
    return pd.DataFrame(
        {
            "id": [f"row {seed} {n}" for n in range(rows)],
            "number": (rng.normal(size=rows) + 2 * y).round(3),
            "category": rng.choice(["a", "b", ""], rows),
            "date": (pd.Timestamp("2024-01-01") + days).strftime("%Y-%m-%d"),
            "flag": rng.choice(["true", "false"], rows),
            "y": y,
        }
    )


if __name__ == "__main__":
    settings = {"hidden": (4,), "epochs": 20, "rate": 0.05}
    for learner in ("virmv1", "steady"):
        model = fit(table(100, 0), "y", learner=learner, settings=settings)
        model = update(model, table(80, 1))
        name = f"version-{VERSION}-{learner}"
        save(model, HERE / f"{name}.cirm")
        rows = table(12, 2).drop(columns="y")
        frame = predict(model, rows)
        stored = {
            "rows": rows.to_dict("list"),
            "prediction": frame["prediction"].tolist(),
            "probability": frame["probability"].tolist(),
        }
        (HERE / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n")
