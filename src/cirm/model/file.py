"""The model's file: safetensors with a description in JSON, and a checksum.

The file is what safetensors says: eight bytes of length, a header in JSON, and the
tensors' bytes. The header's `__metadata__` has `format`, `version`, `model` (the whole
description as JSON) and `sha256`, the digest of the whole file with zeros in the place
of the digest itself; so a change of any byte is seen. Nothing in it is ever executed.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import struct
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor, nn

import cirm
from cirm.data.columns import Encoding
from cirm.data.schema import Schema, Treatment
from cirm.environments import Task
from cirm.model.model import Model, Plan, Visit, rebuilt
from cirm.model.state import named_tensors, state_of
from cirm.records import write_bytes

FORMAT, VERSION = "cirm model", 1
MOST_BYTES, MOST_HEADER, MOST_DRAWN = 2**32, 2**24, 2**30
ABANDONED = 3600.0  # seconds after which nobody is still writing a file
BLANK = "0" * 64  # where the digest will be


def save(model: Model, path: str | Path) -> None:
    """Write a model's file, at once or not at all; the old one stays until then."""
    path = Path(path)
    write_bytes(path, content(model))
    # What a killed writer left behind; a younger one may still be at work.
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def content(model: Model) -> bytes:
    """The bytes of a model's file."""
    described = json.dumps(_as_dict(model), allow_nan=False)
    metadata = {"format": FORMAT, "version": str(VERSION)}
    metadata |= {"model": described, "sha256": BLANK}
    whole = bytes_of(named_tensors(model.state), metadata)
    digest = hashlib.sha256(whole).hexdigest()
    # The digest's own place is the only one in the header with its name before it.
    before, blank, after = whole.partition(f'"sha256":"{BLANK}"'.encode())
    assert blank
    return before + f'"sha256":"{digest}"'.encode() + after


def load(
    path: str | Path, network: nn.Module | None = None, device: str = "cpu"
) -> Model:
    """The model of a file; `network` is the user's own, if it was trained with one."""
    path = Path(path)
    where = f"model {str(path)!r}"
    whole = _read(path, where)
    metadata = _metadata(whole, where)
    _check_version(metadata, where)
    _check_digest(whole, metadata["sha256"], where)
    try:
        described = json.loads(metadata["model"])
        model = _from_dict(described, tensors_from(whole), network)
    except (KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ValueError(f"{where}: it must be whole; got {error!r}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {str(error).removeprefix('model: ')}") from None
    _check_state(model, where)
    return model.on(device)


def read_checksum(path: str | Path) -> str:
    """The checksum that a model's file carries; empty if there is no such file."""
    path = Path(path)
    if not path.exists():
        return ""
    where = f"model {str(path)!r}"
    return _metadata(_read(path, where), where)["sha256"]


def _read(path: Path, where: str) -> bytes:
    if not path.exists():
        raise FileNotFoundError(f"{where}: the file must exist; got none")
    if path.is_dir():
        raise ValueError(f"{where}: it must be a file; got a folder")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{where}: it must have at most {MOST_BYTES:,} bytes; got {size:,}"
        )
    return path.read_bytes()


def _metadata(whole: bytes, where: str) -> dict[str, str]:
    """The header's description of itself, every part of which is text."""
    length = struct.unpack("<Q", whole[:8])[0] if len(whole) > 8 else 0
    if not whole:
        raise ValueError(f"{where}: it must be a model's file; got an empty file")
    wanted = f"{where}: it must be a model that `cirm fit` has written"
    if not 2 <= length <= MOST_HEADER or whole[8:9] != b"{":
        raise ValueError(f"{wanted}; got another format")
    if length > len(whole) - 8:
        raise ValueError(f"{wanted}, whole; got only its beginning")
    try:
        header = json.loads(whole[8 : 8 + length])
    except (ValueError, RecursionError):
        raise ValueError(f"{wanted}; got an unreadable header") from None
    found = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{wanted}; got safetensors of something else")
    for name in ("version", "model", "sha256"):
        if not isinstance(found.get(name), str):
            raise ValueError(f"{wanted}; got a header without {name!r}")
    return found


def _check_version(metadata: dict[str, str], where: str) -> None:
    version = metadata["version"]
    if not version.isdecimal() or not 1 <= int(version[:9]) <= VERSION:
        raise ValueError(
            f"{where}: its version must be at most {VERSION}, which this cirm "
            f"({cirm.__version__}) reads; got {version[:20]!r} (a newer cirm wrote it?)"
        )


def _check_digest(whole: bytes, told: str, where: str) -> None:
    mark = f'"sha256":"{told}"'.encode()
    blank = whole.replace(mark, f'"sha256":"{BLANK}"'.encode(), 1)
    if hashlib.sha256(blank).hexdigest() != told:
        raise ValueError(
            f"{where}: its content must be as it was written (checksum); "
            "got an altered or incomplete file"
        )


def _as_dict(model: Model) -> dict[str, Any]:
    schema = asdict(model.schema)
    treatment = model.schema.treatment
    if treatment.encoding is not None:
        schema["treatment"]["encoding"] = treatment.encoding.as_dict()
    schema["target"] = Encoding((model.schema.target,)).as_dict()
    return {
        "cirm": cirm.__version__,
        "created": model.created,
        "plan": asdict(model.plan),
        "schema": schema,
        "visits": [asdict(visit) for visit in model.visits],
    }


def _from_dict(
    data: dict[str, Any], tensors: dict[str, Tensor], network: nn.Module | None
) -> Model:
    plan = Plan(**_tupled(data["plan"]))
    schema = _schema(data["schema"])
    task = schema.task
    learner = rebuilt(plan.learner, plan.settings, plan.network, task, network)
    return Model(
        plan=plan,
        schema=schema,
        learner=learner,
        state=state_of(learner, tensors),
        visits=tuple(Visit(**_tupled(visit)) for visit in data["visits"]),
        created=data["created"],
    )


def _schema(data: dict[str, Any]) -> Schema:
    parts = _tupled(data["treatment"])
    if parts["encoding"] is not None:
        parts["encoding"] = Encoding.from_dict(parts["encoding"])
    known = {
        "treatment": Treatment(**parts),
        "task": Task(tuple(data["task"]["classes"])),
        "target": Encoding.from_dict(data["target"]).columns[0],
    }
    return Schema(**{**_tupled(data), **known})


def _tupled(data: dict[str, Any]) -> dict[str, Any]:
    """A dataclass's fields with the tuples that JSON made lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _check_state(model: Model, where: str) -> None:
    """Refuse tensors that the learner cannot predict with, by one prediction."""
    drawn = getattr(model.learner, "evaluations", 1) * model.learner.network.size
    drawn += math.prod(model.schema.treatment.shape)
    wanted = f"{where}: its parts must fit one another"
    if drawn > MOST_DRAWN:
        raise ValueError(f"{wanted}; got {drawn:,} numbers to draw for a prediction")
    try:
        with torch.no_grad():
            made = model.learner.predict(
                model.state, torch.zeros(1, 1, *model.schema.treatment.shape)
            )
    except (RuntimeError, TypeError, IndexError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{wanted}; got {said}") from None
    if made.shape != (1, 1, max(1, len(model.task.classes))):
        raise ValueError(f"{wanted}; got predictions of shape {list(made.shape)}")
