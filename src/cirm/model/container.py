"""What can be read of a model file without its tensors: header and description."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cirm
from cirm.data.base import shorten_error_message
from cirm.model.signature import (
    check_digest_of_model_file,
    check_signature_of_model_file,
)

if TYPE_CHECKING:
    from cirm.model.description import ModelFileDescription

REMEDY = "Restore it from a backup, or fit the model again."
FORMAT = "cirm model"
VERSION = 4
MOST_BYTES = 2**32  # no honest file is larger
MOST_HEADER = 2**26  # nor has a longer header
DIGEST_TENSOR = "description"  # tensor that holds the digest of the description
EARLIER = "earlier."  # and a number: tensor that holds the file of an earlier version
MOST_VALUE = 1e37  # of a number in a tensor; single precision ends at 3e38
KEY_DIGITS = 8  # of a version's digest; two of 100 agree once in a million models
RENAMED_FIELDS = {
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


def read_model_checksum(path: str | Path) -> str:
    """Return the checksum in a model file; empty if there is no such file."""
    path = Path(path)
    if not path.exists():
        return ""
    where = f"model file {str(path)!r}"
    return parse_model_file_header(read_bytes_of_model_file(path, where), where)[
        "sha256"
    ]


def read_version_key_of_model_file(content: bytes) -> str:
    """Return the name of the version that a model file holds: digits of a digest."""
    return compute_short_hash_of_description(
        parse_model_file_header(content, "the version")["model"]
    )


def compute_short_hash_of_description(text: str) -> str:
    """Return some digits of the digest of a description."""
    # Not the checksum of the file: safetensors may write the same file in two ways.
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def is_model_file_signed(path: str | Path) -> bool:
    """Return whether a model file is signed, with whatever key."""
    where = f"model file {str(path)!r}"
    return "hmac" in parse_model_file_header(
        read_bytes_of_model_file(Path(path), where), where
    )


def read_bytes_of_model_file(path: Path, where: str) -> bytes:
    """Return the bytes of a model file, which messages call `where`."""
    if not path.exists():
        raise FileNotFoundError(
            f"{where} does not exist. Check the path, or create it with `cirm fit`."
        )
    if path.is_dir():
        raise ValueError(f"{where} is a folder. Give the path of a file.")
    if not path.is_file():  # a pipe may block for ever
        raise ValueError(f"{where} is a device or a pipe, not a file. Check the path.")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(
            f"{where} has {size:,} bytes, but model files have at most "
            f"{MOST_BYTES:,}. Check the path."
        )
    return path.read_bytes()


def parse_model_file_header(content: bytes, where: str) -> dict[str, str]:
    """Return the metadata of the header, which are all text."""
    if not content:
        raise ValueError(f"{where} is empty. {REMEDY}")
    length = struct.unpack("<Q", content[:8])[0] if len(content) > 8 else 0
    if not 2 <= length <= MOST_HEADER or content[8:9] != b"{":
        raise ValueError(
            f"{where} was not written by cirm: it has another format. Check the path."
        )
    if length > len(content) - 8:
        raise ValueError(
            f"{where} is incomplete: the end of the file is missing. {REMEDY}"
        )
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        raise ValueError(
            f"{where} is damaged: its header cannot be read. {REMEDY}"
        ) from None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise ValueError(
            f"{where} was not written by cirm: it is a safetensors file of another "
            "program. Check the path."
        )
    for name in ("version", "model", "sha256"):
        if not isinstance(metadata.get(name), str):
            raise ValueError(f"{where} is damaged: its header lacks {name!r}. {REMEDY}")
    return metadata


def parse_model_format_version(text: str, where: str) -> int:
    """Return the version of the format, which must be one that is known."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= VERSION:
        raise ValueError(
            f"{where} has the format version {text[:20]!r}, but cirm "
            f"{cirm.__version__} reads only versions 1 to {VERSION}. Install a newer "
            "version of cirm."
        )
    return int(text)


def read_and_check_description_and_version(
    content: bytes, where: str, key: bytes
) -> tuple[str, int]:
    """Return the description and the format's version of a file that is intact."""
    metadata = parse_model_file_header(content, where)
    version = parse_model_format_version(metadata["version"], where)
    check_digest_of_model_file(content, metadata["sha256"], where)
    if key:
        check_signature_of_model_file(content, metadata, key, where)
    return metadata["model"], version


def parse_description_in_metadata(
    text: str, format_version: int
) -> ModelFileDescription:
    """Return the description in the metadata of a file."""
    from cirm.model.description import parse_model_file_description

    try:
        data = json.loads(text)
        data = (
            _upgrade_earlier_model_description(data, format_version)
            if format_version < 3
            else data
        )
        return parse_model_file_description(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = shorten_error_message(error)
        raise ValueError(
            "the file is damaged: its description of the model is invalid "
            f"({reason}). {REMEDY}"
        ) from None


def check_digest_of_description(
    description: str, stored_digest: bytes | None, format_version: int
) -> None:
    """Raise an error unless a tensor of the file is the digest of the description."""
    if (
        format_version > 2
        and stored_digest != hashlib.sha256(description.encode()).digest()
    ):
        raise ValueError(
            "the file is damaged: its description of the model does not match "
            f"its tensors. {REMEDY}"
        )


def _upgrade_earlier_model_description(
    data: dict[str, Any], format_version: int
) -> dict[str, Any]:
    """Return the description of a file of an earlier version as this one has it."""

    def rename_keys_of_earlier_version(part: Any) -> Any:  # noqa: ANN401  any JSON value
        if not isinstance(part, dict):
            return part
        return {
            RENAMED_FIELDS.get(key, key): rename_keys_of_earlier_version(value)
            for key, value in part.items()
        }

    data = dict(data)
    if format_version == 1:
        plan, history = dict(data["plan"]), data.pop("visits")
        plan["adaptive_epochs"] = plan.pop("paced")
        data |= {
            "plan": plan,
            "history": [rename_keys_of_earlier_version(entry) for entry in history],
        }
    (target,) = data["schema"]["target"]["columns"]
    return {**data, "schema": {**data["schema"], "target": target}}
