"""Estimators in scikit-learn's manner: a classifier and a regressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cirm.data.batches import as_array
from cirm.data.sources import Source
from cirm.estimator.base import Anything, InvariantEstimator
from cirm.model.model import Model

__all__ = ["InvariantClassifier", "InvariantRegressor"]


class InvariantClassifier(ClassifierMixin, InvariantEstimator):  # type: ignore[misc]
    """Classes, predicted by what holds in every environment."""

    _task = "classification"

    def predict(self, X: Anything) -> NDArray[Any]:
        """The likeliest class of each row, [n]."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Anything) -> NDArray[np.float64]:
        """Class probabilities, [n, classes]."""
        chances: NDArray[np.float64] = self._answers(X).mean.double().numpy()
        return chances / chances.sum(1, keepdims=True)

    def uncertainty(self, X: Anything) -> NDArray[np.float64]:
        """Standard deviation of the probabilities over the posterior's draws."""
        return self._answers(X).spread.double().numpy()

    def _take(self, model: Model) -> None:
        super()._take(model)
        if not hasattr(self, "classes_"):
            self.classes_ = labels_of(model.task.classes)

    def _classes_of(self, source: Source) -> Sequence[str]:
        return [str(label) for label in self.classes_]

    def _targets(
        self, y: Anything, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        labels = column_or_1d(as_array(y), warn=True)
        check_classification_targets(labels)
        if first:
            self.classes_ = np.unique(labels if classes is None else classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    "InvariantClassifier: y must have two or more classes; got 1 class"
                )
        return np.array([str(label) for label in labels], dtype=object)


class InvariantRegressor(RegressorMixin, InvariantEstimator):  # type: ignore[misc]
    """Values, predicted by what holds in every environment."""

    _task = "regression"

    def predict(self, X: Anything) -> NDArray[np.float64]:
        """The value of each row, [n]."""
        values = self._answers(X).mean[:, 0].double().numpy()
        target = self.model_.schema.target
        predicted: NDArray[np.float64] = target.centre + target.scale * values
        return predicted

    def uncertainty(self, X: Anything) -> NDArray[np.float64]:
        """Standard deviation of the values over the posterior's draws, [n]."""
        spread: NDArray[np.float64] = self._answers(X).spread[:, 0].double().numpy()
        return self.model_.schema.target.scale * spread

    def _targets(
        self, y: Anything, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        values = column_or_1d(as_array(y), warn=True)
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"InvariantRegressor: y must be numbers; got {values.dtype}"
            ) from None


def labels_of(names: Sequence[str]) -> NDArray[Any]:
    """Classes as they were before a file held them as text: whole numbers, or text."""
    if all(name.lstrip("-").isdecimal() for name in names):
        return np.array([int(name) for name in names])
    if set(names) == {"False", "True"}:
        return np.array([name == "True" for name in names])
    return np.array(names)
