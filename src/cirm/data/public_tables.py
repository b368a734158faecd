"""Public tables whose environments are batches, years, sites or regions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import pandas as pd

from cirm.data.base import shorten_error_message
from cirm.data.public import (
    PublicDataset,
    list_names_sizes_and_times_of_files,
    sort_names_by_number,
)
from cirm.data.schema import TaskName
from cirm.data.user_data import Table
from cirm.environments import Problem

ENVIRONMENT = "environment (of the data set)"  # a column that no table should have
SUFFIXES = (".csv", ".csv.gz")


@dataclass(frozen=True)
class PublicTable(PublicDataset):
    """A public table with a file `environment.csv` for each environment."""

    target: ClassVar[str]
    task: ClassVar[TaskName]
    columns: ClassVar[tuple[str, ...]] = ()  # besides the target; empty for any numbers

    @classmethod
    @abstractmethod
    def split_files_into_environments(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return a table for each environment; none if there are no original files."""

    @classmethod
    def _split_file_by_column(
        cls, file: Path, column: str, pattern: str = "{}"
    ) -> dict[str, pd.DataFrame]:
        """Return the rows of each value of a column, by a name with the value in it."""
        if not file.is_file():
            return {}
        table = read_csv_table(file)
        if column not in table.columns:
            raise ValueError(
                f"{file}: there is no column {column!r}, which names the "
                f"{cls.origin.environment} of each row. {cls.origin.advice}"
            )
        return {
            pattern.format(value): rows.drop(columns=column)
            for value, rows in table.groupby(column, sort=True)
        }

    @classmethod
    def read_tables_by_environment(cls, folder: Path) -> dict[str, pd.DataFrame]:
        """Return the checked table of each environment, in order."""
        tables = cls.split_files_into_environments(folder) or {
            path.name.partition(".")[0]: read_csv_table(path)
            for path in sorted(folder.iterdir())
            if path.name.endswith(SUFFIXES)
        }
        if not tables:
            raise FileNotFoundError(
                f"{folder}: this folder contains no tables of {cls.origin.name}. "
                f"{cls.origin.advice}"
            )
        return {
            name: cls._check_columns_of_table(tables[name], f"{folder}, {name}")
            for name in sort_names_by_number(list(tables))
        }

    @classmethod
    def _check_columns_of_table(cls, table: pd.DataFrame, where: str) -> pd.DataFrame:
        """Return the columns of the data set, if the table has them all."""
        absent = [n for n in (cls.target, *cls.columns) if n not in table.columns]
        if absent:
            raise ValueError(
                f"{where}: there is no column {absent[0]!r}, so this is not a file of "
                f"{cls.origin.name}. {cls.origin.advice}"
            )
        inputs = cls.columns or table.select_dtypes("number").columns
        return table[[cls.target, *(name for name in inputs if name != cls.target)]]

    @classmethod
    def convert_original_files(cls, folder: Path, into: Path) -> dict[str, int]:
        """Check the tables of a folder and write one file for each environment."""
        tables = cls.read_tables_by_environment(folder)
        for name, table in tables.items():
            table.to_csv(into / f"{name}.csv", index=False)
        return {name: len(table) for name, table in tables.items()}

    def count_examples_by_environment(self) -> dict[str, int]:
        """Return the number of rows of each table in the folder."""
        tables = self.read_tables_by_environment(self.folder)
        return {name: len(table) for name, table in tables.items()}

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments; rows are drawn for each seed if `examples` is set.

        Columns are encoded and standardised by all rows of the first environment.
        """
        problem = _encode_public_table(
            replace(self, examples=None, fraction=1.0),
            self.folder,
            list_names_sizes_and_times_of_files(self.list_local_input_files()),
            len(seeds),
        )
        return self.draw_examples_for_each_seed(problem, seeds)

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the files of the folder; one in the cache may be imported anew."""
        return tuple(sorted(file for file in self.folder.iterdir() if file.is_file()))

    def select_large_tables(
        self, tables: dict[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Return the tables that are large enough to be an environment."""
        return tables


@lru_cache(maxsize=2)
def _encode_public_table(
    dataset: PublicTable,
    folder: Path,
    file_times_and_sizes: tuple[tuple[str, int, int], ...],
    n_replicas: int,
) -> Problem:
    """Return the encoded rows; read anew when a file of the folder has changed."""
    tables = dataset.select_large_tables(dataset.read_tables_by_environment(folder))
    train, test = dataset.split_names_into_training_and_unseen(list(tables))
    rows = pd.concat({name: tables[name] for name in (*train, *test)})
    names = pd.Series(rows.index.get_level_values(0), rows.index, name=ENVIRONMENT)
    rows = pd.concat([rows, names], axis=1).reset_index(drop=True)
    table = Table(
        target=dataset.target,
        environment=ENVIRONMENT,
        task=dataset.task,
        test=",".join(test) or "none",
    )
    return table.prepare_data(rows, n_replicas).problem


def read_csv_table(path: Path) -> pd.DataFrame:
    """Return a CSV file as a table, without a nameless column of row numbers."""
    try:
        table = pd.read_csv(path, index_col=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{path}: this CSV file cannot be read ({shorten_error_message(error)}). "
            "Use the original file of the data set."
        ) from None
    return table.loc[:, ~table.columns.str.startswith("Unnamed:")]
