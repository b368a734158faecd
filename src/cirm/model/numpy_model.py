"""Models that predict by NumPy alone, straight from their file.

Importing torch takes longer than predicting a few rows. Where a prediction is a network
of fully connected layers or a generalised linear model, the tensors of the file and a
few lines of NumPy are enough. Any other model, and any file that is not as expected, is
left to `cirm.model.file.load`, which also explains what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cirm.learners import NETWORK_LEARNERS
from cirm.model.container import (
    DIGEST_TENSOR,
    EARLIER,
    check_description_matches,
    parse_file_description,
    read_checked_description,
    read_file_content,
)
from cirm.model.facts import ModelFacts
from cirm.model.outputs import ArrayPredictions, summarise_outputs

ROWS_AT_ONCE = 2048  # rows predicted at once, so that the layers stay in the cache
BASIS = ("centre", "scale", "limit", "knots", "slopes", "pairs", "factors")
"""The parts of the basis of `steady`; a file with others is left to torch."""

DTYPES = {"params": np.float32, "basis.pairs": np.int64}
"""Types of the arrays that are not of double precision."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class NumpyModel(ModelFacts):
    """A model as its file describes it, which can predict and nothing else.

    Attributes:
        arrays: The tensors of the state that predictions use, by path, without the
            replica axis.
    """

    arrays: Mapping[str, Array]

    def predict_inputs(self, inputs: NDArray[np.float32]) -> ArrayPredictions:
        """Return predictions for inputs [n, *shape]."""
        rows = inputs.reshape(len(inputs), -1)
        compute = run_columns if self.plan.learner == "steady" else self.run_network
        pieces = [
            summarise_outputs(
                compute(self.arrays, rows[start : start + ROWS_AT_ONCE]),
                len(self.task.classes),
            )
            for start in range(0, len(rows), ROWS_AT_ONCE)
        ]
        return ArrayPredictions(*map(np.concatenate, zip(*pieces, strict=True)))

    def run_network(self, arrays: Mapping[str, Array], rows: Array) -> Array:
        """Return outputs [1, n, k] of the network of a plan for rows [n, d]."""
        last = len(self.layers) - 1
        for index, (weight, bias) in enumerate(self.layers):
            rows = rows @ weight + bias
            if index < last and self.plan.network["activation"] == "elu":
                rows = np.where(rows > 0, rows, np.expm1(np.minimum(rows, 0)))
            elif index < last and self.plan.network["activation"] == "relu":
                rows = np.maximum(rows, 0)
        return rows[None]

    @cached_property
    def layers(self) -> list[tuple[Array, Array]]:
        """Weights [in, out] and biases [out] of the layers of a network."""
        layers, start, params = [], 0, self.arrays["params"]
        for width, outputs in pairwise(self.plan.network["sizes"]):
            middle, end = start + width * outputs, start + (width + 1) * outputs
            weight = params[start:middle].reshape(width, outputs)
            layers.append((weight, params[middle:end]))
            start = end
        if start != len(params):
            raise ValueError("the parameters are not those of the layers")
        return layers


def run_columns(arrays: Mapping[str, Array], rows: Array) -> Array:
    """Return outputs [samples, n, k] of the columns engine of `steady` for rows [n, d].

    The basis functions are the standardised features, their hinges, products of two
    features, and a constant; see `cirm.learners.steady.columns_basis`.
    """
    centre, scale, limit, knots, slopes, pairs, factors = (
        arrays[f"basis.{name}"] for name in BASIS
    )
    features = ((rows - centre) * scale).clip(-limit, limit).astype(np.float32)
    hinges = np.maximum(features[:, None] - knots.astype(np.float32), 0)
    hinges *= slopes.astype(np.float32)
    products = features[:, pairs[:, 0]] * features[:, pairs[:, 1]]
    products *= factors.astype(np.float32)
    one = np.ones((len(rows), 1), np.float32)
    basis = np.concatenate([features, hinges.reshape(len(rows), -1), products, one], 1)
    coefficients = arrays["predictor.coefficients"].astype(np.float32)
    samples, outputs, size = coefficients.shape
    flat = basis @ coefficients.reshape(samples * outputs, size).T
    levels = arrays["predictor.levels"].astype(np.float32)
    return np.moveaxis(flat.reshape(-1, samples, outputs), 0, 1) + levels[:, None]


def load_numpy_model(path: str | Path, key: bytes = b"") -> NumpyModel | None:
    """Read a model that NumPy can predict with; None if it takes torch.

    Args:
        path: A file that `save` or `cirm fit` has written.
        key: The secret that the file was signed with, if signatures are to be checked.

    Returns:
        The model, whose predictions equal those of `load` but for rounding.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, is not a model file, was written by a newer
            version, or was not signed with the key.

    Example:
        >>> import os, tempfile
        >>> import pandas as pd
        >>> from cirm import fit, predict, save
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(fit(table, "ill"), os.path.join(folder, "model.cirm"))
        ...     model = load_numpy_model(os.path.join(folder, "model.cirm"))
        >>> len(predict(model, table[:3]))
        3
    """
    path = Path(path)
    where = f"model file {str(path)!r}"
    content = read_file_content(path, where)
    text, version = read_checked_description(content, where, key)
    try:
        model = _build_numpy_model(content, text, version)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None  # `load` says what is wrong
    return model if model is not None and _can_predict(model) else None


def _build_numpy_model(content: bytes, text: str, version: int) -> NumpyModel | None:
    from safetensors.numpy import load as load_arrays

    data = parse_file_description(text, version)
    has_network = data.plan.learner in NETWORK_LEARNERS
    has_network &= data.plan.network["kind"] == "mlp"
    has_columns = data.plan.learner == "steady"
    has_columns &= data.plan.settings.get("view") == "columns"
    is_plain = data.adaptation is None and not data.plan.class_weight
    if not (is_plain and (has_network or has_columns)):
        return None
    arrays = load_arrays(content)
    binding = arrays.pop(DIGEST_TENSOR, None)
    digest = None if binding is None else binding.tobytes()
    check_description_matches(text, digest, version)
    if any(not n.startswith(("state.", EARLIER)) for n in arrays):
        return None
    used = ("params",) if has_network else ("basis.", "predictor.")
    state = {
        name.removeprefix("state."): array[0]
        for name, array in arrays.items()
        if name.removeprefix("state.").startswith(used)
    }
    parts = {name for name in state if name.startswith("basis.")}
    if has_columns and parts != {f"basis.{name}" for name in BASIS}:
        return None
    facts = {name: value for name, value in vars(data).items() if name != "cirm"}
    return NumpyModel(arrays=state, **facts)


def _can_predict(model: NumpyModel) -> bool:
    """Return whether the numbers are finite, and one prediction can be made."""
    for name, array in model.arrays.items():
        if array.dtype != DTYPES.get(name, np.float64) or not np.isfinite(array).all():
            return False
    inputs = np.zeros((1, *model.schema.treatment.shape), np.float32)
    try:
        mean = model.predict_inputs(inputs).mean
    except (ValueError, IndexError):
        return False
    shape = (1, max(1, len(model.task.classes)))
    return mean.shape == shape and bool(np.isfinite(mean).all())
