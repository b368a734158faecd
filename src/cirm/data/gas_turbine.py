"""Emissions of a gas turbine, year by year."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cirm.data.public import PublicDatasetOrigin
from cirm.data.public_tables import PublicTable, read_csv_table


@dataclass(frozen=True)
class GasTurbine(PublicTable):
    """Nitrogen oxides from a gas turbine, hour by hour over five years.

    Heysem Kaya et al., "Predicting CO and NOx emissions from gas turbines", 2019. The
    target is NOX; the other emission, CO, is left out. An environment is a year, 2011
    to 2015; the last one is unseen.

    Args:
        path: A folder with the files gt_2011.csv and so on, or 2011.csv and so on;
            empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out.
        test: The environments to hold out, separated by commas; empty for the last.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
    """

    target = "NOX"
    task = "regression"
    columns = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP")
    origin = PublicDatasetOrigin(
        "gas-turbine",
        authors="Kaya and others 2019",
        licence="CC BY 4.0",
        environment="year",
        rows={"2011": 7411, "2012": 7628, "2013": 7152, "2014": 7158, "2015": 7384},
        advice=(
            "Download the Gas Turbine CO and NOx Emission data set (number 551) from "
            "https://archive.ics.uci.edu/dataset/551 and unpack gt_2011.csv to "
            "gt_2015.csv into a folder. Then run `cirm data import gas-turbine "
            "FOLDER` with that folder."
        ),
        address=(
            "https://archive.ics.uci.edu/static/public/551/"
            "gas+turbine+co+and+nox+emission+data+set.zip"
        ),
        members=tuple(f"gt_{year}.csv" for year in range(2011, 2016)),
    )

    @classmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return the table of each file such as gt_2011.csv."""
        return {
            path.stem.removeprefix("gt_"): read_csv_table(path)
            for path in folder.glob("gt_*.csv")
        }
