"""Files that hold a table: CSV, TSV and Parquet."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

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
    try:
        # The header is read as a row: pandas would rename columns that are there twice.
        cells = pd.read_csv(
            path,
            sep=separator,
            header=None,
            dtype=str,
            na_filter=False,
            encoding="utf-8-sig",
            skipinitialspace=True,
        )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{where}: it must have a header; got an empty file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{where}: it must be UTF-8 text; got other bytes") from None
    except (ValueError, OverflowError) as error:
        said = str(error).rpartition("C error: ")[2].splitlines()[0]
        raise ValueError(f"{where}: rows must be as the header; got {said}") from None
    header = [str(name).strip() for name in cells.iloc[0]]
    if len(header) == 1 and any(sign in header[0] for sign in ",;\t"):
        raise ValueError(
            f"{where}: columns must be separated by {separator!r}; got {header[0]!r}"
        )
    frame = cells.iloc[1:].set_axis(header, axis=1)
    if "" in header:
        frame = _without_counter(frame, header, where)
    return frame


def _without_counter(
    frame: pd.DataFrame, header: list[str], where: str
) -> pd.DataFrame:
    """The table without the nameless row numbers that pandas and R write."""
    first = frame.iloc[:, 0]
    counters = [[str(n + start) for n in range(len(frame))] for start in (0, 1)]
    if header[0] or first.tolist() not in counters or "" in header[1:]:
        raise ValueError(
            f"{where}: every column must have a name; got none for column "
            f"{header.index('') + 1}"
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
