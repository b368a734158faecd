"""The model that is served, loaded again when its file is replaced."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cirm.data.schema import KIND_NAMES
from cirm.data.sources import DataFrameSource
from cirm.model.abstention import choose_abstention_threshold
from cirm.model.conformal import compute_conformal_thresholds
from cirm.model.facts import format_current_time
from cirm.model.file import load
from cirm.model.model import Model
from cirm.model.predict import predict_source_in_chunks

PROBABILITY = "probability of "  # how columns with the probability of a class begin


@dataclass(frozen=True, eq=False)
class LoadedModelWithDigest:
    """A model, the digest of its file, and when it was loaded (UTC)."""

    model: Model
    fingerprint: str
    time: str


class PredictionOptions(NamedTuple):
    """How a server predicts, as the options of `cirm predict` say."""

    fill_missing: bool = False
    sets: bool = False
    level: float = 0.9
    abstain: float | None = None


class ServedModelFile:
    """A model file that may be replaced while it is served.

    Before every prediction the file is looked at, which takes microseconds. If it was
    replaced, for example by `cirm update`, it is loaded; if that fails, the model that
    was loaded before stays in use and `problem` says why. All methods are meant for
    one thread at a time.

    Args:
        path: The model file.
        options: Further arguments of `cirm.load`, for example `key`.
        how: How to predict.

    Raises:
        ValueError: If the model cannot be loaded, reads images or arrays, or cannot
            predict in this way.
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        how: PredictionOptions = PredictionOptions(),  # noqa: B008  frozen
    ) -> None:
        self.path, self.options, self.how = path, dict(options), how
        self.problem = ""
        self._stamp = self._read_file_time_and_size()
        self.current = self._load_model()

    def reload_model_if_file_changed(self) -> None:
        """Load the model again if its file was replaced."""
        try:
            stamp = self._read_file_time_and_size()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self.current = self._load_model()
            self.problem = ""
        except (ValueError, OSError) as error:
            self.problem = f"{error} The model that was loaded before is still in use."

    def predict(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """Return the predictions for a table, and notes on its rows."""
        notes: list[str] = []
        source = DataFrameSource(frame, where="request")
        parts = predict_source_in_chunks(
            self.current.model,
            source,
            probabilities=True,
            notes=notes,
            **self.how._asdict(),
        )
        return pd.concat(list(parts), ignore_index=True), list(dict.fromkeys(notes))

    def _read_file_time_and_size(self) -> tuple[int, int, int]:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _load_model(self) -> LoadedModelWithDigest:
        model = load(self.path, **self.options)
        if model.schema.treatment.kind != "table":
            kind = KIND_NAMES[model.schema.treatment.kind]
            raise ValueError(
                f"file {str(self.path)!r}: the model was trained on {kind}, but only "
                "models of tables can be served. Use `cirm predict` for this model."
            )
        if self.how.sets or not model.task.classes:
            compute_conformal_thresholds(model, self.how.level)
        if self.how.abstain is not None:
            choose_abstention_threshold(model, self.how.abstain)
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]
        return LoadedModelWithDigest(model, digest, format_current_time())


def format_predictions_for_json(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return predictions as plain values for JSON, one dictionary per row.

    The probabilities of all classes are gathered under `probabilities`.
    """
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    shares = {
        name.removeprefix(PROBABILITY): name
        for name in columns
        if name.startswith(PROBABILITY)
    }
    rows = []
    for cells in zip(*columns.values(), strict=True):
        row = dict(zip(columns, map(_replace_nan_by_none, cells), strict=True))
        if shares:
            row["probabilities"] = {
                label: row.pop(name) for label, name in shares.items()
            }
        rows.append(row)
    return rows


def _replace_nan_by_none(cell: object) -> object:
    return None if isinstance(cell, float) and math.isnan(cell) else cell
