"""Brain age: the age of people from images of their brains, taken at many sites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirm.data.public import PublicDatasetOrigin
from cirm.data.public_tables import PublicTable


@dataclass(frozen=True)
class BrainAge(PublicTable):
    """The age of healthy people, from the thickness and volume of parts of the brain.

    1000 Functional Connectomes Project, as prepared for the PCNtoolkit. An environment
    is a site, with its scanner and its range of ages. As in the examples of that
    toolkit, the site ICBM is unseen unless `test` names another.

    Args:
        path: A folder with fcon1000.csv, which has a column site, or with one CSV file
            for each site; empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out.
        test: The environments to hold out, separated by commas; empty for ICBM.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
        fewest: Sites with fewer people are left out.
    """

    target = "age"
    task = "regression"
    held_out = "ICBM"
    origin = PublicDatasetOrigin(
        "brain-age",
        authors="1000 Functional Connectomes Project",
        licence="open, for research",
        environment="site",
        rows={
            "AnnArbor_a": 24, "AnnArbor_b": 32, "Atlanta": 28, "Baltimore": 23,
            "Bangor": 20, "Beijing_Zang": 198, "Berlin_Margulies": 26,
            "Cambridge_Buckner": 198, "Cleveland": 31, "ICBM": 85, "Leiden_2180": 12,
            "Leiden_2200": 19, "Milwaukee_b": 46, "Munchen": 15, "NewYork_a": 83,
            "NewYork_a_ADHD": 25, "Newark": 19, "Oulu": 102, "Oxford": 22,
            "PaloAlto": 17, "Pittsburgh": 3, "Queensland": 19, "SaintLouis": 31,
        },
        advice=(
            "Download data/fcon1000.csv from the GitHub repository "
            "predictive-clinical-neuroscience/PCNtoolkit-demo into a folder. Then "
            "run `cirm data import brain-age FOLDER` with that folder."
        ),
        address=(
            "https://raw.githubusercontent.com/predictive-clinical-neuroscience/"
            "PCNtoolkit-demo/main/data/fcon1000.csv"
        ),
    )  # fmt: skip

    fewest: int = 20

    @classmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return the rows of each site of fcon1000.csv."""
        tables = cls._split_file_by_column(folder / "fcon1000.csv", "site")
        return {
            name: table.drop(columns="sitenum", errors="ignore")
            for name, table in tables.items()
        }

    def select_large_tables(
        self, tables: dict[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Return the tables of sites with enough people."""
        return {name: t for name, t in tables.items() if len(t) >= self.fewest}
