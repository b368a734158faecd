"""Inference of environments: what turns a stage into another before it is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cirm import registry

if TYPE_CHECKING:
    from cirm.inference.eiil import EIIL

INFERENCE = {"eiil": "EIIL"}
"""Class by key; the module is named after the key."""


def get_inference_class(key: str) -> type[EIIL]:
    """The class of a way to infer environments."""
    found: type[EIIL] = registry.find(__name__, INFERENCE, key)
    return found


def describe(key: str) -> str:
    """One line about a way to infer environments."""
    return registry.description(__file__, key)


def create_inference(
    key: str, settings: Mapping[str, Any] | None = None, preset: str = ""
) -> EIIL:
    """A way to infer environments; settings go over the preset's."""
    cls = get_inference_class(key)
    if preset and preset not in cls.presets:
        listed = ", ".join(cls.presets)
        raise ValueError(f"inference {key}: presets are {listed}; got {preset!r}")
    chosen = {**(cls.presets[preset] if preset else {}), **(settings or {})}
    known = [field.name for field in dataclasses.fields(cls)]
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"inference {key}: settings are {', '.join(known)}; got {name!r}"
            )
    return cls(**chosen)
