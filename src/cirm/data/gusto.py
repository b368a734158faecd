"""GUSTO-I: death after a myocardial infarction, by region."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirm.data.public import PublicDatasetOrigin
from cirm.data.public_tables import PublicTable

ROWS = (
    *(2188, 2952, 2030, 2876, 1909, 1585, 3150, 2916, 3123, 1717, 2491, 4352, 2297),
    *(3437, 2576, 1231),
)
"""Patients of each region."""


@dataclass(frozen=True)
class Gusto(PublicTable):
    """Death within 30 days after a myocardial infarction, for patients of 16 regions.

    The GUSTO-I trial, 1993, as in the R package predtools. The target is day30, which
    is 1 for 7 % of the patients. An environment is a region; the last one is unseen.
    The order of patients by risk carries over between regions, but the level of risk
    does not.

    Args:
        path: A folder with gusto.csv, which has a column regl, or with one CSV file
            for each region; empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out.
        test: The environments to hold out, separated by commas; empty for the last.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
    """

    target = "day30"
    task = "classification"
    columns = (
        *("sho", "hig", "dia", "hyp", "hrt", "ttr", "sex", "Killip", "age", "ste"),
        *("pulse", "sysbp", "ant", "miloc", "height", "weight", "pmi", "htn", "smk"),
        *("pan", "fam", "prevcvd", "prevcabg", "tpa", "tx"),
    )
    origin = PublicDatasetOrigin(
        "gusto",
        authors="GUSTO investigators 1993",
        licence="GPL (R package predtools)",
        environment="region",
        rows=dict(
            zip(
                (f"region{number:02d}" for number in range(1, 17)),
                ROWS,
                strict=True,
            )
        ),
        advice=(
            "Install the R package predtools and run write.csv(predtools::gusto, "
            '"gusto.csv") in R, in an empty folder. Then run `cirm data import gusto '
            "FOLDER` with that folder."
        ),
    )

    @classmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return the rows of each region of gusto.csv."""
        file = folder / "gusto.csv"
        return cls._split_file_by_column(file, "regl", "region{:02d}")
