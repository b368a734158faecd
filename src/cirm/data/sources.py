"""The user's data, of any kind, in portions that can be read again from the start."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data import arrays, images, supplied
from cirm.data import table_chunks as table_portions
from cirm.data.table_files import PARQUET, SEPARATORS

Data = Any
"""A path, a DataFrame, a `Source`, or several of them."""

AT_ONCE = 256  # images
FILES = (*SEPARATORS, *PARQUET, ".npz")


class Chunk(NamedTuple):
    """Some rows: columns and, where these are not the inputs, inputs [n, ...]."""

    frame: pd.DataFrame
    inputs: NDArray[np.float32] | None = None


class Source(ABC):
    """Rows from one place, read in portions.

    `name` is that of the environment if no column names it, `where` what messages
    call it; `target` and `environment` are the columns that hold them, if the source
    itself knows.
    """

    name: str
    where: str
    kind: Literal["table", "array", "images"] = "table"
    target: str = ""
    environment: str = ""

    @abstractmethod
    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """All rows in order; columns in `numbers` may be read as numbers."""


@dataclass(frozen=True)
class TableFile(Source):
    """A CSV, TSV or Parquet file."""

    path: Path

    @property
    def name(self) -> str:  # type: ignore[override]
        """The file's name without its ending."""
        return self.path.stem

    @property
    def where(self) -> str:  # type: ignore[override]
        """The file."""
        return f"file {str(self.path)!r}"

    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """Its rows, each labelled by file and row."""
        for frame in table_portions.portions(self.path, numbers):
            places: Any = [np.zeros(len(frame), np.int8), np.arange(len(frame))]
            levels: Any = [[str(self.path)], frame.index]
            index = pd.MultiIndex(levels, places, names=["file", "row"])
            yield Chunk(frame.set_axis(index, axis=0))


@dataclass(frozen=True, eq=False)
class Frame(Source):
    """A DataFrame; columns are called by their names as text."""

    frame: pd.DataFrame
    name: str = "table"
    where: str = "table"
    target: str = ""
    environment: str = ""

    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """Its rows, in portions as those of files."""
        names = [str(name) for name in self.frame.columns]
        frame = self.frame.set_axis(names, axis=1)
        if frame.empty:
            raise ValueError(f"{self.where}: there must be rows; got none")
        for start in range(0, len(frame), table_portions.ROWS):
            yield Chunk(frame.iloc[start : start + table_portions.ROWS])


@dataclass(frozen=True, eq=False)
class Array(Source):
    """Inputs [n, ...] with columns beside them, such as targets."""

    inputs: NDArray[Any]
    frame: pd.DataFrame
    name: str = "array"
    where: str = "array"
    target: str = ""
    environment: str = ""
    kind = "array"

    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """Its rows; whole numbers of one byte are divided by 255."""
        scale = 255 if self.inputs.dtype == np.uint8 else 1
        for start in range(0, len(self.inputs), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            with np.errstate(over="ignore"):  # what is infinite is refused later
                inputs = self.inputs[rows].astype(np.float32) / np.float32(scale)
            yield Chunk(self.frame.iloc[rows], inputs)


@dataclass(frozen=True)
class Pictures(Source):
    """A folder of images: environment/class/image, class/image, or images only."""

    path: Path
    shape: tuple[int, ...]
    kind = "images"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The folder's name."""
        return self.path.resolve().name

    @property
    def where(self) -> str:  # type: ignore[override]
        """The folder."""
        return f"folder {str(self.path)!r}"

    @property
    def target(self) -> str:  # type: ignore[override]
        """The column of the classes, where folders name them."""
        return "class" if self._depth > 1 else ""

    @property
    def environment(self) -> str:  # type: ignore[override]
        """The column of the environments, where folders name them."""
        return "environment" if self._depth > 2 else ""

    @property
    def _depth(self) -> int:
        return len(self._files[0].relative_to(self.path).parts)

    @cached_property
    def _files(self) -> list[Path]:
        found = sorted(
            path
            for path in self.path.rglob("*")
            if path.suffix.lower() in images.SUFFIXES and path.name[0] != "."
        )
        depths = {len(path.relative_to(self.path).parts) for path in found}
        if len(depths) != 1 or not depths <= {1, 2, 3}:
            raise ValueError(
                f"{self.where}: images must all be in folders environment/class, in "
                f"folders class, or in none; got {len(found)} images at "
                f"{len(depths)} depths"
            )
        return found

    def portions(self, numbers: Collection[str] = ()) -> Iterator[Chunk]:
        """Its images as numbers from 0 to 1, [n, channels, side, side]."""
        files = self._files
        names = ["environment", "class", "image"][-self._depth :]
        for start in range(0, len(files), AT_ONCE):
            chosen = files[start : start + AT_ONCE]
            pixels = [images.decoded(p, self.shape[1], self.shape[0]) for p in chosen]
            parts = [path.relative_to(self.path).parts for path in chosen]
            frame = pd.DataFrame(parts, columns=names)
            frame["image"] = [str(Path(*part)) for part in parts]
            yield Chunk(frame, np.stack(pixels).astype(np.float32) / np.float32(255))


def open_sources(data: Data, shape: tuple[int, ...] = (3, 32, 32)) -> list[Source]:
    """What the user gives as sources; images are brought to `shape`."""
    if isinstance(data, Source):
        return [data]
    if isinstance(data, pd.DataFrame):
        return [Frame(data)]
    if isinstance(data, str | Path):
        return [_of_path(Path(data), shape)]
    if isinstance(data, Sequence) and data:
        found = [source for item in data for source in open_sources(item, shape)]
        if len({source.name for source in found}) < len(found):
            names = ", ".join(repr(source.name) for source in found)
            raise ValueError(
                f"data: files must have different names, which name their "
                f"environments; got {names}"
            )
        return found
    raise ValueError(
        "data: it must be a file, a folder of images, a DataFrame, or several; "
        f"got {type(data).__name__}"
    )


def _of_path(path: Path, shape: tuple[int, ...]) -> Source:
    if not path.exists():
        raise FileNotFoundError(f"data: the file must exist; got {str(path)!r}")
    if path.is_dir():
        return Pictures(path, shape)
    if path.suffix.lower() == ".npz":
        return _of_archive(path)
    if path.suffix.lower() not in FILES:
        raise ValueError(
            f"file {str(path)!r}: its name must end in {', '.join(FILES)}; "
            f"got {path.suffix!r}"
        )
    return TableFile(path)


def _of_archive(path: Path) -> Source:
    """The arrays of an NPZ file; inputs [n, d] are the columns of a table."""
    where = f"file {str(path)!r}"
    choices = [
        ("", arrays.INPUTS, True),
        ("", arrays.TARGETS, False),
        ("", arrays.ENVIRONMENTS, False),
    ]
    inputs, *beside = arrays.npz(path, choices, 4.0, where)
    assert inputs is not None
    if inputs.dtype.kind not in "biuf" or inputs.ndim < 2 or not len(inputs):
        raise ValueError(
            f"{where}: inputs must be numbers [n, ...] of one or more examples; "
            f"got {inputs.dtype} {list(inputs.shape)}"
        )
    columns: dict[str, Any] = {}
    for name, values in zip(("target", "environment"), beside, strict=True):
        if values is not None:
            if values.shape not in ((len(inputs),), (len(inputs), 1)):
                raise ValueError(
                    f"{where}: its {name} array must be [{len(inputs)}], one for each "
                    f"example; got {list(values.shape)}"
                )
            text = name == "environment" or values.dtype.kind == "S"
            columns[name] = supplied.texts(values) if text else values
            columns[name] = columns[name].reshape(-1)
    named = {
        name: name if name in columns else "" for name in ("target", "environment")
    }
    if inputs.ndim == 2:
        width = len(str(inputs.shape[1] - 1))
        names = [f"{place:0{width}d}" for place in range(inputs.shape[1])]
        frame = pd.DataFrame(inputs, columns=names).assign(**columns)
        return Frame(frame, path.stem, where, **named)
    beside_inputs = pd.DataFrame(columns, index=pd.RangeIndex(len(inputs)))
    return Array(inputs, beside_inputs, path.stem, where, **named)
