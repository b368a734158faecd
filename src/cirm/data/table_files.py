"""CSV, TSV and Parquet files, read in chunks so that memory stays bounded."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cirm.data.base import shorten_error_message
from cirm.data.sources import (
    CHUNK_ROWS,
    DataSource,
    SourceRowChunk,
    TableHeaderAndFirstCells,
)
from cirm.data.values import MISSING

TEXT_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
QUOTED = re.compile('"[^"]*"?')
PARQUET = (".parquet", ".pq")
SMALL_CELLS = 500_000  # a table of so many is kept in memory between two passes
PACKED_STARTS = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
PACKED_REMEDY = (
    "the file is compressed. Unpack it first, or send it to standard input, as in "
    "`gunzip -c FILE | cirm fit -`. If it is a spreadsheet, save it as CSV."
)
HEAD_BYTES = 2**16  # of a text file, by which its rows are counted roughly
WIDE = 500  # columns; of so many blocks, choosing columns would take long

NA_VALUES = sorted({*MISSING, *map(str.upper, MISSING), "NaN", "NaT", "Null", "Na"})


class TableFileSource(DataSource):
    """A CSV, TSV or Parquet file."""

    path: Path

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or path.stem
        self.where = f"file {str(path)!r}"
        self._small: tuple[frozenset[str], pd.DataFrame] | None = None

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        """About how many rows the file has; 0 if that cannot be told."""
        return estimate_row_count(self.path)

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the rows, each labelled by file and row.

        A small table is kept for the next pass, as `fit` makes two: to parse thousands
        of columns takes longer than to learn from a few rows of them.
        """
        wanted = frozenset(numeric_columns)
        if self._small and self._small[0] == wanted:
            yield SourceRowChunk(self._small[1])
            return
        chunks = 0
        for frame in read_table_file_in_chunks(self.path, numeric_columns):
            chunks += 1
            yield SourceRowChunk(frame)
        if chunks == 1 and frame.size <= SMALL_CELLS:
            self._small = wanted, frame

    def read_first_cells(
        self, max_rows: int, max_cells: int
    ) -> TableHeaderAndFirstCells:
        """Return the first rows, up to a number of cells."""
        first = _read_first_cells_of_file(self.path, max_rows, max_cells)
        return super().read_first_cells(max_rows, max_cells) if first is None else first


def read_table_file_in_chunks(
    path: Path, numeric_columns: Collection[str] = (), rows_per_chunk: int = 0
) -> Iterator[pd.DataFrame]:
    """Yield a file's rows in chunks, labelled by the file and the row from 1.

    Cells of text files are text. Columns in `numeric_columns` are read as numbers,
    which is several times faster; if one of them holds anything else, the rows from
    that chunk on are text.
    """
    suffix, where = path.suffix.lower(), f"file {str(path)!r}"
    rows_per_chunk = rows_per_chunk or CHUNK_ROWS
    if suffix in PARQUET:
        chunks = _read_parquet_file_in_chunks(path, where, rows_per_chunk)
    elif suffix in TEXT_SEPARATORS:
        chunks = _read_text_file_in_chunks(
            lambda: path,
            TEXT_SEPARATORS[suffix],
            where,
            numeric_columns,
            rows_per_chunk,
        )
    else:
        raise ValueError(
            f"{where}: a table cannot be read from a file that ends in {suffix!r}. "
            f"Use one of {', '.join([*TEXT_SEPARATORS, *PARQUET])}."
        )
    yield from _add_row_labels_to_chunks(chunks, path, where)


def estimate_row_count(path: Path) -> int:
    """Return about how many rows a file has, by its first lines; 0 if unknown."""
    if not path.is_file() or path.suffix.lower() not in TEXT_SEPARATORS:
        return 0
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    lines = head.count(b"\n")
    return round(path.stat().st_size * lines / len(head)) if lines else 0


def read_csv_in_chunks(
    open_file: Callable[[], Any], where: str, numeric_columns: Collection[str] = ()
) -> Iterator[pd.DataFrame]:
    """Yield rows of CSV from a function that opens it anew, like a file's rows."""
    chunks = _read_text_file_in_chunks(
        open_file, ",", where, numeric_columns, CHUNK_ROWS
    )
    return _add_row_labels_to_chunks(chunks, where, where)


def _add_row_labels_to_chunks(
    chunks: Iterator[pd.DataFrame], path: Path | str, where: str
) -> Iterator[pd.DataFrame]:
    """Yield chunks whose rows are labelled by a file and the row from 1."""
    count = 0
    for frame in chunks:
        if not frame.empty:
            if len(frame.columns) > WIDE:
                frame = frame.copy()  # in one block, of which columns are soon chosen
            yield frame.set_axis(
                label_rows_by_file_and_number(path, len(frame), count), axis=0
            )
            count += len(frame)
    if not count:
        raise ValueError(
            f"{where}: there are no rows below the header. Add at least one row."
        )


def label_rows_by_file_and_number(
    path: Path | str, n_rows: int, first_number: int = 0
) -> pd.MultiIndex:
    """Return an index of file and row, by which messages name a row."""
    places: Any = [np.zeros(n_rows, np.int8), np.arange(n_rows)]
    levels: Any = [[str(path)], range(first_number + 1, first_number + n_rows + 1)]
    return pd.MultiIndex(levels, places, names=["file", "row"])


def _read_text_file_in_chunks(
    open_file: Callable[[], Any],
    separator: str,
    where: str,
    numeric_columns: Collection[str],
    rows_per_chunk: int,
) -> Iterator[pd.DataFrame]:
    separator = _detect_separator_of_file(open_file(), separator)
    options: Any = {"sep": separator, "encoding": "utf-8-sig", "skipinitialspace": True}
    with _explain_errors_of_reading_text_file(where):
        names = _read_column_names_from_header(open_file(), options)
    if len(names) == 1 and any(sign in names[0] for sign in ",;\t|"):
        raise ValueError(
            f"{where}: the header {names[0]!r} is read as a single column. Separate "
            f"the columns with {separator!r}."
        )
    wanted = set(numeric_columns)
    numeric = [position for position, name in enumerate(names) if name in wanted]
    count = 0
    try:
        for frame in _parse_numbers_in_text_chunks(
            open_file(), where, len(names), numeric, rows_per_chunk, options
        ):
            yield _set_column_names_of_chunk(frame, names, where, count)
            count += len(frame)
        return
    except NotNumericColumnError:
        skip = count
    for frame in _parse_numbers_in_text_chunks(
        open_file(), where, len(names), [], rows_per_chunk, options
    ):
        rest = frame.iloc[skip:]
        skip = max(0, skip - len(frame))
        if len(rest):
            yield _set_column_names_of_chunk(rest, names, where, count)
            count += len(rest)


def detect_separator(header: str, usual: str) -> str:
    """Return the separator of a header: in CSV a comma, semicolon or tab.

    Where decimals have a comma, spreadsheets write CSV with semicolons.
    """
    if usual != ",":
        return usual
    unquoted = QUOTED.sub("", header)
    return max(usual, ";", "\t", key=unquoted.count)


def _detect_separator_of_file(file: Any, usual: str) -> str:  # noqa: ANN401
    """Return the separator of a path or an open file, by its first line with text."""
    if isinstance(file, Path):
        with file.open("rb") as opened:
            return _detect_separator_of_file(opened, usual)
    header = next((line for line in file if line.strip()), b"")
    return detect_separator(header.decode(errors="replace"), usual)


def _read_column_names_from_header(file: Any, options: dict[str, Any]) -> list[str]:  # noqa: ANN401
    """Return the names in the header of a path or an open file."""
    if isinstance(file, Path):
        status = file.stat()
        changes = (status.st_mtime_ns, status.st_size)
        return list(_read_column_names_of_file(file, changes, **options))
    # The header is read as a row: pandas would rename columns that occur twice.
    first = pd.read_csv(
        file, header=None, dtype=str, na_filter=False, nrows=1, **options
    )
    return [str(name).strip() for name in first.iloc[0]]


@lru_cache(maxsize=16)
def _read_column_names_of_file(
    path: Path,
    time_and_size: tuple[int, int],
    **options: Any,  # noqa: ANN401
) -> tuple[str, ...]:
    """Return the names in a header; thousands take half a second, for every pass."""
    with path.open("rb") as file:
        return tuple(_read_column_names_from_header(file, options))


def _read_first_cells_of_file(
    path: Path, max_rows: int, max_cells: int
) -> TableHeaderAndFirstCells | None:
    """Return the first rows of a text file, up to a number of cells.

    None if it is no text file, or if it is not so regular that Python's own reader,
    which is many times faster for a few rows of many columns, can be relied on.
    """
    separator = TEXT_SEPARATORS.get(path.suffix.lower())
    if separator is None:
        return None
    try:
        separator = _detect_separator_of_file(path, separator)
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, skipinitialspace=True)
            names = next(reader, [])
            max_rows = min(max_rows, max(1, max_cells // max(1, len(names))))
            lines = list(islice(reader, max_rows))
    except (csv.Error, ValueError):
        return None
    if not lines or {len(line) for line in lines} != {len(names)}:
        return None
    cells = np.array(lines, dtype=object).reshape(len(lines), len(names))
    return TableHeaderAndFirstCells([name.strip() for name in names], cells)


class NotNumericColumnError(Exception):
    """A column that was to be read as numbers holds something else."""


def _parse_numbers_in_text_chunks(
    file: Any,  # noqa: ANN401  a path or an open file
    where: str,
    n_columns: int,
    numeric_indices: list[int],
    rows_per_chunk: int,
    options: dict[str, Any],
) -> Iterator[pd.DataFrame]:
    """Yield chunks of text in which the columns at `numeric_indices` are numbers."""
    missing: Any = dict.fromkeys(numeric_indices, NA_VALUES)
    dtypes: Any = dict.fromkeys(range(n_columns), str) | dict.fromkeys(
        numeric_indices, float
    )
    with _explain_errors_of_reading_text_file(where), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        with pd.read_csv(
            file,
            header=0,
            names=list(range(n_columns)),
            index_col=False,
            dtype=dtypes,
            keep_default_na=False,
            na_values=missing,
            na_filter=bool(numeric_indices),
            chunksize=rows_per_chunk,
            **options,
        ) as reader:
            while True:
                try:
                    frame = next(reader, None)
                except (UnicodeDecodeError, pd.errors.ParserError):
                    raise
                except ValueError:
                    if numeric_indices:
                        raise NotNumericColumnError from None
                    raise
                if frame is None:
                    return
                yield frame


@contextmanager
def _explain_errors_of_reading_text_file(where: str) -> Iterator[None]:
    """Say in one sentence why a text file cannot be read."""
    try:
        yield
    except pd.errors.EmptyDataError:
        raise ValueError(
            f"{where}: the file is empty. Its first line must name the columns."
        ) from None
    except UnicodeDecodeError as error:
        if bytes(error.object).startswith(PACKED_STARTS):
            raise ValueError(f"{where}: {PACKED_REMEDY}") from None
        raise ValueError(
            f"{where}: the file is not text in the encoding UTF-8. Save it as CSV "
            "with the encoding UTF-8."
        ) from None
    except pd.errors.ParserWarning:
        raise ValueError(
            f"{where}: the first row has more cells than the header has names. Name "
            "every column in the header."
        ) from None
    except (ValueError, OverflowError) as error:
        reason = shorten_error_message(error).rpartition("C error: ")[2]
        raise ValueError(
            f"{where}: a row does not match the header ({reason}). Correct the file: "
            "every row must have as many cells as the header has names, and every "
            "quote must be closed."
        ) from None


def _set_column_names_of_chunk(
    frame: pd.DataFrame, names: list[str], where: str, first_row: int
) -> pd.DataFrame:
    """Set the columns' names; nameless row numbers, as of pandas and R, are dropped."""
    frame = frame.set_axis(names, axis=1)
    if "" not in names:
        return frame
    counters = [[str(n + s + first_row) for n in range(len(frame))] for s in (0, 1)]
    if names[0] or frame.iloc[:, 0].tolist() not in counters or "" in names[1:]:
        raise ValueError(
            f"{where}: column {names.index('') + 1} has no name. Give every column a "
            "name in the header."
        )
    return frame.iloc[:, 1:]


def _read_parquet_file_in_chunks(
    path: Path, where: str, rows_per_chunk: int
) -> Iterator[pd.DataFrame]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ValueError(
            f"{where}: reading Parquet files needs the package pyarrow. Install it "
            'with `pip install "cirm[parquet]"`.'
        ) from None
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(rows_per_chunk):
                batch.validate(full=True)  # damaged text would fail later
                frame = batch.to_pandas()
                yield frame.set_axis([str(name) for name in frame.columns], axis=1)
    except (ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where}: this is not a readable Parquet file "
            f"({shorten_error_message(error)}). Save the table again, for example with "
            "DataFrame.to_parquet of pandas."
        ) from None
