"""A trained model as a value and a file: fit, update, predict, evaluate, inspect."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cirm.model.description import described
    from cirm.model.file import load, save
    from cirm.model.judgement import evaluate
    from cirm.model.learning import fit, update
    from cirm.model.predictions import predict, predicted
    from cirm.model.value import Model, Visit

DEFAULT_LEARNER = "cirm"
"""The learner that is used where none is named."""

_PUBLIC = {
    "Model": "value",
    "Visit": "value",
    "fit": "learning",
    "update": "learning",
    "predict": "predictions",
    "predicted": "predictions",
    "evaluate": "judgement",
    "described": "description",
    "save": "file",
    "load": "file",
}
"""Where each public name lives; it is loaded when it is first used."""

__all__ = [
    "DEFAULT_LEARNER",
    "Model",
    "Visit",
    "described",
    "evaluate",
    "fit",
    "load",
    "predict",
    "predicted",
    "save",
    "update",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  any public thing
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cirm.model' has no attribute {name!r}")
    return getattr(import_module(f"cirm.model.{_PUBLIC[name]}"), name)
