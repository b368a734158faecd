"""Tensors and notes in one file that is replaced at once or not at all."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cirm.records import write_bytes


def save(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Replace a file by these tensors and notes."""
    buffer = io.BytesIO()
    arrays = {f"t:{name}": t.detach().cpu().numpy() for name, t in tensors.items()}
    np.savez(buffer, **arrays, notes=np.array(json.dumps(notes)))  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors by name and the notes of a file; nothing if there is none."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            notes = json.loads(str(stored["notes"]))
            tensors = {
                name.removeprefix("t:"): torch.from_numpy(stored[name])
                for name in stored.files
                if name.startswith("t:")
            }
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        raise ValueError(
            f"{path}: it must be what a study has kept; got a damaged or other file"
        ) from None
    return tensors, notes


def mover_state(mover: torch.optim.Optimizer, name: str) -> dict[str, Tensor]:
    """The tensors that an optimiser of one tensor keeps, by name."""
    state = mover.state_dict()["state"].get(0, {})
    return {f"{name}.{key}": value for key, value in state.items() if value is not None}


def restore_mover(
    mover: torch.optim.Optimizer, name: str, tensors: Mapping[str, Tensor]
) -> None:
    """Give an optimiser what `mover_state` took from one like it."""
    prefix = f"{name}."
    state = {
        key.removeprefix(prefix): value
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    if state:
        whole = mover.state_dict()
        mover.load_state_dict({**whole, "state": {0: state}})
