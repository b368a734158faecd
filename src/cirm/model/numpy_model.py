"""Models that predict by NumPy alone, straight from their file.

Importing torch takes longer than predicting a few rows. Models that NumPy cannot
predict with, and files that are not as expected, are left to `cirm.model.file.load`,
which also explains what is wrong with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cirm.model.container import (
    DIGEST_TENSOR,
    EARLIER,
    MOST_VALUE,
    check_digest_of_description,
    parse_description_in_metadata,
    read_and_check_description_and_version,
    read_bytes_of_model_file,
)
from cirm.model.facts import ModelMetadata
from cirm.model.numpy_predict import (
    NumpyPredictor,
    build_numpy_predictor,
    predict_inputs_by_numpy,
)
from cirm.model.outputs import ArrayPredictions


@dataclass(frozen=True, eq=False, kw_only=True)
class NumpyModel(ModelMetadata):
    """A model as its file describes it, which can predict and nothing else.

    Attributes:
        predictor: What computes outputs.
    """

    predictor: NumpyPredictor

    def predict_from_inputs(self, inputs: NDArray[np.float32]) -> ArrayPredictions:
        """Return predictions for inputs [n, *shape]."""
        return predict_inputs_by_numpy(self.predictor, inputs, len(self.task.classes))


def load_numpy_model(path: str | Path, key: bytes = b"") -> NumpyModel | None:
    """Read a model that NumPy can predict with; None if it takes torch.

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
    content = read_bytes_of_model_file(path, where)
    text, version = read_and_check_description_and_version(content, where, key)
    try:
        model = _build_numpy_model(content, text, version)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None  # `load` says what is wrong
    return model if model is not None and _can_numpy_model_predict(model) else None


def _build_numpy_model(
    content: bytes, text: str, format_version: int
) -> NumpyModel | None:
    from safetensors.numpy import load as load_arrays

    data = parse_description_in_metadata(text, format_version)
    if data.adaptation is not None or data.plan.class_weight:
        return None  # explaining the one, and weighing classes, is the learner's
    arrays = load_arrays(content)
    binding = arrays.pop(DIGEST_TENSOR, None)
    digest = None if binding is None else binding.tobytes()
    check_digest_of_description(text, digest, format_version)
    if any(not name.startswith(("state.", EARLIER)) for name in arrays):
        return None
    state = {
        name.removeprefix("state."): array[0]
        for name, array in arrays.items()
        if name.startswith("state.")
    }
    floats = [array for array in state.values() if array.dtype.kind == "f"]
    if any(_do_tensors_contain_unusable_value(array) for array in floats):
        return None
    predictor = build_numpy_predictor(data.plan, state)
    facts = {name: value for name, value in vars(data).items() if name != "cirm"}
    return NumpyModel(predictor=predictor, **facts) if predictor else None


def _do_tensors_contain_unusable_value(array: NDArray[np.float64]) -> bool:
    """Return whether a number is NaN, or finite and too large."""
    return bool((~(np.abs(array) <= MOST_VALUE) & ~np.isinf(array)).any())


def _can_numpy_model_predict(model: NumpyModel) -> bool:
    """Return whether the model makes a finite prediction of the right shape."""
    inputs = np.zeros((1, *model.schema.treatment.shape), np.float32)
    try:
        with np.errstate(invalid="ignore"):
            mean = model.predict_from_inputs(inputs).mean
    except (ValueError, IndexError, TypeError):
        return False
    shape = (1, max(1, len(model.task.classes)))
    return mean.shape == shape and bool(np.isfinite(mean).all())
