"""IDX files of bytes: labels [n] or images [n, height, width], plain or gzip.

The reader trusts no file: it compares the header with the length before it allocates
anything of that size, and unpacks no more than the header promises.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

IDX_PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LETTERS = "emnist-letters-"  # files so named have transposed images, labels from 1
MOST_FILE_BYTES = 2**31  # of one file; the largest of the MNIST family has a quarter
_CONTENT_BY_AXES = {1: "labels [n]", 3: "images [n, height, width]"}
_MAX_GZIP_RATIO = 1032  # deflate cannot pack more bytes than this into one
_CHUNK_BYTES = 2**20  # unpacked at once


def decompress_and_check_idx(data: bytes, n_axes: int, where: str) -> bytearray:
    """Return the unpacked bytes of an IDX file after a check of header and length.

    Labels [n] have one axis, images [n, height, width] three.
    """
    if data[:2] == b"\x1f\x8b":
        return _decompress_gzip_idx(data, n_axes, where)
    expected = _compute_idx_file_length(data[:16], n_axes, where)
    if len(data) != expected:
        raise ValueError(
            f"{where}: the file has {len(data):,} bytes, but according to its header "
            f"it should have {expected:,} bytes. Download the file again."
        )
    return bytearray(data)


def convert_idx_bytes_to_array(content: bytearray) -> NDArray[np.uint8]:
    """Return labels [n] or images [n, height, width] of unpacked bytes, not copied."""
    shape = _read_shape_from_header(content)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def encode_array_as_idx(array: NDArray[np.uint8]) -> bytearray:
    """Return the bytes of an IDX file of labels [n] or images [n, height, width]."""
    head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return bytearray(head + array.tobytes())


def read_and_check_idx_file(path: Path, n_axes: int) -> bytearray:
    """Return the checked and decompressed bytes of an IDX file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such IDX file. Check the path.")
    size = path.stat().st_size
    if size > MOST_FILE_BYTES:
        raise ValueError(
            f"{path}: the file has {size:,} bytes, but IDX files may have at most "
            f"{MOST_FILE_BYTES:,}. Use a smaller file."
        )
    return decompress_and_check_idx(path.read_bytes(), n_axes, str(path))


def list_idx_file_names(prefix: str) -> tuple[str, ...]:
    """Return the names of a data set's four files; EMNIST says test, others t10k."""
    if not prefix:
        return IDX_PARTS
    return tuple(prefix + part.replace("t10k", "test") for part in IDX_PARTS)


def count_axes_of_idx_file(file_index: int) -> int:
    """Return the number of axes of one of the four files: images and labels in turn."""
    return 1 if file_index % 2 else 3


def detect_idx_file_prefix(folder: Path, preferred: str = "") -> str:
    """Return how the names of a folder's four files begin: with LETTERS, or not."""
    other = "" if preferred else LETTERS
    names = list_idx_file_names(preferred)[0], list_idx_file_names(other)[0]
    if find_plain_or_gzip_idx_file(folder, names[0]) or not find_plain_or_gzip_idx_file(
        folder, names[1]
    ):
        return preferred
    return other


def list_existing_idx_files(folder: Path) -> tuple[Path, ...]:
    """Return those of a folder's four files that exist, in the order of IDX_PARTS."""
    paths = (
        find_plain_or_gzip_idx_file(folder, name)
        for name in list_idx_file_names(detect_idx_file_prefix(folder))
    )
    return tuple(path for path in paths if path)


def read_four_idx_files(folder: Path, prefix: str) -> list[bytearray]:
    """Return the unpacked contents of a folder's four files, in the usual order."""
    contents = []
    for part, name in enumerate(list_idx_file_names(prefix)):
        path = find_plain_or_gzip_idx_file(folder, name)
        if path is None:
            raise FileNotFoundError(
                f"{folder}: there is neither {name} nor {name}.gz. Put all four IDX "
                "files into the folder."
            )
        contents.append(read_and_check_idx_file(path, count_axes_of_idx_file(part)))
    return contents


def read_images_and_labels_of_idx_folder(folder: Path) -> list[NDArray[np.uint8]]:
    """Return images [n, side, side] and labels [n] to train on, then to test on.

    Images are upright and labels begin with 0, also those of EMNIST's letters, whose
    files hold each image transposed and labels that begin with 1.
    """
    prefix = detect_idx_file_prefix(folder)
    arrays = [
        convert_idx_bytes_to_array(content)
        for content in read_four_idx_files(folder, prefix)
    ]
    side = arrays[0].shape[1]
    for images, labels in (arrays[:2], arrays[2:]):
        if images.shape != (len(labels), side, side):
            raise ValueError(
                f"{folder}: the IDX files in this folder contain arrays of the shapes "
                f"{[list(array.shape) for array in arrays]}. Use square images of the "
                "same size, and one label for each image."
            )
        if prefix == LETTERS and labels.min() < 1:
            raise ValueError(
                f"{folder}: files named {LETTERS}... must have labels from 1 on, but a "
                "label is 0. If they are EMNIST letters, download them again; "
                f"otherwise remove {LETTERS!r} from their names."
            )
    if prefix != LETTERS:
        return arrays
    return [
        (array - 1) if array.ndim == 1 else np.ascontiguousarray(array.swapaxes(1, 2))
        for array in arrays
    ]


def find_plain_or_gzip_idx_file(folder: Path, name: str) -> Path | None:
    """Return a file, plain or gzip, also if an unpacker wrote .idx for -idx."""
    for ending in ("", ".gz"):
        for spelling in (name, name.replace("-idx", ".idx")):
            if (folder / (spelling + ending)).is_file():
                return folder / (spelling + ending)
    return None


def _read_shape_from_header(head: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack_from(f">{head[3]}I", head, 4)


def _compute_idx_file_length(head: bytes, n_axes: int, where: str) -> int:
    """Return the length in bytes of a file that begins so."""
    magic = bytes((0, 0, 8, n_axes))
    if head[:4] != magic:
        raise ValueError(
            f"{where}: the file begins with the bytes "
            f"{head[:4].hex(' ') or '(none)'}, but an IDX file of "
            f"{_CONTENT_BY_AXES[n_axes]} begins with {magic.hex(' ')}. Check that this "
            "is the right file, and download it again if it is damaged."
        )
    start = 4 + 4 * n_axes
    if len(head) < start:
        raise ValueError(
            f"{where}: the file ends after {len(head)} bytes, in the middle of its "
            "header. Download the file again."
        )
    shape = _read_shape_from_header(head)
    if 0 in shape:
        raise ValueError(
            f"{where}: the file contains no data: the shape in its header is "
            f"{list(shape)}. Use a file with at least one image or label."
        )
    return start + math.prod(shape)


def _decompress_gzip_idx(data: bytes, n_axes: int, where: str) -> bytearray:
    stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        content = bytearray(stream.read(16))
        expected = _compute_idx_file_length(bytes(content), n_axes, where)
        if expected > min(MOST_FILE_BYTES, _MAX_GZIP_RATIO * len(data)):
            raise ValueError(
                f"{where}: according to its header, the file unpacks to {expected:,} "
                f"bytes, more than {len(data):,} compressed bytes can hold. Download "
                "the file again."
            )
        # One byte more than promised, to see that the file ends there.
        while len(content) <= expected:
            chunk = stream.read(min(_CHUNK_BYTES, expected + 1 - len(content)))
            if not chunk:
                break
            content += chunk
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{where}: this is not a complete gzip file ({error}). Download the file "
            "again."
        ) from None
    if len(content) != expected:
        length = "more" if len(content) > expected else f"only {len(content):,}"
        raise ValueError(
            f"{where}: the unpacked file has {length} bytes, but according to its "
            f"header it should have {expected:,} bytes. Download the file again."
        )
    return content
