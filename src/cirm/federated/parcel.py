"""Tensors and notes as the content of a Flower message, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from cirm.federated.wire import KIND, written

NUMPY = "numpy.ndarray"  # Flower's word for npy bytes


def packed(tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> RecordDict:
    """The content of a message."""
    arrays = {
        name: Array(KIND.name, tuple(tensor.shape), NUMPY, written(tensor))
        for name, tensor in tensors.items()
    }
    text = json.dumps(notes, sort_keys=True)
    return RecordDict(
        {"arrays": ArrayRecord(arrays), "notes": ConfigRecord({"json": text})}
    )


def opened(content: RecordDict) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Arrays as bytes, not yet read, and the notes of a message's content."""
    arrays, notes = content.get("arrays"), content.get("notes")
    if not isinstance(arrays, ArrayRecord) or not isinstance(notes, ConfigRecord):
        raise ValueError("message: it must have arrays and notes; got others")
    try:
        told = json.loads(str(notes.get("json")))
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ValueError("message: its notes must be JSON by name; got others")
    return {name: array.data for name, array in arrays.items()}, told
