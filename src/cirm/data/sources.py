"""The user's data, of any kind, in chunks that can be read again from the start."""

from __future__ import annotations

import hashlib
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    from cirm.data.encoders import EncoderIdentity

Data = Any
"""A path, a DataFrame (pandas, polars, pyarrow), a `DataSource`, a list of them, or a
dictionary from the names of environments to them."""

Progress = Callable[[str, float], None]
"""Is called with what is being done and how far it is: a fraction, or a count."""

CHUNK_ROWS = 50_000  # rows read at once: some ten megabytes of text
NEARLY_DONE = 0.99  # of a step: the most that an estimated number of rows can tell
IMAGES_AT_ONCE = 256  # in a chunk: a megabyte of small images, 40 of large ones
CHANNELS = (1, 3, 4)  # of images: grey, coloured, and coloured with transparency


def ignore_progress_message(what: str, fraction: float) -> None:
    """Do nothing with a progress message."""


class SourceRowChunk(NamedTuple):
    """Some rows: columns and, unless these are the inputs, inputs [n, ...].

    Inputs are float32, or bytes (uint8) that stand for numbers from 0 to 1.
    """

    frame: pd.DataFrame
    inputs: NDArray[Any] | None = None


def report_progress_of_reading_rows(
    progress: Progress, what: str, sources: Sequence[DataSource], n_done: int
) -> None:
    """Report the fraction of the rows that is done, or else their number."""
    counts = [source.count for source in sources]
    if all(counts):
        progress(what, min(n_done / sum(counts), NEARLY_DONE))
    elif n_done:
        progress(what, n_done)


class TableHeaderAndFirstCells(NamedTuple):
    """The names of the columns of a table, and its first cells [n, columns]."""

    names: list[str]
    cells: NDArray[np.object_]


class DataSource(ABC):
    """Rows that are read in chunks.

    Attributes:
        name: The environment, if no column names it.
        where: What messages call the source.
        kind: Whether the inputs are columns of a table, arrays or images.
        shape: The shape of one row's inputs; empty for tables.
        has_bytes: Whether inputs are bytes that stand for numbers from 0 to 1.
        target: The column of the targets, if the source itself knows.
        environment: The column of the environments, if the source itself knows.
        path: The file or folder that the rows are read from, if there is one.
        weight: The column of the weights of rows, if the source itself knows.
        encoder: What makes features of the images, if anything does.
        count: The number of rows, or about that, if it is known before they are read.
        periods: The environments in order of time, if they are periods.
    """

    name: str
    where: str
    kind: Literal["table", "array", "images"] = "table"
    shape: tuple[int, ...] = ()
    has_bytes: bool = False
    target: str = ""
    environment: str = ""
    path: Path | None = None
    weight: str = ""
    encoder: EncoderIdentity | None = None
    count: int = 0
    periods: tuple[str, ...] = ()

    @property
    def is_one_chunk(self) -> bool:
        """Whether all rows are in memory already, as a single chunk."""
        return False

    @abstractmethod
    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield all rows in order; `numeric_columns` may be read as numbers."""

    def iterate_frames(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[pd.DataFrame]:
        """Yield the columns of all rows in order, without arrays or images."""
        return (chunk.frame for chunk in self.iterate_chunks(numeric_columns))

    def read_first_cells(
        self, max_rows: int, max_cells: int
    ) -> TableHeaderAndFirstCells:
        """Return the first rows, up to a number of cells."""
        head = next(self.iterate_frames())
        head = head.iloc[: min(max_rows, max(1, max_cells // max(1, head.shape[1])))]
        names = [str(name) for name in head.columns]
        return TableHeaderAndFirstCells(names, head.to_numpy(dtype=object))

    def hash_files(self) -> dict[str, str]:
        """Return the SHA-256 of the file or folder by its name; {} if there is none."""
        if self.path is None:
            return {}
        return {self.path.resolve().name: hash_file_or_folder(self.path)}


class DataFrameSource(DataSource):
    """A DataFrame, whose columns are called by their names as text."""

    def __init__(
        self,
        frame: pd.DataFrame,
        name: str = "table",
        where: str = "table",
        target: str = "",
        environment: str = "",
        weight: str = "",
    ) -> None:
        self.frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
        self.count = len(frame)
        self.name, self.where = name, where
        self.target, self.environment, self.weight = target, environment, weight

    @property
    def is_one_chunk(self) -> bool:
        """Whether the rows are a single chunk."""
        return self.count <= CHUNK_ROWS

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the rows in chunks as large as those of files."""
        if self.frame.empty:
            raise ValueError(
                f"{self.where}: the data have no rows. Give at least one row."
            )
        for start in range(0, len(self.frame), CHUNK_ROWS):
            yield SourceRowChunk(self.frame.iloc[start : start + CHUNK_ROWS])


def move_image_channels_first(inputs: NDArray[Any]) -> NDArray[Any]:
    """Return images as [n, channel, height, width]; other inputs as they are.

    Images are [n, height, width, channel], or bytes [n, height, width].
    """
    axes = inputs.shape[1:]
    if len(axes) == 3 and axes[-1] in CHANNELS and axes[0] not in CHANNELS:
        return np.moveaxis(inputs, -1, 1)
    if len(axes) == 2 and inputs.dtype == np.uint8:
        return inputs[:, None]
    return inputs


class ArraySource(DataSource):
    """Inputs [n, ...] with columns beside them, such as targets.

    Images get their channels first.
    """

    kind = "array"

    def __init__(
        self,
        inputs: NDArray[Any],
        frame: pd.DataFrame,
        name: str = "array",
        where: str = "array",
        target: str = "",
        environment: str = "",
        weight: str = "",
    ) -> None:
        inputs = move_image_channels_first(inputs)
        self.inputs, self.frame, self.name, self.where = inputs, frame, name, where
        self.shape, self.has_bytes = inputs.shape[1:], inputs.dtype == np.uint8
        self.count = len(inputs)
        self.target, self.environment, self.weight = target, environment, weight

    def iterate_frames(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[pd.DataFrame]:
        """Yield the columns beside the inputs."""
        yield self.frame

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the rows as float32 or, if they are bytes, as bytes."""
        # Chunks of about 16 MB: one row has so many numbers of 4 bytes.
        rows = max(1, 2**22 // max(1, int(np.prod(self.shape))))
        for start in range(0, len(self.inputs), rows):
            inputs = np.ascontiguousarray(self.inputs[start : start + rows])
            if not self.has_bytes:
                with np.errstate(over="ignore"):  # infinite numbers are refused later
                    inputs = inputs.astype(np.float32)
            yield SourceRowChunk(self.frame.iloc[start : start + rows], inputs)


class ImageFolderSource(DataSource):
    """A folder of images: environment/class/image, class/image, or images only."""

    kind = "images"
    has_bytes = True
    path: Path

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        from cirm.data.image_files import list_image_files_in_folder

        self.name, self.where = path.resolve().name, f"folder {str(path)!r}"
        self.path, self.shape, self.images = (
            path,
            shape,
            list_image_files_in_folder(path),
        )
        depths = {len(image.relative_to(path).parts) for image in self.images}
        if len(depths) != 1:
            several = f"images at {len(depths)} different depths"
            raise ValueError(
                f"{self.where}: the folder has "
                f"{several if self.images else 'no images'}. Sort the images into "
                "folders PLACE/CLASS/ or CLASS/, or put all of them directly into "
                "this folder."
            )
        self.depth = depths.pop()
        self.target = "class" if self.depth > 1 else ""
        self.environment = "environment" if self.depth > 2 else ""

    def iterate_frames(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[pd.DataFrame]:
        """Yield the environments, classes and names of all images, without reading."""
        yield self._build_table_of_image_labels(self.images)

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the images as bytes, [n, channels, side, side]."""
        from cirm.data.image_files import read_image_as_pixels

        channels, side = self.shape[0], self.shape[1]
        for start in range(0, len(self.images), IMAGES_AT_ONCE):
            paths = self.images[start : start + IMAGES_AT_ONCE]
            pixels = [read_image_as_pixels(path, side, channels) for path in paths]
            yield SourceRowChunk(
                self._build_table_of_image_labels(paths), np.stack(pixels)
            )

    def _build_table_of_image_labels(self, paths: list[Path]) -> pd.DataFrame:
        parts = [path.relative_to(self.path).parts for path in paths]
        columns = ["environment", "class", "image"][-self.depth :]
        names = [str(Path(*part)) for part in parts]
        return pd.DataFrame(parts, columns=columns).assign(image=names)


def hash_file_or_folder(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and images in a folder."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        return _hash_file(str(path), status.st_mtime_ns, status.st_size)
    from cirm.data.image_files import list_image_files_in_folder

    digest = hashlib.sha256()
    for image in list_image_files_in_folder(path):
        own = hash_file_or_folder(image)
        digest.update(f"{image.relative_to(path).as_posix()}\0{own}\0".encode())
    return digest.hexdigest()


@lru_cache(maxsize=100_000)
def _hash_file(path: str, modified: int, size: int) -> str:
    """Return the SHA-256 of a file, which is read once while it is not modified."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_names_for_array_columns(n_columns: int, prefix: str = "x") -> list[str]:
    """Return names for the columns of an array, in an order that is alphabetical."""
    width = len(str(max(n_columns - 1, 0)))
    return [f"{prefix}{position:0{width}d}" for position in range(n_columns)]
