"""The user's data, of any kind, in chunks that can be read again from the start."""

from __future__ import annotations

import hashlib
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data import table_files
from cirm.data.array_files import (
    ENVIRONMENTS,
    INPUTS,
    TARGETS,
    NpzArrayName,
    convert_array_to_text,
    read_npz_arrays,
)

if TYPE_CHECKING:
    from cirm.data.encoders import Encoder, EncoderIdentity

Data = Any
"""A path, a DataFrame (pandas, polars, pyarrow), a `Source`, or a list of them."""

Progress = Callable[[str, float], None]
"""Is called with what is being done and how far it is: a fraction, or a count."""

Item = TypeVar("Item")
PREFETCHED_ITEMS = 2  # chunks that may be ready and unused
IMAGES_AT_ONCE = 256  # in a chunk: a megabyte of small images, 40 of large ones
SMALL_CELLS = 500_000  # a table of so many is kept in memory between two passes
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
SUFFIXES = (*table_files.TEXT_SEPARATORS, *table_files.PARQUET, ".npz")


def ignore_progress(what: str, part: float) -> None:
    """Do nothing with a progress message."""


class RowChunk(NamedTuple):
    """Some rows: columns and, unless these are the inputs, inputs [n, ...].

    Inputs are float32, or bytes (uint8) that stand for numbers from 0 to 1.
    """

    frame: pd.DataFrame
    inputs: NDArray[Any] | None = None


class Source(ABC):
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
        count: The number of rows, if it is known before they are read.
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

    @abstractmethod
    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield all rows in order; columns in `numbers` may be read as numbers."""

    def iterate_frames(self, numbers: Collection[str] = ()) -> Iterator[pd.DataFrame]:
        """Yield the columns of all rows in order, without arrays or images."""
        return (chunk.frame for chunk in self.iterate_chunks(numbers))

    def read_first_cells(self, rows: int, most: int) -> table_files.FirstCells:
        """Return the first rows, up to a number of cells."""
        head = next(self.iterate_frames())
        head = head.iloc[: min(rows, max(1, most // max(1, head.shape[1])))]
        names = [str(name) for name in head.columns]
        return table_files.FirstCells(names, head.to_numpy(dtype=object))

    def hash_files(self) -> dict[str, str]:
        """Return the SHA-256 of the file or folder by its name; {} if there is none."""
        if self.path is None:
            return {}
        return {self.path.resolve().name: hash_file_or_folder(self.path)}


class TableFile(Source):
    """A CSV, TSV or Parquet file."""

    path: Path

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name, self.where = (
            path,
            name or path.stem,
            f"file {str(path)!r}",
        )
        self._small: tuple[frozenset[str], pd.DataFrame] | None = None

    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield the rows, each labelled by file and row.

        A small table is kept for the next pass, as `fit` makes two: to parse thousands
        of columns takes longer than to learn from a few rows of them.
        """
        wanted = frozenset(numbers)
        if self._small and self._small[0] == wanted:
            yield RowChunk(self._small[1])
            return
        chunks = 0
        for frame in table_files.read_table_chunks(self.path, numbers):
            chunks += 1
            yield RowChunk(frame)
        if chunks == 1 and frame.size <= SMALL_CELLS:
            self._small = wanted, frame

    def read_first_cells(self, rows: int, most: int) -> table_files.FirstCells:
        """Return the first rows, up to a number of cells."""
        first = table_files.read_first_cells_of_file(self.path, rows, most)
        return super().read_first_cells(rows, most) if first is None else first


class FrameSource(Source):
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
        self.name, self.where = name, where
        self.target, self.environment, self.weight = target, environment, weight

    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield the rows in chunks as large as those of files."""
        if self.frame.empty:
            raise ValueError(f"{self.where}: there are no rows. Add at least one.")
        for start in range(0, len(self.frame), table_files.CHUNK_ROWS):
            yield RowChunk(self.frame.iloc[start : start + table_files.CHUNK_ROWS])


class ArraySource(Source):
    """Inputs [n, ...] with columns beside them, such as targets."""

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
        self.inputs, self.frame, self.name, self.where = inputs, frame, name, where
        self.shape, self.has_bytes = inputs.shape[1:], inputs.dtype == np.uint8
        self.target, self.environment, self.weight = target, environment, weight

    def iterate_frames(self, numbers: Collection[str] = ()) -> Iterator[pd.DataFrame]:
        """Yield the columns beside the inputs."""
        yield self.frame

    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield the rows as float32 or, if they are bytes, as bytes."""
        # Chunks of about 16 MB: one row has so many numbers of 4 bytes.
        rows = max(1, 2**22 // max(1, int(np.prod(self.shape))))
        for start in range(0, len(self.inputs), rows):
            inputs = self.inputs[start : start + rows]
            if not self.has_bytes:
                with np.errstate(over="ignore"):  # infinite numbers are refused later
                    inputs = inputs.astype(np.float32)
            yield RowChunk(self.frame.iloc[start : start + rows], inputs)


class ImageFiles(Source):
    """A folder of images: environment/class/image, class/image, or images only."""

    kind = "images"
    has_bytes = True
    path: Path

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        from cirm.data.image_files import list_image_files

        self.name, self.where = path.resolve().name, f"folder {str(path)!r}"
        self.path, self.shape, self.images = path, shape, list_image_files(path)
        depths = {len(image.relative_to(path).parts) for image in self.images}
        if len(depths) != 1:
            several = f"images at {len(depths)} different depths"
            raise ValueError(
                f"{self.where}: it has {several if self.images else 'no images'}. "
                "Put all images into folders environment/class/, all into folders "
                "class/, or all into the folder itself."
            )
        self.depth = depths.pop()
        self.target = "class" if self.depth > 1 else ""
        self.environment = "environment" if self.depth > 2 else ""

    def iterate_frames(self, numbers: Collection[str] = ()) -> Iterator[pd.DataFrame]:
        """Yield the environments, classes and names of all images, without reading."""
        yield self._label_images(self.images)

    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield the images as bytes, [n, channels, side, side]."""
        from cirm.data.image_files import read_image

        channels, side = self.shape[0], self.shape[1]
        for start in range(0, len(self.images), IMAGES_AT_ONCE):
            paths = self.images[start : start + IMAGES_AT_ONCE]
            pixels = [read_image(path, side, channels) for path in paths]
            yield RowChunk(self._label_images(paths), np.stack(pixels))

    def _label_images(self, paths: list[Path]) -> pd.DataFrame:
        parts = [path.relative_to(self.path).parts for path in paths]
        columns = ["environment", "class", "image"][-self.depth :]
        names = [str(Path(*part)) for part in parts]
        return pd.DataFrame(parts, columns=columns).assign(image=names)


def open_data_sources(
    data: Data,
    shape: tuple[int, ...] = (3, 32, 32),
    encoder: Encoder | None = None,
) -> list[Source]:
    """Return the sources of the user's data.

    Images are resized to `shape` or, if there is an encoder, become its features.
    """
    if isinstance(data, Source):
        return [data]
    if is_table(data):
        return [FrameSource(convert_to_pandas(data))]
    if isinstance(data, str | Path):
        return [_open_file_or_folder(Path(data), shape, encoder)]
    if isinstance(data, Sequence) and data:
        sources = [
            source
            for item in data
            for source in open_data_sources(item, shape, encoder)
        ]
        if len({source.name for source in sources}) < len(sources):
            names = ", ".join(repr(source.name) for source in sources)
            raise ValueError(
                "data: each file is an environment named after the file, but some "
                f"files have the same name: {names}. Rename a file, or name the "
                "column of environments with --environment."
            )
        return sources
    raise ValueError(
        f"data: {type(data).__name__} cannot be read. Give a file, a folder of images, "
        "a DataFrame of pandas or polars, a pyarrow table, or a list of these that is "
        "not empty."
    )


def is_table(data: object) -> bool:
    """Return whether data are a table of pandas, polars (also lazy) or pyarrow."""
    return (
        hasattr(data, "to_pandas") or isinstance(data, pd.DataFrame) or _is_lazy(data)
    )


def _is_lazy(data: object) -> bool:
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def convert_to_pandas(table: Any) -> pd.DataFrame:  # noqa: ANN401  of any package
    """Return a table of pandas, polars or pyarrow as a DataFrame of pandas."""
    if isinstance(table, pd.DataFrame):
        return table
    if _is_lazy(table):
        table = table.collect()
    try:
        frame = table.to_pandas()
    except ImportError:
        raise ValueError(
            f"data: reading {type(table).__name__} needs pyarrow. Install it with "
            '`pip install "cirm[parquet]"`.'
        ) from None
    if not isinstance(frame, pd.DataFrame):  # a single column, for example
        raise ValueError(
            f"data: {type(table).__name__} is not a table. Pass a table with named "
            "columns."
        )
    return frame


def open_npz_source(
    path: Path,
    names: Sequence[str] = ("", "", ""),
    gigabytes: float = 4.0,
    complete: bool = False,
) -> ArraySource:
    """Return the arrays of an NPZ file, by their names or else by usual names.

    If they are to be `complete`, targets are required, and rows without a named
    environment belong to one named after the file.
    """
    where = f"file {str(path)!r}"
    required = (True, complete, False)
    wanted = map(NpzArrayName, names, (INPUTS, TARGETS, ENVIRONMENTS), required)
    inputs, *others = read_npz_arrays(path, list(wanted), gigabytes)
    assert inputs is not None
    if inputs.dtype.kind not in "biuf" or inputs.ndim < 2 or not len(inputs):
        raise ValueError(
            f"{where}: its inputs are {inputs.dtype} {list(inputs.shape)}. Save a "
            "numeric array [n, ...] with at least one row."
        )
    columns: dict[str, Any] = {}
    for name, values in zip(("target", "environment"), others, strict=True):
        if values is None:
            continue
        if values.shape not in ((len(inputs),), (len(inputs), 1)):
            raise ValueError(
                f"{where}: its {name} array is {list(values.shape)} for "
                f"{len(inputs)} examples. Save one {name} for each example."
            )
        if name == "environment" or values.dtype.kind == "S":
            values = convert_array_to_text(values)
        columns[name] = values.reshape(-1)
    if complete and "environment" not in columns:
        columns["environment"] = path.stem
    index = table_files.label_rows_by_file(path, len(inputs))
    frame = pd.DataFrame(columns, index=index)
    known = {name: name for name in columns}
    source = ArraySource(inputs, frame, path.stem, where, **known)
    source.path = path
    return source


def hash_file_or_folder(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and images in a folder."""
    if not path.is_dir():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    from cirm.data.image_files import list_image_files

    digest = hashlib.sha256()
    for image in list_image_files(path):
        own = hash_file_or_folder(image)
        digest.update(f"{image.relative_to(path).as_posix()}\0{own}\0".encode())
    return digest.hexdigest()


def list_array_column_names(count: int, prefix: str = "x") -> list[str]:
    """Return names for the columns of an array, in an order that is alphabetical."""
    width = len(str(max(count - 1, 0)))
    return [f"{prefix}{position:0{width}d}" for position in range(count)]


def prefetch_items(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, made by another thread a little ahead of their use."""
    ready: queue.Queue[tuple[Item] | BaseException | None] = queue.Queue(
        PREFETCHED_ITEMS
    )
    stopped = threading.Event()

    def put(item: tuple[Item] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                put((item,))
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # raised where items are used
            put(error)

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    try:
        while isinstance(item := ready.get(), tuple):
            yield item[0]
        if item is not None:
            raise item
    finally:
        stopped.set()
        maker.join()


def _open_file_or_folder(
    path: Path, shape: tuple[int, ...], encoder: Encoder | None
) -> Source:
    if not path.exists():
        raise FileNotFoundError(
            f"data: there is no file or folder {str(path)!r}. Check the path."
        )
    if path.is_dir():
        if encoder is None:
            return ImageFiles(path, shape)
        from cirm.data.encoded_sources import EncodedImages

        return EncodedImages(path, encoder)
    if not path.is_file():  # a pipe can be read only once, and may block for ever
        raise ValueError(
            f"data: {str(path)!r} is not a regular file. Save the data in a file, or "
            "use - to read CSV from standard input."
        )
    if path.suffix.lower() in PACKED:
        raise ValueError(
            f"file {str(path)!r}: the file is compressed. Unpack it first, or send it "
            "to standard input, as in `gunzip -c FILE | cirm fit -`."
        )
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"file {str(path)!r}: files that end in {path.suffix!r} cannot be read. "
            f"Use a folder of images, or a file that ends in {', '.join(SUFFIXES)}."
        )
    if path.suffix.lower() != ".npz":
        return TableFile(path)
    array = open_npz_source(path)
    if array.inputs.ndim > 2:
        return array
    columns = list_array_column_names(array.inputs.shape[1], "")
    inputs = pd.DataFrame(array.inputs, array.frame.index, columns)
    frame = pd.concat([inputs, array.frame], axis=1)
    known = array.name, array.where, array.target, array.environment
    table = FrameSource(frame, *known)
    table.path = path
    return table
