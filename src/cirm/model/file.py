"""Model files: safetensors with a description in JSON and a checksum.

As in every safetensors file, eight bytes with the length of the header come first, then
the header in JSON and the tensors. The header's `__metadata__` holds `format`,
`version`, `model` (the whole description as JSON) and `sha256`, the digest of the file
with zeros in place of the digest itself, so that a change of any byte is noticed. One
tensor is the digest of the description, so that no other description fits the tensors.
Tensors called `earlier.0` and so on are whole model files, of the versions before each
update, which `rollback` restores (see `cirm.model.versions`).
If the file is signed, `hmac` is an HMAC-SHA256 of the file with zeros in place of both
digests: nobody can change a signed file unnoticed without the key.
Nothing in a file is ever executed or imported.
"""

from __future__ import annotations

import glob
import hashlib
import json
import math
import struct
import time
from contextlib import suppress
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

import cirm
from cirm.data.base import shorten_error_message
from cirm.data.open_sources import check_encoder_matches_schema
from cirm.data.schema import Schema
from cirm.learners.base import Learner
from cirm.memory import list_state_tensors
from cirm.model.container import (
    DIGEST_TENSOR,
    EARLIER,
    FORMAT,
    MOST_HEADER,
    MOST_VALUE,
    REMEDY,
    VERSION,
    check_digest_of_description,
    compute_short_hash_of_description,
    parse_description_in_metadata,
    read_and_check_description_and_version,
    read_bytes_of_model_file,
)
from cirm.model.model import Model, restore_learner_from_plan
from cirm.model.signature import (
    BLANK,
    add_digest_and_signature_to_file,
)
from cirm.model.state_tensors import (
    flatten_state_to_tensors_by_path,
    get_type_of_learner_state,
    restore_state_from_tensors,
)
from cirm.networks import Network
from cirm.records import write_bytes_atomically

if TYPE_CHECKING:
    from cirm.data.encoders import EncoderLike
    from cirm.learners import LearnerLike
    from cirm.model.description import ModelFileDescription

MOST_EARLIER = 100  # versions; no honest file has more
MOST_DRAWN = 2**30  # numbers; more would exhaust the memory of a laptop
LEFTOVER_SECONDS = (
    3600.0  # seconds after which nobody is still writing a temporary file
)


def save(model: Model, path: str | Path, key: bytes = b"") -> None:
    """Write a model to a file.

    The file appears at once or not at all: until it is complete, an older file of the
    same name is not changed.

    Args:
        model: A trained model.
        path: Where to write it, by convention with the ending .cirm. An existing file
            is replaced.
        key: A secret of 16 bytes or more to sign the file with. `load` with the same
            key then refuses a file that anybody without the key has written.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a setting of your own learner cannot be stored, or the model is
            too large.

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
    write_bytes_atomically(path, encode_model_file(model, key))
    remove_leftover_temporary_files(path)


def remove_leftover_temporary_files(path: Path) -> None:
    """Remove temporary files of killed processes; a recent one may be in use."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 16}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFTOVER_SECONDS:
                left.unlink()


def encode_model_file(model: Model, key: bytes = b"") -> bytes:
    """Return the content of a model file, signed if there is a key."""
    from cirm.model.description import parse_model_file_description

    get_type_of_learner_state(model.learner)  # without it, the file could not be read
    # `load` would refuse such a file, and the last good one would be gone.
    if _does_state_contain_nan(model) or _does_state_contain_huge_value(model):
        raise ValueError(
            "The model cannot be saved, because some of its parameters are NaN, "
            "infinite or too large. Check the data of the last training for very large "
            "values, or fit with a smaller learning rate (`cirm fit --set rate=...`)."
        )
    data = _convert_model_to_dict(model)
    try:
        description = dump_dataclasses_as_json(data)
        parse_model_file_description(json.loads(description))  # as `load` will
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The model cannot be saved: {error}. Settings of a learner must be "
            "numbers, text, or tuples of these."
        ) from None
    metadata = {"format": FORMAT, "version": str(VERSION)}
    metadata |= {"model": description, "sha256": BLANK}
    if key:
        metadata["hmac"] = BLANK
    tensors = {
        **flatten_state_to_tensors_by_path(model.state),
        DIGEST_TENSOR: _compute_description_digest(description),
    }
    for index, version in enumerate(model.earlier):
        tensors[f"{EARLIER}{index}"] = _convert_bytes_to_tensor(version)
    content = dump_tensors(tensors, metadata)
    if struct.unpack("<Q", content[:8])[0] > MOST_HEADER:
        raise ValueError(
            "The model cannot be saved, because it has too many columns for a model "
            "file. Leave out some columns with --ignore."
        )
    return add_digest_and_signature_to_file(content, key)


def _compute_description_digest(description: str) -> Tensor:
    """Return the digest of a description as a tensor, [1, 32]."""
    return _convert_bytes_to_tensor(hashlib.sha256(description.encode()).digest())


def _convert_bytes_to_tensor(content: bytes) -> Tensor:
    """Return bytes as a tensor, [1, bytes]."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[None]


def load(
    path: str | Path,
    network: nn.Module | Network | None = None,
    device: str = "cpu",
    learner: LearnerLike | None = None,
    key: bytes = b"",
    encoder: EncoderLike = None,
) -> Model:
    """Read a model from a file.

    Files of all earlier versions can be read.

    Args:
        path: A file that `save` or `cirm fit` has written.
        network: For a model that was trained with your own torch module, a module of
            the same architecture. Its weights are not used.
        device: Torch device to put the model on.
        learner: For a model that was trained with a learner which is neither built in
            nor registered by an installed package, its class. A file never decides
            which code is imported.
        key: The secret that the file was signed with. A file that was not signed with
            it is refused. Without a key, signatures are not checked.
        encoder: For a model whose features were made by an encoder that is not built
            in, this encoder, as for `fit`. Another one than the model's is refused.

    Returns:
        The model. Updating it gives the same result as if it had never been saved.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, is not a model file, was written by a newer
            version, was not signed with the key, or needs a network, a learner or an
            encoder that is not given.

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
    content = read_bytes_of_model_file(path, where)
    model = decode_model_file(content, where, network, learner, key)
    if encoder is not None:
        check_encoder_matches_schema(model.schema, encoder)
    return model.to(device)


def decode_model_file(
    content: bytes,
    where: str,
    network: nn.Module | Network | None = None,
    learner: LearnerLike | None = None,
    key: bytes = b"",
) -> Model:
    """Return the model in the content of a file, which messages call `where`."""
    text, version = read_and_check_description_and_version(content, where, key)
    try:
        tensors = load_tensors(content)
        data = parse_description_in_metadata(text, version)
        binding = tensors.pop(DIGEST_TENSOR, None)
        digest = None if binding is None else binding.numpy().tobytes()
        check_digest_of_description(text, digest, version)
        earlier = _pop_earlier_versions_from_tensors(tensors)
        model = _build_model_from_file_content(data, tensors, network, learner)
        _check_loaded_model_can_predict(model)
    except Exception as error:  # whatever a file from anywhere may cause
        if isinstance(error, ValueError) and str(error).endswith((".", "?")):
            raise ValueError(f"{where}: {error}") from None  # a sentence of ours
        reason = f"{type(error).__name__}: {shorten_error_message(error)}"
        if learner is not None:
            raise ValueError(
                f"{where} cannot be loaded with the given learner; another one may "
                f"have trained it ({reason}). Pass learner= with the class of the "
                "learner that trained the model."
            ) from None
        raise ValueError(f"{where} is damaged ({reason}). {REMEDY}") from None
    return replace(model, earlier=earlier)


def _pop_earlier_versions_from_tensors(tensors: dict[str, Tensor]) -> tuple[bytes, ...]:
    """Remove the files of earlier versions from tensors, and return them in order."""
    versions: list[bytes] = []
    while (tensor := tensors.pop(f"{EARLIER}{len(versions)}", None)) is not None:
        if tensor.dtype != torch.uint8 or tensor.ndim != 2 or len(tensor) != 1:
            raise ValueError(
                f"an earlier version of the model in the file is damaged. {REMEDY}"
            )
        if len(versions) == MOST_EARLIER:
            raise ValueError(
                f"the file is damaged: it contains more than {MOST_EARLIER} "
                f"earlier versions. {REMEDY}"
            )
        versions.append(tensor.numpy().tobytes())
    return tuple(versions)


def compute_version_key(model: Model) -> str:
    """Return the name of a model as a version; files of it have the same."""
    return compute_short_hash_of_description(
        dump_dataclasses_as_json(_convert_model_to_dict(model))
    )


def _convert_model_to_dict(model: Model) -> dict[str, Any]:
    """Return everything but the tensors, for `dump_dataclasses_as_json`."""
    description = {
        "cirm": cirm.__version__,
        "created": model.created,
        "plan": model.plan,
        "schema": model.schema,
        "history": model.history,
    }
    for name in ("adaptation", "threshold", "held_out_scores"):
        part = getattr(model, name)
        if part is not None:
            description[name] = part
    return description


def dump_dataclasses_as_json(value: Any) -> str:  # noqa: ANN401  plain values and dataclasses
    """Return JSON of plain values and dataclasses of them.

    Unlike `dataclasses.asdict` it copies nothing, which takes seconds for thousands of
    columns.
    """

    def convert_value_for_json(part: Any) -> dict[str, Any]:  # noqa: ANN401
        if is_dataclass(part):
            return vars(part)
        raise TypeError(f"{type(part).__name__} is not a plain value")

    return json.dumps(value, allow_nan=False, default=convert_value_for_json)


def _build_model_from_file_content(
    data: ModelFileDescription,
    tensors: dict[str, Tensor],
    network: nn.Module | Network | None,
    choice: LearnerLike | None,
) -> Model:
    learner = restore_learner_from_plan(data.plan, data.schema.task, network, choice)
    _check_predictions_fit_in_memory(learner, data.schema)
    return Model(
        plan=data.plan,
        schema=data.schema,
        learner=learner,
        state=restore_state_from_tensors(learner, tensors),
        history=data.history,
        created=data.created,
        adaptation=data.adaptation,
        threshold=data.threshold,
        held_out_scores=data.held_out_scores,
    )


def _check_predictions_fit_in_memory(learner: Learner[Any], schema: Schema) -> None:
    """Raise an error if a prediction would exhaust the memory."""
    copies = getattr(learner, "evaluations", 1) * getattr(learner, "members", 1)
    numbers = copies * learner.network.size + math.prod(schema.treatment.shape)
    if numbers > MOST_DRAWN:
        raise ValueError(
            "the file is damaged: with the settings in it, one prediction "
            f"would need {4 * numbers / 1e9:,.0f} GB of memory. {REMEDY}"
        )


def _does_state_contain_nan(model: Model) -> bool:
    return any(tensor.isnan().any() for tensor in list_state_tensors(model.state))


def _does_state_contain_huge_value(model: Model) -> bool:
    """Return whether a finite number is too large; infinite ones may mean unknown."""
    return any(
        bool(((tensor.abs() > MOST_VALUE) & tensor.isfinite()).any())
        for tensor in list_state_tensors(model.state)
        if tensor.is_floating_point()
    )


def _check_loaded_model_can_predict(model: Model) -> None:
    """Raise an error unless the model has numbers, and can make one prediction."""
    if _does_state_contain_nan(model):
        raise ValueError(
            f"the file is damaged: its tensors contain NaN values. {REMEDY}"
        )
    if _does_state_contain_huge_value(model):
        raise ValueError(
            f"the file is damaged: its tensors contain values beyond {MOST_VALUE:g}. "
            f"{REMEDY}"
        )
    inputs = torch.zeros(1, 1, *model.schema.treatment.shape)
    try:
        with torch.no_grad():
            prediction = model.learner.predict(model.state, inputs)
        model.learner.check_state(model.state, model.schema.treatment.shape)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise ValueError(
            "the file is damaged: its tensors do not match its description of "
            f"the model ({shorten_error_message(error)}). {REMEDY}"
        ) from None
    if prediction.shape != (1, 1, max(1, len(model.task.classes))):
        shape = list(prediction.shape)
        raise ValueError(
            "the file is damaged: its tensors do not match its description of "
            f"the model, since a prediction has the shape {shape}. {REMEDY}"
        )
    if not prediction.isfinite().all():
        raise ValueError(
            f"the file is damaged: its predictions are NaN or infinite. {REMEDY}"
        )
