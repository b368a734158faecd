"""The model that is served, loaded again when its file is replaced."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cirm.data.schema import KIND_NAMES
from cirm.data.sources import FrameSource
from cirm.model.file import load
from cirm.model.model import Model, format_current_time
from cirm.model.predict import predict_chunks

PROBABILITY = "probability of "  # how columns with the probability of a class begin


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model, the digest of its file, and when it was loaded (UTC)."""

    model: Model
    fingerprint: str
    time: str


class ServedModel:
    """A model file that may be replaced while it is served.

    Before every prediction the file is looked at, which takes microseconds. If it was
    replaced, for example by `cirm update`, it is loaded; if that fails, the model that
    was loaded before stays in use and `problem` says why. All methods are meant for
    one thread at a time.

    Args:
        path: The model file.
        options: Further arguments of `cirm.load`, for example `key`.
        fill_missing: Whether values that rows lack count as missing.

    Raises:
        ValueError: If the model cannot be loaded, or reads images or arrays.
    """

    def __init__(
        self, path: Path, options: Mapping[str, Any], fill_missing: bool = False
    ) -> None:
        self.path, self.options, self.fill_missing = path, dict(options), fill_missing
        self.problem = ""
        self._stamp = self._read_stamp()
        self.current = self._load()

    def refresh(self) -> None:
        """Load the model again if its file was replaced."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self.current = self._load()
            self.problem = ""
        except (ValueError, OSError) as error:
            self.problem = f"{error} The model that was loaded before is still in use."

    def predict(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """Return the predictions for a table, and notes on its rows."""
        notes: list[str] = []
        source = FrameSource(frame, where="request")
        parts = predict_chunks(
            self.current.model,
            source,
            probabilities=True,
            fill_missing=self.fill_missing,
            notes=notes,
        )
        return pd.concat(list(parts), ignore_index=True), list(dict.fromkeys(notes))

    def _read_stamp(self) -> tuple[int, int, int]:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _load(self) -> LoadedModel:
        model = load(self.path, **self.options)
        if model.schema.treatment.kind != "table":
            kind = KIND_NAMES[model.schema.treatment.kind]
            raise ValueError(
                f"file {str(self.path)!r}: the model reads {kind}, but only models of "
                "tables can be served. Use `cirm predict`."
            )
        digest = hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]
        return LoadedModel(model, digest, format_current_time())


def format_predictions(frame: pd.DataFrame) -> list[dict[str, Any]]:
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
        row = dict(zip(columns, map(_replace_nan, cells), strict=True))
        if shares:
            row["probabilities"] = {
                label: row.pop(name) for label, name in shares.items()
            }
        rows.append(row)
    return rows


def _replace_nan(cell: object) -> object:
    return None if isinstance(cell, float) and math.isnan(cell) else cell
