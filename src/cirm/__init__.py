"""Learning predictors that hold in places never seen, one place at a time."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("cirm")

_PUBLIC = {
    "Environment": "environments",
    "Problem": "environments",
    "Stage": "environments",
    "Stream": "environments",
    "Task": "environments",
    "Randomness": "randomness",
    "Descent": "training",
    "MLP": "networks",
    "ModuleNetwork": "networks",
    "create": "learners",
    "run": "evaluation",
    "Model": "model",
    "fit": "model",
    "update": "model",
    "predict": "model",
    "evaluate": "model",
    "save": "model",
    "load": "model",
    "InvariantClassifier": "estimator",
    "InvariantRegressor": "estimator",
}
"""Where each public name lives; it is loaded when it is first used."""

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:  # noqa: ANN401  any public thing
    if name not in _PUBLIC:
        raise AttributeError(f"module 'cirm' has no attribute {name!r}")
    return getattr(import_module(f"cirm.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
