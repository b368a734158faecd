"""The regressor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from cirm.data.batches import convert_to_array_or_table
from cirm.estimator.base import AnyInputs, InvariantEstimator


class InvariantRegressor(RegressorMixin, InvariantEstimator):  # type: ignore[misc]
    """Regressor that relies on what holds in every environment.

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

    Attributes:
        model_: The trained `cirm.Model`.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if they have any.

    Example:
        >>> import numpy as np
        >>> from cirm import InvariantRegressor
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> y = X[:, 0] + X[:, 1]
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = InvariantRegressor("erm", settings=settings).fit(X, y)
        >>> model.predict(X).shape
        (40,)
    """

    _task = "regression"

    def predict(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict the value of each row.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Values in the units of the target, [n].
        """
        mean = self._predict_inputs(X).mean[:, 0].double().numpy()
        target = self.model_.schema.target
        values: NDArray[np.float64] = target.centre + target.scale * mean
        return values

    def predict_uncertainty(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict how far the learner's networks disagree.

        Args:
            X: An array or tensor [n, ...] or a table, as for `fit`.

        Returns:
            Standard deviation of the values over the posterior samples or ensemble
            members, [n].
        """
        std: NDArray[np.float64] = self._predict_inputs(X).std[:, 0].double().numpy()
        return self.model_.schema.target.scale * std

    def _check_targets(
        self,
        y: AnyInputs,
        is_first_fit: bool,
        classes: Sequence[Any] | None,
        weights: NDArray[np.float64] | None = None,
    ) -> NDArray[Any]:
        values = column_or_1d(convert_to_array_or_table(y), warn=True)
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"InvariantRegressor: y has values of type {values.dtype}, which are "
                "not numbers. Use InvariantClassifier for classes."
            ) from None
