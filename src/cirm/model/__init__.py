"""Trained models: fit, update, adapt, predict, evaluate, inspect and store them."""

from cirm.model.adapt import adapt
from cirm.model.compare import compare
from cirm.model.difference import describe_differences
from cirm.model.evaluate import evaluate
from cirm.model.explain import describe_model
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.model import Adaptation, HistoryEntry, Model
from cirm.model.predict import predict, predict_chunks
from cirm.model.versions import rollback

__all__ = [
    "Adaptation",
    "HistoryEntry",
    "Model",
    "adapt",
    "compare",
    "describe_differences",
    "describe_model",
    "evaluate",
    "fit",
    "load",
    "predict",
    "predict_chunks",
    "rollback",
    "save",
    "update",
]
