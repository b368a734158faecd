"""Files that hold a table: CSV, TSV and Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from cirm.data.cells import Values

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
PARQUET = (".parquet", ".pq")


def read(path: Path) -> pd.DataFrame:
    """A file's table, rows counted from 1; the cells of text files are text."""
    suffix, where = path.suffix.lower(), f"file {str(path)!r}"
    if suffix in PARQUET:
        frame = _parquet(path, where)
    elif suffix in SEPARATORS:
        frame = _text(path, SEPARATORS[suffix], where)
    else:
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise ValueError(f"{where}: its name must end in {known}; got {suffix!r}")
    if frame.empty:
        raise ValueError(f"{where}: there must be rows below the header; got none")
    return frame.set_axis(pd.RangeIndex(1, len(frame) + 1), axis=0)


def check_same(
    path: Path, frame: pd.DataFrame, first: Path, wanted: pd.DataFrame
) -> None:
    """Refuse a file whose columns are not those of the first."""
    lacking = [repr(name) for name in wanted.columns if name not in frame.columns]
    more = [repr(name) for name in frame.columns if name not in wanted.columns]
    if lacking or more:
        got = [f"none called {', '.join(lacking)}"] if lacking else []
        got += [f"also {', '.join(more)}"] if more else []
        raise ValueError(
            f"file {str(path)!r}: its columns must be those of {str(first)!r}; "
            f"got {' and '.join(got)}"
        )


def _text(path: Path, separator: str, where: str) -> pd.DataFrame:
    # The header is read as a row: pandas would rename columns that are there twice.
    with reading(where):
        cells = pd.read_csv(
            path, header=None, dtype=str, na_filter=False, **ways(separator)
        )
    names = header(cells.iloc[0], separator, where)
    frame = cells.iloc[1:].set_axis(names, axis=1)
    if "" in names:
        frame = without_counter(frame, names, where)
    return frame


def ways(separator: str) -> dict[str, Any]:
    """How text files are read, all of them."""
    return {"sep": separator, "encoding": "utf-8-sig", "skipinitialspace": True}


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Say in one sentence why a text file cannot be read."""
    try:
        yield
    except pd.errors.EmptyDataError:
        raise ValueError(f"{where}: it must have a header; got an empty file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{where}: it must be UTF-8 text; got other bytes") from None
    except pd.errors.ParserWarning:
        raise ValueError(
            f"{where}: rows must be as the header; got more cells in the first row"
        ) from None
    except (ValueError, OverflowError) as error:
        said = str(error).rpartition("C error: ")[2].splitlines()[0]
        raise ValueError(f"{where}: rows must be as the header; got {said}") from None


def header(cells: Values, separator: str, where: str) -> list[str]:
    """The names of the columns, out of a file's first row."""
    names = [str(name).strip() for name in cells]
    if len(names) == 1 and any(sign in names[0] for sign in ",;\t"):
        raise ValueError(
            f"{where}: columns must be separated by {separator!r}; got {names[0]!r}"
        )
    return names


def without_counter(
    frame: pd.DataFrame, names: list[str], where: str, start: int = 0
) -> pd.DataFrame:
    """The table without the nameless row numbers that pandas and R write."""
    first = frame.iloc[:, 0]
    counters = [[str(n + s + start) for n in range(len(frame))] for s in (0, 1)]
    if names[0] or first.tolist() not in counters or "" in names[1:]:
        raise ValueError(
            f"{where}: every column must have a name; got none for column "
            f"{names.index('') + 1}"
        )
    return frame.iloc[:, 1:]


def _parquet(path: Path, where: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError:
        raise ValueError(
            f"{where}: Parquet needs the extra cirm[parquet] to be installed; got none"
        ) from None
    except (ValueError, OSError) as error:
        said = (str(error).splitlines() or ["an error"])[0]
        raise ValueError(f"{where}: it must be a Parquet file; got {said}") from None
