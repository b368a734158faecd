"""Tensors and notes in one safetensors file, replaced as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cirm.records import write_bytes_atomically

OPTIMISER_PREFIX = "optimiser."


def write_tensor_file(
    path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> None:
    """Replace a file by these tensors and notes."""
    # A copy, since safetensors refuses tensors that share memory.
    copies = {name: t.detach().cpu().clone() for name, t in tensors.items()}
    contiguous = {name: tensor.contiguous() for name, tensor in copies.items()}
    write_bytes_atomically(path, save(contiguous, {"notes": json.dumps(notes)}))


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the tensors and notes of a file; None if there is no such file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            notes = json.loads(file.metadata()["notes"])
            # Copies, which do not change when the file is replaced.
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(
            f"{path}: the file is damaged, or was not written by a federated study "
            f"({error}). Restore it from a backup, or start a new study in another "
            "folder."
        ) from None
    return tensors, notes


def get_optimiser_state_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser of one tensor, by names for a file."""
    state = optimiser.state_dict()["state"].get(0, {})
    return {OPTIMISER_PREFIX + name: t for name, t in state.items() if t is not None}


def restore_optimiser_state(
    optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Give an optimiser the state that `get_optimiser_state_tensors` returned."""
    state = {
        name.removeprefix(OPTIMISER_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(OPTIMISER_PREFIX)
    }
    if state:
        optimiser.load_state_dict({**optimiser.state_dict(), "state": {0: state}})
