"""A trained model as a value and a file: fit, update, predict, evaluate, inspect."""

from cirm.model.description import describe_model
from cirm.model.evaluate import evaluate
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.model import Model, Visit
from cirm.model.predict import predict, predict_chunks

__all__ = [
    "Model",
    "Visit",
    "describe_model",
    "evaluate",
    "fit",
    "load",
    "predict",
    "predict_chunks",
    "save",
    "update",
]
