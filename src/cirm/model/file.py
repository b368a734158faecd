"""Model files: safetensors with a description in JSON and a checksum.

As in every safetensors file, eight bytes with the length of the header come first, then
the header in JSON and the tensors. The header's `__metadata__` holds `format`,
`version`, `model` (the whole description as JSON) and `sha256`, the digest of the file
with zeros in place of the digest itself, so that a change of any byte is noticed.
Nothing in a file is ever executed or imported.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import struct
import time
import typing
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

import cirm
from cirm.data.columns import Encoding
from cirm.data.schema import Schema, Treatment
from cirm.environments import Task
from cirm.learners.base import Learner
from cirm.model.model import (
    Adaptation,
    HistoryEntry,
    Model,
    TrainingPlan,
    restore_learner,
)
from cirm.networks import Network
from cirm.randomness import Randomness
from cirm.records import write_bytes

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

FORMAT, VERSION = "cirm model", 2
MOST_BYTES, MOST_HEADER = 2**32, 2**24  # no honest file is larger
MOST_DRAWN = 2**30  # numbers; more would exhaust the memory of a laptop
ABANDONED = 3600.0  # seconds after which nobody is still writing a temporary file
BLANK = "0" * 64  # stands where the digest will be
REMEDY = "Restore it from a backup, or fit the model again."

RENAMED = {
    "when": "time",
    "mark": "fingerprint",
    "before": "metrics_before",
    "after": "metrics_after",
    "reliance": "importance",
    "calibration": "calibration_error",
    "auc": "roc_auc",
    "interval": "residual_quantile",
}
"""Keys of the history in files of version 1, and what they are called now."""


def save(model: Model, path: str | Path) -> None:
    """Write a model to a file.

    The file appears at once or not at all: until it is complete, an older file of the
    same name stays as it is.

    Args:
        model: A trained model.
        path: Where to write it, by convention with the ending .cirm. An existing file
            is replaced.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a setting of your own learner cannot be stored.

    Example:
        >>> import os, tempfile
        >>> import pandas as pd
        >>> from cirm import fit, load, save
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, os.path.join(folder, "model.cirm"))
        ...     os.listdir(folder)
        ['model.cirm']
    """
    path = Path(path)
    write_bytes(path, encode_model(model))
    remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes; a recent one may be in use."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def encode_model(model: Model) -> bytes:
    """Return the content of a model file."""
    _get_state_type(model.learner)  # without it, the file could not be read
    try:
        description = json.dumps(_model_to_dict(model), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The model cannot be saved: {error}. Settings of a learner must be "
            "numbers, text, or tuples of these."
        ) from None
    metadata = {"format": FORMAT, "version": str(VERSION)}
    metadata |= {"model": description, "sha256": BLANK}
    content = dump_tensors(flatten_state(model.state), metadata)
    digest = hashlib.sha256(content).hexdigest()
    # Inside the description quotes are escaped, so this occurs only once.
    before, blank, after = content.partition(f'"sha256":"{BLANK}"'.encode())
    assert blank
    return before + f'"sha256":"{digest}"'.encode() + after


def load(
    path: str | Path,
    network: nn.Module | Network | None = None,
    device: str = "cpu",
    learner: LearnerLike | None = None,
) -> Model:
    """Read a model from a file.

    Files of all earlier versions can be read.

    Args:
        path: A file that `save` or `cirm fit` has written.
        network: For a model that was trained with your own torch module, a module of
            the same architecture. Its weights are not used.
        device: Torch device to put the model on.
        learner: For a model that was trained with a learner which is neither built in
            nor offered by an installed package, its class. A file never decides which
            code is imported.

    Returns:
        The model. Updating it gives the same result as if it had never been saved.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, is not a model file, was written by a newer
            version, or needs a network or a learner that is not given.

    Example:
        >>> import os, tempfile
        >>> import pandas as pd
        >>> from cirm import fit, load, save
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, os.path.join(folder, "model.cirm"))
        ...     load(os.path.join(folder, "model.cirm")).task.classes
        ('no', 'yes')
    """
    path = Path(path)
    where = f"model file {str(path)!r}"
    content = _read_content(path, where)
    metadata = _parse_metadata(content, where)
    version = _parse_version(metadata["version"], where)
    _check_digest(content, metadata["sha256"], where)
    try:
        data = json.loads(metadata["model"])
        data = _upgrade_description(data) if version == 1 else data
        model = _model_from_dict(data, load_tensors(content), network, learner)
    except (KeyError, TypeError, AttributeError, SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}"
        if learner is not None:
            raise ValueError(
                f"{where} does not fit the given learner ({reason}). Pass the class "
                "that trained it with learner=."
            ) from None
        raise ValueError(f"{where} is damaged ({reason}). {REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    _check_state(model, where)
    return model.to(device)


def read_checksum(path: str | Path) -> str:
    """Return the checksum in a model file; empty if there is no such file."""
    path = Path(path)
    if not path.exists():
        return ""
    where = f"model file {str(path)!r}"
    return _parse_metadata(_read_content(path, where), where)["sha256"]


def _read_content(path: Path, where: str) -> bytes:
    if not path.exists():
        raise FileNotFoundError(
            f"{where} does not exist. Check the path, or create it with `cirm fit`."
        )
    if path.is_dir():
        raise ValueError(f"{where} is a folder. Give the path of a file.")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{where} has {size:,} bytes, but model files have at most "
            f"{MOST_BYTES:,}. Check the path."
        )
    return path.read_bytes()


def _parse_metadata(content: bytes, where: str) -> dict[str, str]:
    """Return the metadata of the header, which are all text."""
    if not content:
        raise ValueError(f"{where} is empty. {REMEDY}")
    foreign = f"{where} was not written by cirm"
    length = struct.unpack("<Q", content[:8])[0] if len(content) > 8 else 0
    if not 2 <= length <= MOST_HEADER or content[8:9] != b"{":
        raise ValueError(f"{foreign}: it has another format. Check the path.")
    if length > len(content) - 8:
        raise ValueError(f"{where} is incomplete: its end is missing. {REMEDY}")
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        raise ValueError(f"{where} is damaged: unreadable header. {REMEDY}") from None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(
            f"{foreign}: it is a safetensors file of another program. Check the path."
        )
    for name in ("version", "model", "sha256"):
        if not isinstance(metadata.get(name), str):
            raise ValueError(f"{where} is damaged: its header lacks {name!r}. {REMEDY}")
    return metadata


def _parse_version(text: str, where: str) -> int:
    if not text.isdecimal() or not 1 <= int(text[:9]) <= VERSION:
        raise ValueError(
            f"{where} has the format version {text[:20]!r}, but cirm "
            f"{cirm.__version__} reads versions 1 to {VERSION}. Install a newer cirm."
        )
    return int(text)


def _check_digest(content: bytes, digest: str, where: str) -> None:
    own = f'"sha256":"{digest}"'.encode()
    blank = content.replace(own, f'"sha256":"{BLANK}"'.encode(), 1)
    if hashlib.sha256(blank).hexdigest() != digest:
        raise ValueError(
            f"{where} is damaged: its checksum does not match its content. {REMEDY}"
        )


def _upgrade_description(data: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a file of version 1 as version 2 has it."""

    def rename(part: Any) -> Any:  # noqa: ANN401  any JSON value
        if not isinstance(part, dict):
            return part
        return {RENAMED.get(key, key): rename(value) for key, value in part.items()}

    plan, history = dict(data["plan"]), data["visits"]
    plan["adaptive_epochs"] = plan.pop("paced")
    return {**data, "plan": plan, "history": [rename(entry) for entry in history]}


def _model_to_dict(model: Model) -> dict[str, Any]:
    schema = asdict(model.schema)
    treatment = model.schema.treatment
    if treatment.encoding is not None:
        schema["treatment"]["encoding"] = treatment.encoding.as_dict()
    schema["target"] = Encoding((model.schema.target,)).as_dict()
    description = {
        "cirm": cirm.__version__,
        "created": model.created,
        "plan": asdict(model.plan),
        "schema": schema,
        "history": [asdict(entry) for entry in model.history],
    }
    if model.adaptation is not None:
        description["adaptation"] = asdict(model.adaptation)
    return description


def _model_from_dict(
    data: dict[str, Any],
    tensors: dict[str, Tensor],
    network: nn.Module | Network | None,
    choice: LearnerLike | None,
) -> Model:
    plan = TrainingPlan(**_lists_to_tuples(data["plan"]))
    schema = _schema_from_dict(data["schema"])
    learner = restore_learner(plan, schema.task, network, choice)
    _check_size(learner, schema)
    adaptation = data.get("adaptation")
    return Model(
        plan=plan,
        schema=schema,
        learner=learner,
        state=unflatten_state(learner, tensors),
        history=tuple(HistoryEntry(**_lists_to_tuples(e)) for e in data["history"]),
        created=data["created"],
        adaptation=adaptation and Adaptation(**_lists_to_tuples(adaptation)),
    )


def _schema_from_dict(data: dict[str, Any]) -> Schema:
    parts = _lists_to_tuples(data["treatment"])
    if parts["encoding"] is not None:
        parts["encoding"] = Encoding.from_dict(parts["encoding"])
    known = {
        "treatment": Treatment(**parts),
        "task": Task(tuple(data["task"]["classes"])),
        "target": Encoding.from_dict(data["target"]).columns[0],
    }
    return Schema(**{**_lists_to_tuples(data), **known})


def _lists_to_tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass with the tuples that JSON made lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _check_size(learner: Learner[Any], schema: Schema) -> None:
    """Raise an error if a prediction would exhaust the memory."""
    copies = getattr(learner, "evaluations", 1) * getattr(learner, "members", 1)
    numbers = copies * learner.network.size + math.prod(schema.treatment.shape)
    if numbers > MOST_DRAWN:
        raise ValueError(
            f"its parts do not fit together (a prediction needs {numbers:,} numbers). "
            f"{REMEDY}"
        )


def _check_state(model: Model, where: str) -> None:
    """Raise an error unless the model can make one prediction."""
    misfit = f"{where} is damaged: its parts do not fit together"
    inputs = torch.zeros(1, 1, *model.schema.treatment.shape)
    try:
        with torch.no_grad():
            prediction = model.learner.predict(model.state, inputs)
    except (RuntimeError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{misfit} ({reason}). {REMEDY}") from None
    if prediction.shape != (1, 1, max(1, len(model.task.classes))):
        shape = list(prediction.shape)
        raise ValueError(f"{misfit} (predictions of shape {shape}). {REMEDY}")


def flatten_state(state: Any, prefix: str = "state") -> dict[str, Tensor]:  # noqa: ANN401
    """Return the tensors of nested named tuples by path, as state.posterior.mean."""
    if isinstance(state, Tensor):
        # A copy, since safetensors refuses tensors that share memory.
        return {prefix: state.detach().cpu().clone().contiguous()}
    return {
        name: tensor
        for field, part in state._asdict().items()
        for name, tensor in flatten_state(part, f"{prefix}.{field}").items()
    }


def unflatten_state(learner: Learner[Any], tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """Return the state of a learner from tensors by path, which must fit exactly.

    The structure is taken from the types of the learner, not from the file. If its
    state may be of several types, it is that of the state before any data.
    """
    rest = dict(tensors)
    kind = _get_state_type(learner)
    if kind is Any:
        kind = learner.init(Randomness((0,)))
    state = _build_state(kind, "state", rest)
    if rest:
        raise ValueError(f"the learner has no tensor {next(iter(rest))!r}. {REMEDY}")
    if {len(tensor) for tensor in tensors.values()} != {1}:
        raise ValueError(f"the tensors are not of a single replica. {REMEDY}")
    return state


def _build_state(kind: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:  # noqa: ANN401
    """Return a state of a type, or of the same structure as another state."""
    if kind is Tensor or isinstance(kind, Tensor):
        if prefix not in tensors or tensors[prefix].ndim == 0:
            raise ValueError(f"the tensor {prefix!r} is missing. {REMEDY}")
        return tensors.pop(prefix)
    is_type = isinstance(kind, type)
    parts = typing.get_type_hints(kind) if is_type else kind._asdict()
    cls = kind if is_type else type(kind)
    return cls(*(_build_state(k, f"{prefix}.{n}", tensors) for n, k in parts.items()))


def _get_state_type(learner: Learner[Any]) -> Any:  # noqa: ANN401  a named tuple's class
    for base in type(learner).__orig_bases__:  # type: ignore[attr-defined]
        if typing.get_origin(base) is Learner:
            return typing.get_args(base)[0]
    raise ValueError(
        f"The learner {type(learner).__name__} does not name the type of its state. "
        "Derive it from Learner[State]."
    )
