"""Gas sensors that drift: batches of measurements over three years."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from cirm.data.public import PublicDatasetOrigin
from cirm.data.public_tables import PublicTable

GASES = ("ethanol", "ethylene", "ammonia", "acetaldehyde", "acetone", "toluene")
SENSORS = tuple(f"s{number}" for number in range(1, 129))


@dataclass(frozen=True)
class GasDrift(PublicTable):
    """Six gases, told apart by 16 sensors that drift over 36 months.

    Alexander Vergara et al., "Chemical gas sensor drift compensation using classifier
    ensembles", 2012. Each sensor gives eight features. An environment is a batch of
    measurements, batch1 to batch10 in order of time; the last one is unseen.

    Args:
        path: A folder with the files batch1.dat and so on, or batch1.csv and so on;
            empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out.
        test: The environments to hold out, separated by commas; empty for the last.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
    """

    target = "gas"
    task = "classification"
    columns = SENSORS
    origin = PublicDatasetOrigin(
        "gas-drift",
        authors="Vergara and others 2012",
        licence="CC BY 4.0, for research",
        environment="batch of measurements, in order of time",
        rows=dict(
            zip(
                (f"batch{number}" for number in range(1, 11)),
                (445, 1244, 1586, 161, 197, 2300, 3613, 294, 470, 3600),
                strict=True,
            )
        ),
        advice=(
            "Download the Gas Sensor Array Drift data set (number 224) from "
            "https://archive.ics.uci.edu/dataset/224 and unpack batch1.dat to "
            "batch10.dat into a folder. Then run `cirm data import gas-drift FOLDER` "
            "with that folder."
        ),
        address=(
            "https://archive.ics.uci.edu/static/public/224/"
            "gas+sensor+array+drift+dataset.zip"
        ),
        members=tuple(f"batch{number}.dat" for number in range(1, 11)),
    )

    @classmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return the table of each file such as batch1.dat."""
        return {
            path.stem: read_gas_sensor_file(path) for path in folder.glob("batch*.dat")
        }

    @classmethod
    def _check_columns_of_table(cls, table: pd.DataFrame, where: str) -> pd.DataFrame:
        table = super()._check_columns_of_table(table, where)
        names = dict(zip((f"gas{n}" for n in range(1, 7)), GASES, strict=True))
        table = table.assign(gas=table["gas"].replace(names))
        if wrong := sorted(set(table["gas"]) - set(GASES)):
            raise ValueError(
                f"{where}: {wrong[0]!r} is not one of the gases {', '.join(GASES)}. "
                "Use the original file of the data set."
            )
        return table


def read_gas_sensor_file(path: Path) -> pd.DataFrame:
    """Return a batch of gas-drift: lines such as `1 1:15596.16 2:1.868 ... 128:0.5`.

    The later edition of the data set has the concentration after the class, as in
    `1;10.0 1:15596.16`; it is left out.
    """
    gases, rows = [], []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        first, *cells = line.split()
        try:
            gases.append(GASES[int(first.partition(";")[0]) - 1])
            rows.append([float(cell.partition(":")[2]) for cell in cells])
        except (ValueError, IndexError):
            rows.append([])
        if len(rows[-1]) != len(SENSORS):
            raise ValueError(
                f"{path}, line {number}: the line begins with {first!r} and has "
                f"{len(cells)} features, but a line must have a class from 1 to "
                f"{len(GASES)}, followed by {len(SENSORS)} numbered features. Use the "
                "original file of the data set."
            )
    table = pd.DataFrame(np.array(rows), columns=list(SENSORS))
    table.insert(0, "gas", gases)
    return table
