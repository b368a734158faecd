"""Arrays in NPZ files, read without trusting the file."""

from __future__ import annotations

import math
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cirm.data.base import shorten_error_message

AnyArray = NDArray[Any]
INPUTS = ("X", "x", "inputs", "data", "features", "images")
TARGETS = ("y", "Y", "targets", "target", "labels", "label")
ENVIRONMENTS = ("environment", "environments", "env", "envs", "groups", "domains")
CORRUPT = (
    *(ValueError, OSError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(TypeError, SyntaxError, tokenize.TokenError, struct.error),
    *(zipfile.BadZipFile, zlib.error),
)  # what zipfile and numpy raise for damaged files


class RequestedNpzArray(NamedTuple):
    """An array by the name the user gives or else by a usual name."""

    name: str
    usual: tuple[str, ...]
    required: bool = True


def read_npz_arrays(
    path: Path, requested: Sequence[RequestedNpzArray], max_gigabytes: float
) -> list[AnyArray | None]:
    """Return arrays by name; None for one that is absent and not required."""
    where = f"file {str(path)!r}"
    try:
        archive = zipfile.ZipFile(path)
    except CORRUPT as error:
        raise ValueError(
            f"{where}: this is not a valid NPZ file ({shorten_error_message(error)}). "
            "Save the arrays again with numpy.savez."
        ) from None
    with archive:
        members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        chosen = [
            _find_zip_member_of_array(members, choice, where) for choice in requested
        ]
        size = sum(member.file_size for member in chosen if member)
        if size > max_gigabytes * 1e9:
            raise ValueError(
                f"{where}: the arrays in this file need {size / 1e9:.3g} GB of "
                f"memory, but the limit is {max_gigabytes:g} GB. Raise the limit with "
                f"the setting gigabytes, such as gigabytes={math.ceil(size / 1e9)}."
            )
        return [_read_array_from_npz(archive, m, where) if m else None for m in chosen]


def convert_array_to_text(values: AnyArray) -> AnyArray:
    """Return values as text: whole numbers without a point, bytes decoded."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f" and ((values % 1 == 0) & (abs(values) < 2**53)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def _find_zip_member_of_array(
    members: dict[str, zipfile.ZipInfo], requested: RequestedNpzArray, where: str
) -> zipfile.ZipInfo | None:
    for name in (requested.name,) if requested.name else requested.usual:
        if name in members:
            return members[name]
    if requested.name or requested.required:
        raise ValueError(
            f"{where}: there is no array "
            f"{requested.name or ' or '.join(requested.usual)}. The arrays in the file "
            f"are: {', '.join(members) or 'none'}. Rename one of them to "
            f"{requested.name or requested.usual[0]}."
        )
    return None


def _read_array_from_npz(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str
) -> AnyArray:
    """Return one array, after checking that the file is as large as its header says."""
    where = f"{where}, array {member.filename.removesuffix('.npy')!r}"
    try:
        with archive.open(member) as file:
            major, _ = npy.read_magic(file)
            header = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}
            shape, _, dtype = header.get(major, header[2])(file)
        if dtype.kind not in "biufUS":
            raise TypeError(f"its data type {dtype} is neither numeric nor text")
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=1) < 0 or size > member.file_size:
            raise ValueError(
                f"its {member.file_size:,} bytes are too few for the shape "
                f"{list(shape)}"
            )
        with archive.open(member) as file:
            array: AnyArray = npy.read_array(file, allow_pickle=False)
        if dtype.kind == "U" and array.nbytes:
            points = np.ascontiguousarray(array).view(f"{dtype.byteorder}u4")
            if points.max() > sys.maxunicode:  # numpy itself does not check
                raise ValueError(
                    f"its text contains the code point {points.max()}, which is not a "
                    "Unicode character"
                )
    except CORRUPT as error:
        raise ValueError(
            f"{where}: the array cannot be read ({shorten_error_message(error)}). "
            "Save the file again with numpy.savez."
        ) from None
    return array
