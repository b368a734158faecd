"""Tensors as NumPy's bytes, and back; what comes back is checked before it is read."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

KIND = np.dtype("<f4")
HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)"
    rb"\{'descr': '([\w<>|=]{1,9})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)
"""How an npy file of version 1.0 begins: length of the header, type, order, shape."""


def written(tensor: Tensor) -> bytes:
    """A tensor as the bytes of an npy file of float32."""
    buffer = io.BytesIO()
    values = tensor.detach().cpu().to(torch.float32).contiguous().numpy()
    npy.write_array(buffer, values.astype(KIND, copy=False), allow_pickle=False)
    return buffer.getvalue()


def read(content: bytes, shape: Sequence[int], where: str) -> Tensor:
    """The tensor of npy bytes; refuses all but finite float32 of this shape.

    Nothing is made before the shape is known to be right, and nothing is unpickled.
    """
    got, kind, start = _header(content, where)
    if got != tuple(shape) or kind != KIND.str:
        raise ValueError(
            f"{where} must be {KIND.name} {list(shape)}; got {_named(kind)} {list(got)}"
        )
    if len(content) - start != KIND.itemsize * math.prod(shape):
        raise ValueError(f"{where} must be whole; got {len(content)} bytes")
    values = np.frombuffer(content, KIND, offset=start).reshape(got)
    tensor = torch.from_numpy(values.copy())
    if not tensor.isfinite().all():
        count = int((~tensor.isfinite()).sum())
        raise ValueError(f"{where} must be finite; got {count} that are not")
    return tensor


def read_all(
    contents: Mapping[str, bytes], shapes: Mapping[str, Sequence[int]], where: str
) -> dict[str, Tensor]:
    """Tensors by name; the names must be those of the shapes."""
    if set(contents) != set(shapes):
        raise ValueError(
            f"{where}: arrays must be {sorted(shapes)}; got {sorted(contents)}"
        )
    return {
        name: read(contents[name], shape, f"{where}: {name}")
        for name, shape in shapes.items()
    }


def _header(content: bytes, where: str) -> tuple[tuple[int, ...], str, int]:
    """Shape and type that npy bytes declare, and where their values start.

    Read by their form: NumPy would parse them as Python, which fails in many ways.
    """
    found = HEADER.match(content)
    if found is None or int.from_bytes(found[1], "little") != found.end() - 10:
        raise ValueError(f"{where} must be an npy array; got other bytes")
    kind, transposed, numbers = (part.decode() for part in found.groups()[1:])
    shape = tuple(int(number) for number in numbers.split(",") if number.strip())
    if transposed == "True" and len(shape) > 1:
        raise ValueError(f"{where} must be in C order; got Fortran order")
    return shape, kind, found.end()


def _named(kind: str) -> str:
    """A type's usual name; as it was written, if NumPy does not know it."""
    try:
        return np.dtype(kind).name
    except (TypeError, ValueError):
        return kind
