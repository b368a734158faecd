"""The user's data with a frozen encoder: folders of images, and tables with text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from cirm.data.encoders import (
    Encoder,
    EncoderIdentity,
    EncoderKind,
    EncoderLike,
    check_encoder,
    find_encoder,
    open_encoder,
)
from cirm.data.schema import Schema
from cirm.data.sources import (
    Data,
    ImageFiles,
    Progress,
    RowChunk,
    Source,
    open_data_sources,
)

SIDE = 32  # pixels to which images are resized without an encoder
ENCODED_AT_ONCE = 64  # images in a chunk, which takes a second or two


class EncodedImages(ImageFiles):
    """A folder of images that a frozen encoder turns into features."""

    has_bytes = False

    def __init__(self, path: Path, encoder: Encoder) -> None:
        super().__init__(path, (encoder.identity.features,))
        self.encoder, self._encoder = encoder.identity, encoder
        self.count = len(self.images)

    def iterate_chunks(self, numbers: Collection[str] = ()) -> Iterator[RowChunk]:
        """Yield the features [n, features] of the images."""
        from cirm.data.features import encode_image_files

        for start in range(0, len(self.images), ENCODED_AT_ONCE):
            paths = self.images[start : start + ENCODED_AT_ONCE]
            features = encode_image_files(paths, self._encoder)
            yield RowChunk(self._label_images(paths), features)


def open_sources_for_first_fit(
    data: Data, shape: tuple[int, ...], encoder: EncoderLike = None
) -> tuple[list[Source], EncoderIdentity | None]:
    """Return the sources of the first data, and the encoder of text, if there is one.

    Images have the shape [channels, side, side] or, with an encoder, become its
    features; a side of 0 is the usual one.
    """
    channels, side, _ = shape
    usual = (channels, side or SIDE, side or SIDE)
    if encoder is None or encoder == "":
        return open_data_sources(data, usual), None
    kinds = {source.kind for source in open_data_sources(data, usual)}
    if kinds == {"images"}:
        opened = open_encoder(encoder, "images", side)
        return open_data_sources(data, usual, opened), None
    if kinds != {"table"}:
        raise ValueError(
            "encoder: the data are arrays, which need none. Use an encoder for a "
            "folder of images, or for a table with a column of text."
        )
    return open_data_sources(data, usual), open_encoder(encoder, "text").identity


def open_image_folder(
    folder: Path, channels: int = 3, side: int | None = None, encoder: EncoderLike = ""
) -> ImageFiles:
    """Return the images of a folder, as pixels or as the features of an encoder."""
    if encoder:
        return EncodedImages(folder, open_encoder(encoder, "images", side or 0))
    return ImageFiles(folder, (channels, side or SIDE, side or SIDE))


def list_encoder_checksums(
    encoder: str, kind: EncoderKind, side: int | None = None
) -> dict[str, str]:
    """Return the checksum of an encoder by the setting's name; {} without one."""
    if not encoder:
        return {}
    return {"encoder": open_encoder(encoder, kind, side or 0).identity.checksum}


def compute_source_features(sources: Sequence[Source], progress: Progress) -> None:
    """Compute the features of all rows, so that they can be read from the cache."""
    done, total = 0, sum(source.count for source in sources)
    for source in sources:
        for chunk in source.iterate_chunks():
            done += len(chunk.frame)
            progress("computing features", done / total if done < total else 1)


def check_encoder_of_schema(schema: Schema, encoder: EncoderLike) -> None:
    """Open the encoder that the user names, which must be the one of the schema."""
    treatment = schema.treatment
    columns = treatment.encoding.columns if treatment.encoding else ()
    used = [treatment.encoder, *(column.encoder for column in columns)]
    identities = [identity for identity in used if identity is not None]
    if not identities:
        raise ValueError(
            "encoder: the model was fitted without an encoder. Remove --encoder, or "
            "fit a new model."
        )
    for identity in identities:
        kind: EncoderKind = "images" if identity.side else "text"
        check_encoder(open_encoder(encoder, kind, identity.side), identity)


def open_sources_for_model(data: Data, schema: Schema) -> list[Source]:
    """Return the sources of data that are read like the first ones."""
    treatment = schema.treatment
    encoder = find_encoder(treatment.encoder) if treatment.encoder else None
    return open_data_sources(data, treatment.shape, encoder)
