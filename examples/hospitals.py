"""Hospitals in sequence from CSV files: what is learned at two, used at a third.

python examples/hospitals.py
"""

import tempfile
from pathlib import Path

from clinics import HABIT, clinic

from cirm import evaluate, fit, predict, update

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for place in HABIT:
        clinic(place, rows=600).to_csv(folder / f"{place}.csv", index=False)

    model = fit(folder / "clinic-a.csv", "outcome")
    (folder / "clinic-a.csv").unlink()  # its data are gone
    model = update(model, folder / "clinic-b.csv")

    for entry in model.history:
        print(
            f"{entry.name}: {entry.metrics_after['accuracy']:.1f} % of the held-out "
            "rows are classified correctly"
        )
    print(predict(model, folder / "clinic-c.csv").head(3).to_string(index=False))
    print(evaluate(model, folder / "clinic-c.csv")["verdict"])
