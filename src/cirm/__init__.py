"""Learning predictors that hold in places never seen, one place at a time."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cirm.environments import Environment, Problem, Stage, Stream, Task
    from cirm.estimator import InvariantClassifier, InvariantRegressor
    from cirm.evaluation.run import run
    from cirm.learners import create
    from cirm.model.evaluate import evaluate
    from cirm.model.file import load, save
    from cirm.model.fit import fit, update
    from cirm.model.model import Model
    from cirm.model.predict import predict
    from cirm.networks import MLP, ModuleNetwork
    from cirm.randomness import Randomness
    from cirm.training import Descent

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

__all__ = [
    "MLP",
    "Descent",
    "Environment",
    "InvariantClassifier",
    "InvariantRegressor",
    "Model",
    "ModuleNetwork",
    "Problem",
    "Randomness",
    "Stage",
    "Stream",
    "Task",
    "create",
    "evaluate",
    "fit",
    "load",
    "predict",
    "run",
    "save",
    "update",
]

if not TYPE_CHECKING:  # else a checker would take any name for a public one

    def __getattr__(name: str) -> object:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'cirm' has no attribute {name!r}")
        return getattr(import_module(f"cirm.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
