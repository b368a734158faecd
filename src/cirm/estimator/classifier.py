"""The classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cirm.data.batches import convert_to_array_or_table
from cirm.data.values import WHOLE_NUMBER, is_word_for_missing_value
from cirm.estimator.base import AnyInputs, InvariantEstimator, RandomState
from cirm.learners import DEFAULT_LEARNER
from cirm.model.model import Model, NetworkLike
from cirm.model.rare_classes import ClassWeight
from cirm.model.threshold import predict_classes_by_threshold

if TYPE_CHECKING:
    from cirm.learners import LearnerLike


class InvariantClassifier(ClassifierMixin, InvariantEstimator):  # type: ignore[misc]
    """Classifier that relies on what holds in every environment.

    Args:
        learner: The learning algorithm: a key (`cirm list learners` shows them), the
            name of an entry point, an import path "package.module:Class", a subclass
            of `Learner`, or an instance.
        network: The network: a name ("mlp", "cnn", "linear", or one that an installed
            package offers), or your own torch module, whose last layer must be linear.
            Training starts from a copy of its weights; `ModuleNetwork` can freeze parts
            of it. By default a multi-layer perceptron, as the settings describe it.
        settings: Settings of the learner, its optimiser and its network by name.
        preset: Name of a group of settings that the learner offers.
        seed: Seed of all random draws.
        random_state: The same in scikit-learn's forms: a number, or a `RandomState`
            that a seed is drawn from at each fit. It overrides `seed`.
        device: Torch device to train on.
        order: "joint" to train on all environments of a call together, "sequential"
            to train on one after another, or the number in each stage, as "2+1".
        held_out: Fraction of each environment that is used only for evaluation.
        categories: Columns of numbers that are codes of categories.
        unstable: Columns whose meaning differs between environments, as you know. The
            learner must have such a setting, as "steady" does.
        stable: Columns whose meaning is the same in all environments, as you know.
        class_weight: How much a row of each class counts in training: a dictionary of
            weights by class, or "balanced" for weights that make all classes count
            alike in the data of the first fit.

    Attributes:
        model_: The trained `cirm.Model`.
        classes_: The classes, [classes].
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if they have any.

    Example:
        >>> import numpy as np
        >>> from cirm import InvariantClassifier
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> y = np.where(X[:, 0] + X[:, 1] > 0, "ill", "well")
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = InvariantClassifier("erm", settings=settings)
        >>> model = model.fit(X, y, environments=["a", "b"] * 20)
        >>> model.classes_.tolist(), model.predict_proba(X).shape
        (['ill', 'well'], (40, 2))
    """

    _task = "classification"

    def __init__(
        self,
        learner: LearnerLike = DEFAULT_LEARNER,
        *,
        network: NetworkLike | None = None,
        settings: Mapping[str, Any] | None = None,
        preset: str = "",
        seed: int = 0,
        random_state: RandomState = None,
        device: str = "cpu",
        order: str = "joint",
        held_out: float = 0.1,
        categories: Sequence[str] = (),
        unstable: Sequence[str] = (),
        stable: Sequence[str] = (),
        class_weight: Mapping[Any, float] | str | None = None,
    ) -> None:
        super().__init__(
            learner,
            network=network,
            settings=settings,
            preset=preset,
            seed=seed,
            random_state=random_state,
            device=device,
            order=order,
            held_out=held_out,
            categories=categories,
            unstable=unstable,
            stable=stable,
        )
        self.class_weight = class_weight

    def predict(self, X: AnyInputs) -> NDArray[Any]:
        """Predict the class of each row: the most likely one, or by the threshold.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Classes, [n].
        """
        mean = torch.from_numpy(self.predict_proba(X))
        threshold = self.model_.threshold
        decided = predict_classes_by_threshold(
            mean, self.model_.task.classes, threshold
        )
        return self.classes_[decided.numpy()]

    def predict_proba(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict the probability of each class.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Probabilities, [n, classes], in the order of `classes_`.
        """
        mean: NDArray[np.float64] = self._predict_inputs(X).mean.double().numpy()
        return mean / mean.sum(1, keepdims=True)

    def predict_log_proba(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict the logarithm of the probability of each class.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Logarithms, [n, classes], in the order of `classes_`.
        """
        # The smallest positive number, so that the logarithm is finite.
        least = np.finfo(np.float64).tiny
        logs: NDArray[np.float64] = np.log(np.maximum(self.predict_proba(X), least))
        return logs

    def decision_function(self, X: AnyInputs) -> NDArray[np.float64]:
        """Score the classes; the highest score is predicted.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Of two classes the log odds of the second one [n], less those of the
            threshold if the model has one, so that positive scores predict it. Of more
            classes the logarithms of their probabilities, [n, classes].
        """
        logs = self.predict_log_proba(X)
        if len(self.classes_) != 2:
            return logs
        odds: NDArray[np.float64] = logs[:, 1] - logs[:, 0]
        threshold = self.model_.threshold
        if threshold is None:
            return odds
        shift = math.log(threshold.value / (1 - threshold.value))
        is_second = threshold.positive == self.model_.task.classes[1]
        return odds - (shift if is_second else -shift)

    def predict_uncertainty(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict how far the learner's networks disagree.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Standard deviation of the probabilities over the posterior samples or
            ensemble members, [n, classes].
        """
        return self._predict_inputs(X).std.double().numpy()

    def _set_trained_model(self, model: Model) -> None:
        super()._set_trained_model(model)
        if not hasattr(self, "classes_"):
            self.classes_ = _restore_class_labels(model.task.classes)

    def _list_declared_classes(self) -> Sequence[str]:
        return [_convert_label_to_text(label) for label in self.classes_]

    def _get_class_weights(self) -> ClassWeight:
        if self.class_weight is None or isinstance(self.class_weight, str):
            return self.class_weight
        return {
            _convert_label_to_text(name): value
            for name, value in self.class_weight.items()
        }

    def _check_targets(
        self,
        y: AnyInputs,
        is_first_fit: bool,
        classes: Sequence[Any] | None,
        weights: NDArray[np.float64] | None = None,
    ) -> NDArray[Any]:
        labels = column_or_1d(convert_to_array_or_table(y), warn=True)
        if labels.dtype == object and (gaps := pd.isna(labels)).any():
            raise ValueError(
                f"{type(self).__name__}: the target of row {int(gaps.argmax())} "
                "(counted from 0) is missing. Leave out rows without a target."
            )
        check_classification_targets(labels)
        if is_first_fit:
            counted = labels if weights is None else labels[weights > 0]
            self.classes_ = np.unique(counted if classes is None else classes)
            if len(self.classes_) < 2:
                # scikit-learn's checks look for the words "1 class".
                raise ValueError(
                    "InvariantClassifier: y has 1 class, but two or more are needed. "
                    "If other classes come later, use partial_fit and list all of "
                    "them with classes=."
                )
        return np.array([_convert_label_to_text(label) for label in labels], object)


def _convert_label_to_text(label: object) -> str:
    """Return the name of a class as tables have it: 1 for a label of 1.0."""
    text = WHOLE_NUMBER.sub(r"\1", str(label).strip())
    if is_word_for_missing_value(text):
        raise ValueError(
            f"InvariantClassifier: the class {str(label)!r} reads as a missing value "
            "in tables. Rename the class."
        )
    return text


def _restore_class_labels(names: Sequence[str]) -> NDArray[Any]:
    """Convert classes from the text of a file to their original type."""
    if all(name.lstrip("-").isdecimal() for name in names):
        return np.array([int(name) for name in names])
    if set(names) == {"False", "True"}:
        return np.array([name == "True" for name in names])
    return np.array(names)
