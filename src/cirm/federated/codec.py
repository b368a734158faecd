"""Tensors and notes as the content of a Flower message, checked before they are used.

Arrays travel in NumPy's npy format. The receiver knows which shape to expect, so it
compares the header with the one that it would write itself: nothing is parsed,
nothing is unpickled, and no memory is allocated for an array of the wrong size.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

SAME_VERSION = "Check that the server and its sites run the same version of cirm"
DTYPE = np.dtype("<f4")
FLOWER_NPY_TYPE = "numpy.ndarray"  # Flower's name for npy bytes


def encode_message_content(
    tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> RecordDict:
    """Turn tensors and notes into the content of a message."""
    arrays = {
        name: Array(
            DTYPE.name,
            tuple(tensor.shape),
            FLOWER_NPY_TYPE,
            encode_tensor_as_npy(tensor),
        )
        for name, tensor in tensors.items()
    }
    text = json.dumps(notes, sort_keys=True)
    return RecordDict(
        {"arrays": ArrayRecord(arrays), "notes": ConfigRecord({"json": text})}
    )


def decode_message_content(
    content: RecordDict,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays of a message, not yet decoded, and its notes."""
    arrays, config = content.get("arrays"), content.get("notes")
    if not isinstance(arrays, ArrayRecord) or not isinstance(config, ConfigRecord):
        raise ValueError(
            "a message between the server and a site is not in the format of cirm: "
            f"it must have the parts 'arrays' and 'notes'. {SAME_VERSION}"
        )
    try:
        notes = json.loads(str(config.get("json")))
    except ValueError:
        notes = None
    if not isinstance(notes, dict):
        raise ValueError(
            "a message between the server and a site is not in the format of cirm: "
            f"its part 'notes' is not a JSON object. {SAME_VERSION}"
        )
    return dict(arrays), notes


def encode_tensor_as_npy(tensor: Tensor) -> bytes:
    """Return a tensor as the bytes of an npy file of float32."""
    values = tensor.detach().cpu().to(torch.float32).contiguous().numpy()
    return _build_npy_header(values.shape) + values.astype(DTYPE, copy=False).tobytes()


def decode_and_check_tensors(
    arrays: Mapping[str, Array], shapes: Mapping[str, Sequence[int]], sender: str
) -> dict[str, Tensor]:
    """Decode arrays, which must be finite float32 of exactly these names and shapes."""
    if set(arrays) != set(shapes):
        raise ValueError(
            f"{sender}: a message must contain the arrays {sorted(shapes)}, but the "
            f"arrays {sorted(arrays)} were sent. {SAME_VERSION}"
        )
    return {
        name: _decode_npy_tensor(arrays[name], shape, f"{sender}: array {name!r}")
        for name, shape in shapes.items()
    }


def _decode_npy_tensor(array: Array, shape: Sequence[int], where: str) -> Tensor:
    if (array.dtype, tuple(array.shape)) != (DTYPE.name, tuple(shape)):
        raise ValueError(
            f"{where} has the type {array.dtype} and the shape {list(array.shape)}, "
            f"but must have the type {DTYPE.name} and the shape {list(shape)}. "
            f"{SAME_VERSION}"
        )
    content, header = array.data, _build_npy_header(shape)
    size = len(header) + DTYPE.itemsize * math.prod(shape)
    if len(content) != size or not content.startswith(header):
        raise ValueError(
            f"{where} must be sent as an npy file of {size:,} bytes, but the "
            f"{len(content):,} bytes that arrived are not such a file. {SAME_VERSION}"
        )
    values = np.frombuffer(content, DTYPE, offset=len(header)).reshape(shape)
    tensor = torch.from_numpy(values.copy())
    if not tensor.isfinite().all():
        count = int((~tensor.isfinite()).sum())
        raise ValueError(
            f"{where} contains NaN or infinite values ({count:,} in total), so "
            "training has diverged. Start the study with a smaller learning rate "
            "(rate) or penalty"
        )
    return tensor


def _build_npy_header(shape: Sequence[int]) -> bytes:
    buffer = io.BytesIO()
    facts = {"descr": DTYPE.str, "fortran_order": False, "shape": tuple(shape)}
    npy.write_array_header_1_0(buffer, facts)
    return buffer.getvalue()
