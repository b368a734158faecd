"""Learning predictors that hold in places never seen, one place at a time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the aliases mark the names as public for type checkers
    __version__: str
    from cirm.data.periods import name_periods as name_periods
    from cirm.environments import Environment as Environment
    from cirm.environments import Problem as Problem
    from cirm.environments import Stage as Stage
    from cirm.environments import Stream as Stream
    from cirm.environments import Task as Task
    from cirm.estimator import InvariantClassifier as InvariantClassifier
    from cirm.estimator import InvariantRegressor as InvariantRegressor
    from cirm.evaluation.run import run as run
    from cirm.learners import create as create
    from cirm.learners.base import Learner as Learner
    from cirm.learners.base import PointState as PointState
    from cirm.model.adapt import adapt as adapt
    from cirm.model.compare import compare as compare
    from cirm.model.evaluate import evaluate as evaluate
    from cirm.model.file import load as load
    from cirm.model.file import save as save
    from cirm.model.fit import fit as fit
    from cirm.model.fit import update as update
    from cirm.model.model import Model as Model
    from cirm.model.predict import predict as predict
    from cirm.model.versions import rollback as rollback
    from cirm.networks import MLP as MLP
    from cirm.networks import ModuleNetwork as ModuleNetwork
    from cirm.randomness import Randomness as Randomness
    from cirm.training import Descent as Descent

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
    "Learner": "learners.base",
    "PointState": "learners.base",
    "run": "evaluation",
    "Model": "model.model",
    "fit": "model.fit",
    "update": "model.fit",
    "adapt": "model.adapt",
    "predict": "model.predict",
    "compare": "model.compare",
    "evaluate": "model.evaluate",
    "rollback": "model.versions",
    "save": "model.file",
    "load": "model.file",
    "name_periods": "data.periods",
    "InvariantClassifier": "estimator",
    "InvariantRegressor": "estimator",
}
"""The module or package of each public name, which is imported on first use."""

__all__ = [*_PUBLIC]

if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version  # takes 30 ms to import

            return version("cirm")
        if name not in _PUBLIC:
            raise AttributeError(f"module 'cirm' has no attribute {name!r}")
        return getattr(import_module(f"cirm.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
