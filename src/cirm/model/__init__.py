"""Trained models: fit, update, predict, evaluate, inspect, save and load them."""

from cirm.model.evaluate import evaluate
from cirm.model.explain import describe_model
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.model import HistoryEntry, Model
from cirm.model.predict import predict, predict_chunks

__all__ = [
    "HistoryEntry",
    "Model",
    "describe_model",
    "evaluate",
    "fit",
    "load",
    "predict",
    "predict_chunks",
    "save",
    "update",
]
