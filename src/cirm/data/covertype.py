"""Covertype: the kind of forest, from maps of four wilderness areas.

Jock Blackard and Denis Dean, "Comparative accuracies of artificial neural networks and
discriminant analysis in predicting forest cover types from cartographic variables",
1999. scikit-learn downloads it.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cirm.data.base import shorten_error_message
from cirm.data.public import (
    PublicDataset,
    PublicDatasetOrigin,
    list_names_sizes_and_times_of_files,
)
from cirm.environments import Environment, Problem, Task

AREAS = ("rawah", "neota", "comanche", "cache-la-poudre")
COVERS = (
    "spruce",
    "lodgepole",
    "ponderosa",
    "cottonwood",
    "aspen",
    "douglas",
    "krummholz",
)
NUMBERS = 10  # elevation, aspect, slope, distances and hill shade come first
COLUMNS = 55  # these, then the area (4), the soil (40) and the class


@dataclass(frozen=True)
class Covertype(PublicDataset):
    """The kind of forest on pieces of land, in four wilderness areas.

    581,012 pieces of 30 by 30 metres in Colorado, with 10 measurements and 40 kinds of
    soil, and seven kinds of forest. An environment is an area; the last one, lower and
    with other trees, is unseen unless `test` names another. Which kinds occur differs
    between the areas. Measurements are standardised by the first environment.

    Args:
        path: A folder with covtype.data or covtype.data.gz; empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out, in the order rawah, neota, comanche, cache-la-poudre.
        test: The environments to hold out, separated by commas; empty for the last.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.
        test_examples: About how many rows of an unseen environment are used, evenly
            spaced; None for all.
    """

    origin = PublicDatasetOrigin(
        "covertype",
        authors="Blackard and Dean 1999",
        licence="CC BY 4.0",
        environment="wilderness area",
        rows=dict(zip(AREAS, (260796, 29884, 253364, 36968), strict=True)),
        advice=(
            "Download the Covertype data set (number 31) from "
            "https://archive.ics.uci.edu/dataset/31 and put covtype.data.gz into a "
            "folder. Then run `cirm data import covertype FOLDER` with that folder."
        ),
        address="scikit-learn",
    )

    examples: int | None = 1000
    test_examples: int | None = 10000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_examples is not None and self.test_examples < 1:
            self._raise_invalid_setting_error("test_examples", "Use 1 or more")

    @classmethod
    def convert_original_files(cls, folder: Path, into: Path) -> dict[str, int]:
        """Write an array file for each area."""
        areas = split_rows_by_wilderness_area(read_covertype_rows(folder), str(folder))
        for name, rows in areas.items():
            np.save(into / f"{name}.npy", rows, allow_pickle=False)
        return {name: len(rows) for name, rows in areas.items()}

    def count_examples_by_environment(self) -> dict[str, int]:
        """Return the number of rows of each area in the folder."""
        return {name: len(rows) for name, rows in self._load_areas().items()}

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return rows [n, 50] of each area."""
        areas = self._load_areas()
        train, test = self.split_names_into_training_and_unseen(list(areas))
        first = areas[train[0]][:, :NUMBERS]
        centre, scale = first.mean(0), first.std(0) + 1e-9

        def build_environment_of_area(name: str, rows: NDArray[Any]) -> Environment:
            numbers = (rows[:, :NUMBERS] - centre) / scale
            inputs = np.concatenate([numbers, rows[:, NUMBERS:-1]], 1)
            return Environment(
                name,
                torch.from_numpy(inputs.astype(np.float32)),
                torch.from_numpy(rows[:, -1].astype(np.int64)),
                Task(COVERS),
            )

        problem = Problem(
            train=tuple(build_environment_of_area(name, areas[name]) for name in train),
            test=tuple(
                build_environment_of_area(
                    name, self._thin_rows_to_test_examples(areas[name])
                )
                for name in test
            ),
        )
        return self.draw_examples_for_each_seed(problem, seeds)

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the files of the folder."""
        return tuple(sorted(file for file in self.folder.iterdir() if file.is_file()))

    def _load_areas(self) -> dict[str, NDArray[Any]]:
        """Return the rows of each area, read anew when a file has changed."""
        return _load_rows_of_wilderness_areas(
            self.folder,
            list_names_sizes_and_times_of_files(self.list_local_input_files()),
        )

    def _thin_rows_to_test_examples(self, rows: NDArray[Any]) -> NDArray[Any]:
        step = 1
        if self.test_examples is not None:
            step = max(1, len(rows) // self.test_examples)
        return rows[::step]


def split_rows_by_wilderness_area(
    rows: NDArray[Any], where: str
) -> dict[str, NDArray[np.float32]]:
    """Return rows [n, 51] of each area: measurements, soil, class from 0."""
    area, soil = rows[:, NUMBERS : NUMBERS + 4], rows[:, NUMBERS + 4 : -1]
    classes = rows[:, -1:] - 1
    is_valid = (area.sum(1) == 1) & (soil.sum(1) == 1)
    is_valid &= np.isin(classes[:, 0], range(len(COVERS)))
    if not is_valid.all():
        bad = int(np.argmin(is_valid))
        raise ValueError(
            f"{where}: row {bad + 1} has {area[bad].sum():g} wilderness areas, "
            f"{soil[bad].sum():g} soil types and the class {rows[bad, -1]:g}, but "
            f"must have one area, one soil type and a class from 1 to {len(COVERS)}. "
            "Use the original file of Covertype."
        )
    whole = np.concatenate([rows[:, :NUMBERS], soil, classes], 1).astype(np.float32)
    index = area.argmax(1)
    return {
        name: whole[index == number]
        for number, name in enumerate(AREAS)
        if (index == number).any()
    }


def read_covertype_rows(folder: Path) -> NDArray[np.float32]:
    """Return the rows [n, 55] of covtype.data or covtype.data.gz."""
    names = ("covtype.data", "covtype.data.gz")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise FileNotFoundError(
            f"{folder}: the folder contains neither {' nor '.join(names)}. "
            f"{Covertype.origin.advice}"
        )
    import pandas as pd

    try:
        rows = pd.read_csv(file, header=None, dtype=np.float32).to_numpy()
    except (ValueError, OSError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{file}: this is not a table of numbers ({shorten_error_message(error)}). "
            "Use the original file of Covertype."
        ) from None
    if rows.shape[1] != COLUMNS:
        raise ValueError(
            f"{file}: the table has {rows.shape[1]} columns, but the table of "
            f"Covertype has {COLUMNS}. Use the original file of Covertype."
        )
    return rows


@lru_cache(maxsize=1)
def _load_rows_of_wilderness_areas(
    folder: Path, file_times_and_sizes: tuple[tuple[str, int, int], ...]
) -> dict[str, NDArray[np.float32]]:
    """Return the rows of each area; read anew when a file has changed."""
    found = [name for name in AREAS if (folder / f"{name}.npy").is_file()]
    if not found:
        return split_rows_by_wilderness_area(read_covertype_rows(folder), str(folder))
    return {name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in found}
