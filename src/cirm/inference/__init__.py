"""Inference of environments: what turns a stage into another before it is learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cirm.registry import Registry

if TYPE_CHECKING:
    from cirm.inference.eiil import EIIL

INFERENCE = {"eiil": "EIIL"}
"""Class by key; the module is named after the key."""

REGISTRY = Registry("inference", "cirm.inference", __name__, INFERENCE)
"""The ways to infer environments here and those that installed packages offer."""


def get_inference_class(key: str) -> type[EIIL]:
    """The class of a way to infer environments."""
    cls: type[EIIL] = REGISTRY.load(key)
    return cls


def summarize_inference(key: str) -> str:
    """One line about a way to infer environments."""
    return REGISTRY.describe(key)


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
