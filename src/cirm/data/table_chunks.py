"""Files that hold a table, read in portions: memory does not grow with the file."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from cirm.data.cells import MISSING
from cirm.data.table_files import (
    PARQUET,
    SEPARATORS,
    header,
    reading,
    ways,
    without_counter,
)

ROWS = 50_000  # read at once
GAPS = sorted({*MISSING, *map(str.upper, MISSING), "NaN", "NaT", "Null", "Na"})


def portions(
    path: Path, numbers: Collection[str] = (), rows: int = ROWS
) -> Iterator[pd.DataFrame]:
    """A file's table in portions of at most so many rows, counted from 1.

    Columns named in `numbers` are read as numbers, which is several times faster;
    where one holds anything else, it and the others are text from there on.
    """
    suffix, where = path.suffix.lower(), f"file {str(path)!r}"
    if suffix in PARQUET:
        found = _parquet_portions(path, where, rows)
    elif suffix in SEPARATORS:
        found = _text_portions(path, SEPARATORS[suffix], where, numbers, rows)
    else:
        known = ", ".join([*SEPARATORS, *PARQUET])
        raise ValueError(f"{where}: its name must end in {known}; got {suffix!r}")
    done = 0
    for frame in found:
        if frame.empty:
            continue
        index = pd.RangeIndex(done + 1, done + len(frame) + 1)
        done += len(frame)
        yield frame.set_axis(index, axis=0)
    if not done:
        raise ValueError(f"{where}: there must be rows below the header; got none")


def _text_portions(
    path: Path, separator: str, where: str, numbers: Collection[str], rows: int
) -> Iterator[pd.DataFrame]:
    with reading(where):
        first = pd.read_csv(
            path, header=None, dtype=str, na_filter=False, nrows=1, **ways(separator)
        )
    names = header(first.iloc[0], separator, where)
    typed = [place for place, name in enumerate(names) if name in numbers]
    done = 0
    for frame in _typed(path, separator, where, len(names), typed, rows):
        if frame is None:  # something in a column of numbers is none
            break
        start, done = done, done + len(frame)
        yield _named(frame, names, where, start)
    else:
        return
    left = done
    for frame in _typed(path, separator, where, len(names), [], rows):
        assert frame is not None
        passed, left = min(left, len(frame)), left - min(left, len(frame))
        if passed < len(frame):
            rest = frame.iloc[passed:]
            start, done = done, done + len(rest)
            yield _named(rest, names, where, start)


def _typed(
    path: Path, separator: str, where: str, width: int, typed: list[int], rows: int
) -> Iterator[pd.DataFrame | None]:
    """Portions of text, in which some columns are numbers; None where one is not."""
    gaps: Any = {place: GAPS for place in typed}
    kinds: Any = {n: float if n in typed else str for n in range(width)}
    with reading(where), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        with pd.read_csv(
            path,
            header=0,
            names=list(range(width)),
            index_col=False,
            dtype=kinds,
            keep_default_na=False,
            na_values=gaps,
            na_filter=bool(typed),
            chunksize=rows,
            **ways(separator),
        ) as found:
            while True:
                try:
                    frame = next(found, None)
                except UnicodeDecodeError:
                    raise
                except ValueError as error:
                    if not typed or isinstance(error, pd.errors.ParserError):
                        raise
                    yield None
                    return
                if frame is None:
                    return
                yield frame


def _named(
    frame: pd.DataFrame, names: list[str], where: str, start: int
) -> pd.DataFrame:
    frame = frame.set_axis(names, axis=1)
    return without_counter(frame, names, where, start) if "" in names else frame


def _parquet_portions(path: Path, where: str, rows: int) -> Iterator[pd.DataFrame]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise ValueError(
            f"{where}: Parquet needs the extra cirm[parquet] to be installed; got none"
        ) from None
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(rows):
                frame = batch.to_pandas()
                yield frame.set_axis([str(name) for name in frame.columns], axis=1)
    except (ArrowException, OSError) as error:
        said = (str(error).splitlines() or ["an error"])[0]
        raise ValueError(f"{where}: it must be a Parquet file; got {said}") from None
