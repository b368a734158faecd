"""Inference of environments: split a stage into new environments before training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cirm.registry import NamedClassRegistry

if TYPE_CHECKING:
    from cirm.inference.eiil import EIIL

INFERENCE = {"eiil": "EIIL"}
"""Class name by key; the module is named after the key."""

REGISTRY = NamedClassRegistry("inference", "cirm.inference", __name__, INFERENCE)
"""The built-in ways to infer environments and those that installed packages offer."""


def get_inference_class(key: str) -> type[EIIL]:
    """Return the class of a way to infer environments.

    Args:
        key: A key such as "eiil", the name of an entry point of the group
            `cirm.inference`, or an import path `package.module:Class`.

    Raises:
        ValueError: If there is no such class, or it cannot be imported.
    """
    cls: type[EIIL] = REGISTRY.load(key)
    return cls


def create_inference(
    key: str, settings: Mapping[str, Any] | None = None, preset: str = ""
) -> EIIL:
    """Create a way to infer environments.

    Example:
        >>> create_inference("eiil", {"steps": 100}, "paper").hidden
        (390, 390)
    """
    cls = get_inference_class(key)
    if preset and preset not in cls.presets:
        raise ValueError(
            f"--infer {key}: there is no preset {preset!r}. Choose one of "
            f"{', '.join(cls.presets)}."
        )
    values = {**(cls.presets[preset] if preset else {}), **(settings or {})}
    known = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            raise ValueError(
                f"--infer {key}: there is no setting {name!r}. Choose one of "
                f"{', '.join(known)}."
            )
    return cls(**values)
