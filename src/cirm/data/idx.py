"""IDX files of bytes: labels [n] or images [n, height, width], plain or gzip.

The reader takes any bytes: it compares the header with the length before it makes
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

PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
LETTERS = "emnist-letters-"  # files so named have transposed images, labels from 1
MOST = 2**31  # bytes of one file; the largest of the MNIST family has a quarter
_KINDS = {1: "labels [n]", 3: "images [n, height, width]"}
_DENSEST = 1032  # deflate cannot pack more bytes than this into one
_CHUNK = 2**20


def parse(data: bytes, axes: int, where: str) -> NDArray[np.uint8]:
    """Labels [n] (one axis) or images [n, height, width] (three) of a file's bytes."""
    return values(content(data, axes, where))


def read(path: Path, axes: int) -> NDArray[np.uint8]:
    """Labels [n] (one axis) or images [n, height, width] (three) of a file."""
    return values(file_content(path, axes))


def values(checked: bytearray) -> NDArray[np.uint8]:
    """Labels [n] or images [n, height, width] of a checked content, not copied."""
    shape = _shape(checked)
    return np.frombuffer(checked, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def content(data: bytes, axes: int, where: str) -> bytearray:
    """The bytes of an IDX file, unpacked, after a check of header and length."""
    if data[:2] == b"\x1f\x8b":
        return _unpacked(data, axes, where)
    expected = _expected(data[:16], axes, where)
    if len(data) != expected:
        raise ValueError(
            f"{where}: its header needs {expected} bytes; got {len(data)} bytes"
        )
    return bytearray(data)


def file_content(path: Path, axes: int) -> bytearray:
    """The bytes of an IDX file on disk, unpacked and checked as by `content`."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there must be an IDX file; got none")
    size = path.stat().st_size
    if size > MOST:
        raise ValueError(f"{path}: it must have at most {MOST} bytes; got {size}")
    return content(path.read_bytes(), axes, str(path))


def names(prefix: str) -> tuple[str, ...]:
    """Names of a data set's four files; EMNIST says test where others say t10k."""
    if not prefix:
        return PARTS
    return tuple(prefix + part.replace("t10k", "test") for part in PARTS)


def axes(part: int) -> int:
    """Number of axes of the four files: images and labels in turn."""
    return 1 if part % 2 else 3


def prefix_in(folder: Path, preferred: str = "") -> str:
    """How the names of a folder's four files begin: with LETTERS, or plainly."""
    other = "" if preferred else LETTERS
    if _found(folder, names(preferred)[0]) or not _found(folder, names(other)[0]):
        return preferred
    return other


def list_files(folder: Path) -> tuple[Path, ...]:
    """Return those of a folder's four files that exist, in the order of PARTS."""
    found = (_found(folder, name) for name in names(prefix_in(folder)))
    return tuple(path for path in found if path)


def four(folder: Path, prefix: str) -> list[bytearray]:
    """Unpacked contents of a folder's four files, in the order of PARTS."""
    contents = []
    for part, name in enumerate(names(prefix)):
        path = _found(folder, name)
        if path is None:
            raise FileNotFoundError(
                f"{folder}: it must hold {name} or {name}.gz; got neither"
            )
        contents.append(file_content(path, axes(part)))
    return contents


def images(folder: Path) -> list[NDArray[np.uint8]]:
    """Images [n, side, side] and labels [n] to train, then to test, of a folder.

    Images are upright and labels begin with 0, also those of EMNIST's letters, whose
    files hold each image transposed and labels that begin with 1.
    """
    prefix = prefix_in(folder)
    arrays = [values(checked) for checked in four(folder, prefix)]
    side = arrays[0].shape[1]
    for pictures, labels in (arrays[:2], arrays[2:]):
        if pictures.shape != (len(labels), side, side):
            raise ValueError(
                f"{folder}: images must be square, of one size, and as many as their "
                f"labels; got {[list(array.shape) for array in arrays]}"
            )
        if prefix == LETTERS and labels.min() < 1:
            raise ValueError(f"{folder}: labels of letters must begin with 1; got 0")
    if prefix != LETTERS:
        return arrays
    return [
        (array - 1) if array.ndim == 1 else np.ascontiguousarray(array.swapaxes(1, 2))
        for array in arrays
    ]


def _found(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or gzip, also as unpackers spell it, if any."""
    for ending in ("", ".gz"):
        for spelling in (name, name.replace("-idx", ".idx")):
            if (folder / (spelling + ending)).is_file():
                return folder / (spelling + ending)
    return None


def _shape(head: bytes | bytearray) -> tuple[int, ...]:
    return struct.unpack_from(f">{head[3]}I", head, 4)


def _expected(head: bytes, axes: int, where: str) -> int:
    """Length in bytes of the file that begins so."""
    magic = bytes((0, 0, 8, axes))
    if head[:4] != magic:
        raise ValueError(
            f"{where}: an IDX file of {_KINDS[axes]} must begin with "
            f"{magic.hex(' ')}; got {head[:4].hex(' ') or 'no bytes'}"
        )
    start = 4 + 4 * axes
    if len(head) < start:
        raise ValueError(
            f"{where}: its header needs {start} bytes; got {len(head)} bytes"
        )
    shape = _shape(head)
    if 0 in shape:
        raise ValueError(f"{where}: there must be something in it; got {list(shape)}")
    return start + math.prod(shape)


def _unpacked(data: bytes, axes: int, where: str) -> bytearray:
    stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        unpacked = bytearray(stream.read(16))
        expected = _expected(bytes(unpacked), axes, where)
        if expected > min(MOST, _DENSEST * len(data)):
            raise ValueError(
                f"{where}: its header needs {expected} bytes; got {len(data)} packed "
                "bytes, which cannot hold that many"
            )
        # One byte more than promised, to see that the file ends there.
        while len(unpacked) <= expected:
            chunk = stream.read(min(_CHUNK, expected + 1 - len(unpacked)))
            if not chunk:
                break
            unpacked += chunk
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(
            f"{where}: it must be a whole gzip file; got {error}"
        ) from None
    if len(unpacked) != expected:
        got = "more" if len(unpacked) > expected else f"{len(unpacked)} bytes"
        raise ValueError(f"{where}: its header needs {expected} bytes; got {got}")
    return unpacked
