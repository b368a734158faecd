"""Open the user's data: files, folders, tables and arrays, also with an encoder."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cirm.data.array_files import (
    ENVIRONMENTS,
    INPUTS,
    TARGETS,
    RequestedNpzArray,
    convert_array_to_text,
    read_npz_arrays,
)
from cirm.data.encoders import (
    EncoderIdentity,
    EncoderKind,
    EncoderLike,
    FrozenEncoder,
    check_encoder_identity,
    open_frozen_encoder,
    open_frozen_encoder_of_model,
)
from cirm.data.schema import Schema
from cirm.data.sources import (
    ArraySource,
    Data,
    DataFrameSource,
    DataSource,
    ImageFolderSource,
    Progress,
    SourceRowChunk,
    make_names_for_array_columns,
)
from cirm.data.table_files import (
    PACKED_REMEDY,
    PARQUET,
    TEXT_SEPARATORS,
    TableFileSource,
    label_rows_by_file_and_number,
)

SIDE = 32  # pixels to which images are resized without an encoder
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")
SUFFIXES = (*TEXT_SEPARATORS, *PARQUET, ".npz")
ENCODED_AT_ONCE = 64  # images in a chunk, which takes a second or two


class EncodedImageSource(ImageFolderSource):
    """A folder of images that a frozen encoder turns into features."""

    has_bytes = False

    def __init__(self, path: Path, encoder: FrozenEncoder) -> None:
        super().__init__(path, (encoder.identity.features,))
        self.encoder, self._encoder = encoder.identity, encoder
        self.count = len(self.images)

    def iterate_chunks(
        self, numeric_columns: Collection[str] = ()
    ) -> Iterator[SourceRowChunk]:
        """Yield the features [n, features] of the images."""
        from cirm.data.features import encode_image_files_as_features

        for start in range(0, len(self.images), ENCODED_AT_ONCE):
            paths = self.images[start : start + ENCODED_AT_ONCE]
            features = encode_image_files_as_features(paths, self._encoder)
            yield SourceRowChunk(self._build_table_of_image_labels(paths), features)


def open_sources_of_user_data(
    data: Data,
    shape: tuple[int, ...] = (3, 32, 32),
    encoder: FrozenEncoder | None = None,
) -> list[DataSource]:
    """Return the sources of the user's data.

    Images are resized to `shape` or, if there is an encoder, become its features.
    """
    if isinstance(data, DataSource):
        return [data]
    if is_dataframe_like(data):
        return [DataFrameSource(convert_table_to_pandas(data))]
    if isinstance(data, str | Path):
        return [_open_source_of_file_or_folder(Path(data), shape, encoder)]
    if isinstance(data, Mapping) and data:
        return [
            _open_source_of_named_environment(str(name), item, shape, encoder)
            for name, item in data.items()
        ]
    if isinstance(data, Sequence) and data:
        return [
            source
            for item in data
            for source in open_sources_of_user_data(item, shape, encoder)
        ]
    raise ValueError(
        f"data: an object of type {type(data).__name__} cannot be read. Give a file, "
        "a folder of images, a DataFrame of pandas or polars, a pyarrow table, a "
        "list of these that is not empty, or a dictionary from the name of each place "
        "to its data."
    )


def _open_source_of_named_environment(
    name: str,
    data: Data,
    shape: tuple[int, ...],
    encoder: FrozenEncoder | None,
) -> DataSource:
    """Return the source of one environment, which gets a name of its own."""
    try:
        sources = open_sources_of_user_data(data, shape, encoder)
    except ValueError as error:
        raise ValueError(f"place {name!r}: {error}") from None
    if len(sources) > 1:
        raise ValueError(
            f"place {name!r}: its data are a list of {len(sources)}. Give one file or "
            "table for each place."
        )
    source = sources[0]
    source.name = name
    if is_dataframe_like(data):
        source.where = f"place {name!r}"
    return source


def is_dataframe_like(data: object) -> bool:
    """Return whether data are a table of pandas, polars (also lazy) or pyarrow."""
    return (
        hasattr(data, "to_pandas")
        or isinstance(data, pd.DataFrame)
        or _is_lazy_dataframe(data)
    )


def _is_lazy_dataframe(data: object) -> bool:
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def convert_table_to_pandas(table: Any) -> pd.DataFrame:  # noqa: ANN401  of any package
    """Return a table of pandas, polars or pyarrow as a DataFrame of pandas."""
    if isinstance(table, pd.DataFrame):
        return table
    if _is_lazy_dataframe(table):
        table = table.collect()
    try:
        frame = table.to_pandas()
    except ImportError:
        raise ValueError(
            f"data: reading a {type(table).__name__} needs the package pyarrow. "
            'Install it with `pip install "cirm[parquet]"`.'
        ) from None
    if not isinstance(frame, pd.DataFrame):  # a single column, for example
        raise ValueError(
            f"data: an object of type {type(table).__name__} is not a table. Pass a "
            "table with named columns."
        )
    return frame


def open_npz_source(
    path: Path,
    names: Sequence[str] = ("", "", ""),
    max_gigabytes: float = 4.0,
    require_targets: bool = False,
) -> ArraySource:
    """Return the arrays of an NPZ file, by their names or else by usual names.

    With `require_targets`, targets must be there, and rows without a named environment
    belong to one named after the file.
    """
    where = f"file {str(path)!r}"
    required = (True, require_targets, False)
    wanted = map(RequestedNpzArray, names, (INPUTS, TARGETS, ENVIRONMENTS), required)
    inputs, *others = read_npz_arrays(path, list(wanted), max_gigabytes)
    assert inputs is not None
    if inputs.dtype.kind not in "biuf":
        raise ValueError(
            f"{where}: the array of inputs has the type {inputs.dtype}. Save real "
            "numbers."
        )
    if inputs.ndim < 2:
        raise ValueError(
            f"{where}: the array of inputs has the shape {list(inputs.shape)}, but "
            "needs two or more axes. Save one row for each example; if there is a "
            "single feature, save the shape [n, 1]."
        )
    if not len(inputs):
        raise ValueError(
            f"{where}: the array of inputs has no rows. Save one row for each example."
        )
    columns: dict[str, Any] = {}
    for name, values in zip(("target", "environment"), others, strict=True):
        if values is None:
            continue
        if values.shape not in ((len(inputs),), (len(inputs), 1)):
            raise ValueError(
                f"{where}: the array of the {name} has the shape "
                f"{list(values.shape)}, but there are {len(inputs)} rows of inputs. "
                f"Save an array of the shape [{len(inputs)}], one {name} for each row."
            )
        if name == "environment" or values.dtype.kind == "S":
            values = convert_array_to_text(values)
        columns[name] = values.reshape(-1)
    if require_targets and "environment" not in columns:
        columns["environment"] = path.stem
    index = label_rows_by_file_and_number(path, len(inputs))
    frame = pd.DataFrame(columns, index=index)
    known = {name: name for name in columns}
    source = ArraySource(inputs, frame, path.stem, where, **known)
    source.path = path
    return source


def _open_source_of_file_or_folder(
    path: Path, shape: tuple[int, ...], encoder: FrozenEncoder | None
) -> DataSource:
    if not path.exists():
        raise FileNotFoundError(
            f"data: there is no file or folder {str(path)!r}. Check the path."
        )
    if path.is_dir():
        if encoder is None:
            return ImageFolderSource(path, shape)
        return EncodedImageSource(path, encoder)
    if not path.is_file():  # a pipe can be read only once, and may block for ever
        raise ValueError(
            f"data: {str(path)!r} is not a regular file. Save the data in a file, or "
            "use - to read CSV from standard input."
        )
    if path.suffix.lower() in PACKED:
        raise ValueError(f"file {str(path)!r}: {PACKED_REMEDY}")
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"file {str(path)!r}: files that end in {path.suffix!r} cannot be read. "
            "Give a folder of images, or a file that ends in one of "
            f"{', '.join(SUFFIXES)}."
        )
    if path.suffix.lower() != ".npz":
        return TableFileSource(path)
    array = open_npz_source(path)
    if array.inputs.ndim > 2:
        return array
    columns = make_names_for_array_columns(array.inputs.shape[1], "")
    inputs = pd.DataFrame(array.inputs, array.frame.index, columns)
    frame = pd.concat([inputs, array.frame], axis=1)
    known = array.name, array.where, array.target, array.environment
    table = DataFrameSource(frame, *known)
    table.path = path
    return table


def open_sources_and_text_encoder(
    data: Data, shape: tuple[int, ...], encoder: EncoderLike = None
) -> tuple[list[DataSource], EncoderIdentity | None]:
    """Return the sources of the first data, and the encoder of text, if there is one.

    Images have the shape [channels, side, side] or, with an encoder, become its
    features; a side of 0 is the usual one.
    """
    channels, side, _ = shape
    usual = (channels, side or SIDE, side or SIDE)
    if encoder is None or encoder == "":
        return open_sources_of_user_data(data, usual), None
    kinds = {source.kind for source in open_sources_of_user_data(data, usual)}
    if kinds == {"images"}:
        opened = open_frozen_encoder(encoder, "images", side)
        return open_sources_of_user_data(data, usual, opened), None
    if kinds != {"table"}:
        raise ValueError(
            "encoder: the data are arrays, which need no encoder. Remove --encoder "
            "(in Python encoder=); it is for folders of images and for tables with a "
            "column of text."
        )
    return open_sources_of_user_data(data, usual), open_frozen_encoder(
        encoder, "text"
    ).identity


def open_image_folder_source(
    folder: Path,
    n_channels: int = 3,
    side: int | None = None,
    encoder: EncoderLike = "",
) -> ImageFolderSource:
    """Return the images of a folder, as pixels or as the features of an encoder."""
    if encoder:
        return EncodedImageSource(
            folder, open_frozen_encoder(encoder, "images", side or 0)
        )
    return ImageFolderSource(folder, (n_channels, side or SIDE, side or SIDE))


def list_encoder_checksums(
    encoder: str, kind: EncoderKind, side: int | None = None
) -> dict[str, str]:
    """Return the checksum of an encoder by the setting's name; {} without one."""
    if not encoder:
        return {}
    return {"encoder": open_frozen_encoder(encoder, kind, side or 0).identity.checksum}


def compute_encoder_features_of_sources(
    sources: Sequence[DataSource], progress: Progress
) -> None:
    """Compute the features of all rows, so that they can be read from the cache."""
    done, total = 0, sum(source.count for source in sources)
    for source in sources:
        for chunk in source.iterate_chunks():
            done += len(chunk.frame)
            progress("computing features", done / total if done < total else 1)


def check_encoder_matches_schema(schema: Schema, encoder: EncoderLike) -> None:
    """Open the encoder that the user names, which must be the one of the schema."""
    treatment = schema.treatment
    columns = treatment.encoding.columns if treatment.encoding else ()
    used = [treatment.encoder, *(column.encoder for column in columns)]
    identities = [identity for identity in used if identity is not None]
    if not identities:
        raise ValueError(
            "encoder: the model was fitted without an encoder, so none can be used "
            "with it. Remove --encoder, or fit a new model with this encoder."
        )
    for identity in identities:
        kind: EncoderKind = "images" if identity.side else "text"
        check_encoder_identity(
            open_frozen_encoder(encoder, kind, identity.side), identity
        )


def open_sources_for_model(data: Data, schema: Schema) -> list[DataSource]:
    """Return the sources of data that are read like the first ones."""
    treatment = schema.treatment
    encoder = (
        open_frozen_encoder_of_model(treatment.encoder) if treatment.encoder else None
    )
    return open_sources_of_user_data(data, treatment.shape, encoder)
