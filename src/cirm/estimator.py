"""Estimators with the interface of scikit-learn: a classifier and a regressor.

An environment is a place that data come from. `fit` starts with the environments it is
given, `partial_fit` continues with one more. See `cirm.fit` for what the first
environment decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from cirm.data.batches import ENVIRONMENT, TARGET, Batches, to_array
from cirm.data.rows import encode_chunk
from cirm.data.sources import Array, Chunk, Frame, Source, name_array_columns
from cirm.learners import DEFAULT_LEARNER
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.metrics import Predictions
from cirm.model.model import Model, NetworkLike
from cirm.model.predict import predict_inputs
from cirm.networks import Network

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

__all__ = ["InvariantClassifier", "InvariantRegressor"]

AnyInputs = Any
"""An array, a tensor, a DataFrame, or an iterable of batches."""


class InvariantEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor have in common."""

    model_: Model
    _task: Any = "auto"

    def __init__(
        self,
        learner: LearnerLike = DEFAULT_LEARNER,
        *,
        network: NetworkLike | None = None,
        settings: Mapping[str, Any] | None = None,
        preset: str = "",
        seed: int = 0,
        device: str = "cpu",
        order: str = "joint",
        held_out: float = 0.1,
        categories: Sequence[str] = (),
    ) -> None:
        self.learner = learner
        self.network = network
        self.settings = settings
        self.preset = preset
        self.seed = seed
        self.device = device
        self.order = order
        self.held_out = held_out
        self.categories = categories

    def fit(
        self,
        X: AnyInputs,
        y: AnyInputs = None,
        environments: Sequence[Any] | None = None,
    ) -> Self:
        """Fit a new model.

        Args:
            X: An array or tensor [n, ...] or a DataFrame. Missing values are
                allowed. Or an iterable of batches (inputs, targets) or (inputs,
                targets, environments); `y` is then left out.
            y: Targets [n].
            environments: Name of the environment of each row, [n]. Without it, all
                rows are one environment.

        Returns:
            The estimator.

        Raises:
            ValueError: If inputs, targets or settings are invalid.
        """
        source = self._make_source(X, y, environments, first=True)
        return self._fit_source(source)

    def partial_fit(
        self,
        X: AnyInputs,
        y: AnyInputs = None,
        environment: str = "",
        classes: Sequence[Any] | None = None,
        accept_units: bool = False,
    ) -> Self:
        """Continue training with one more environment; the first call starts.

        Args:
            X: The inputs, as for `fit`.
            y: Targets [n].
            environment: Name of the environment. By default "environment" and a number.
            classes: At the first call of a classifier, all classes that will ever
                occur. By default those in `y`.
            accept_units: Whether to train on numbers that look like another unit than
                in the first environment. Otherwise they raise an error.

        Returns:
            The estimator.

        Raises:
            ValueError: If inputs, targets or settings are invalid.
        """
        known = len(self.model_.history) if hasattr(self, "model_") else 0
        name = environment or f"environment {known}"
        names = None if y is None else [name] * len(y)
        source = self._make_source(X, y, names, first=not known, classes=classes)
        if not known:
            return self._fit_source(source)
        self.model_ = update(
            self.model_, source, order=self.order, accept_units=accept_units, again=True
        )
        self._warn(known)
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a file, which the `cirm` commands can read too.

        Args:
            path: Where to write it. An existing file is replaced.
        """
        check_is_fitted(self, "model_")
        save(self.model_, path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: nn.Module | Network | None = None,
        learner: LearnerLike | None = None,
    ) -> Self:
        """Read an estimator from a file.

        Args:
            path: A file that `save`, `cirm.save` or `cirm fit` has written.
            network: For a model that was trained with your own torch module, a module
                of the same architecture.
            learner: For a model that was trained with a learner which is neither built
                in nor offered by an installed package, its class.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: If the file is damaged or holds a model for another task.
        """
        model = load(path, network, learner=learner)
        if cls._task not in ("auto", model.task.kind):
            raise ValueError(
                f"{str(path)!r} holds a {model.task.kind} model, but "
                f"{cls.__name__} needs a {cls._task} model. Load it with the other "
                "estimator."
            )
        plan = model.plan
        epochs = model.learner.epoch_settings if plan.adaptive_epochs else ()
        settings = {n: v for n, v in plan.settings.items() if n not in epochs}
        if network is None:
            settings |= model.learner.network.get_settings()
        estimator = cls(
            learner=plan.learner if learner is None else learner,
            network=network,
            settings=settings,
            seed=plan.seed,
            held_out=plan.held_out,
        )
        estimator._set_model(model)
        estimator._set_feature_names(model)
        return estimator

    def _set_feature_names(self, model: Model) -> None:
        """Set the attributes in which scikit-learn keeps the columns."""
        encoding = model.schema.treatment.encoding
        if encoding is None:
            return
        names = [column.name for column in encoding.columns]
        self.n_features_in_ = len(names)
        if names != list(name_array_columns(len(names))):
            self.feature_names_in_ = np.array(names, dtype=object)

    def _fit_source(self, source: Source) -> Self:
        model = fit(
            source,
            learner=self.learner,
            settings=self.settings,
            preset=self.preset,
            network=self.network,
            seed=self.seed,
            device=self.device,
            order=self.order,
            held_out=self.held_out,
            task=self._task,
            classes=self._list_classes(),
            categories=self.categories,
        )
        self._set_model(model)
        self._warn()
        return self

    def _warn(self, known: int = 0) -> None:
        """Show the notes of the environments after the first so many ones."""
        notes = [note for entry in self.model_.history[known:] for note in entry.notes]
        for note in dict.fromkeys(notes):
            warnings.warn(note, UserWarning, stacklevel=4)

    def _set_model(self, model: Model) -> None:
        self.model_ = model

    def _list_classes(self) -> Sequence[str]:
        return ()

    def _check_targets(
        self, y: AnyInputs, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        raise NotImplementedError

    def _make_source(
        self,
        X: AnyInputs,
        y: AnyInputs,
        environments: Sequence[Any] | None,
        first: bool,
        classes: Sequence[Any] | None = None,
    ) -> Source:
        """Return the rows with their targets and environments."""
        if y is None:
            if hasattr(X, "shape") or hasattr(X, "__array__"):
                # scikit-learn's checks look for these words.
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y "
                    "is None"
                )
            return self._make_batch_source(X, first, classes)
        inputs = self._check_inputs(X, first)
        targets = self._check_targets(y, first, classes)
        if len(inputs) != len(targets):
            raise ValueError(
                f"{type(self).__name__}: X has {len(inputs)} rows and y has "
                f"{len(targets)}. They must have the same number."
            )
        columns: dict[str, Any] = {TARGET: targets}
        names = {"target": TARGET}
        if environments is not None:
            columns[ENVIRONMENT] = self._check_environments(environments, len(targets))
            names["environment"] = ENVIRONMENT
        if not isinstance(inputs, pd.DataFrame):
            return Array(inputs, pd.DataFrame(columns), "data", "X", **names)
        if clash := set(columns) & set(inputs.columns):
            raise ValueError(
                f"{type(self).__name__}: the column name {min(clash)!r} of X is "
                "reserved. Rename the column."
            )
        frame = inputs.reset_index(drop=True)
        return Frame(frame.assign(**columns), "data", "X", **names)

    def _make_batch_source(
        self, X: AnyInputs, first: bool, classes: Sequence[Any] | None
    ) -> Source:
        source = Batches(X, "data", "X")
        pieces = [chunk.frame[TARGET].to_numpy() for chunk in source.chunks()]
        self._check_targets(np.concatenate(pieces), first, classes)
        return source

    def _check_environments(
        self, environments: Sequence[Any], count: int
    ) -> NDArray[Any]:
        names = np.asarray(to_array(environments))
        if pd.isna(names).any():
            raise ValueError(
                f"{type(self).__name__}: row {int(pd.isna(names).argmax())} has no "
                "environment. Name one for each row."
            )
        if len(names) != count:
            raise ValueError(
                f"{type(self).__name__}: there are {len(names)} environments for "
                f"{count} rows. Name one for each row."
            )
        return names.astype(str)

    def _check_inputs(self, X: AnyInputs, first: bool) -> Any:  # noqa: ANN401
        """Return inputs as a DataFrame or, if they have more axes, as an array."""
        if isinstance(X, Tensor):
            X = to_array(X)
        if getattr(X, "ndim", 2) > 2:
            return np.asarray(X)
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=first, skip_check_array=True)
            return X.set_axis([str(name) for name in X.columns], axis=1)
        array = validate_data(
            self,
            X,
            reset=first,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if first else 1,
            dtype="numeric",
        )
        return pd.DataFrame(array, columns=name_array_columns(array.shape[1]))

    def _predict_inputs(self, X: AnyInputs) -> Predictions:
        check_is_fitted(self, "model_")
        chunk = _make_chunk(self._check_inputs(X, first=False))
        encoded = encode_chunk(chunk, self.model_.schema, "X")
        return predict_inputs(self.model_, encoded, exact=True)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


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
        device: Torch device to train on.
        order: "joint" to train on all environments of a call together, "sequential"
            to train on one after another, or the number in each stage, as "2+1".
        held_out: Fraction of each environment that is used only for evaluation.
        categories: Columns of numbers that are codes of categories.

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

    def predict(self, X: AnyInputs) -> NDArray[Any]:
        """Predict the most likely class of each row.

        Args:
            X: An array or tensor [n, ...] or a DataFrame.

        Returns:
            Classes, [n].
        """
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict the probability of each class.

        Args:
            X: An array or tensor [n, ...] or a DataFrame.

        Returns:
            Probabilities, [n, classes], in the order of `classes_`.
        """
        mean: NDArray[np.float64] = self._predict_inputs(X).mean.double().numpy()
        return mean / mean.sum(1, keepdims=True)

    def predict_uncertainty(self, X: AnyInputs) -> NDArray[np.float64]:
        """Predict how far the learner's networks disagree.

        Args:
            X: An array or tensor [n, ...] or a DataFrame.

        Returns:
            Standard deviation of the probabilities over the posterior samples or
            ensemble members, [n, classes].
        """
        return self._predict_inputs(X).std.double().numpy()

    def _set_model(self, model: Model) -> None:
        super()._set_model(model)
        if not hasattr(self, "classes_"):
            self.classes_ = _restore_labels(model.task.classes)

    def _list_classes(self) -> Sequence[str]:
        return [str(label) for label in self.classes_]

    def _check_targets(
        self, y: AnyInputs, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        labels = column_or_1d(to_array(y), warn=True)
        check_classification_targets(labels)
        if first:
            self.classes_ = np.unique(labels if classes is None else classes)
            if len(self.classes_) < 2:
                # scikit-learn's checks look for the words "1 class".
                raise ValueError(
                    "InvariantClassifier: y has 1 class, but two or more are needed. "
                    "Use partial_fit with classes= if others come later."
                )
        return np.array([str(label) for label in labels], dtype=object)


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
        device: Torch device to train on.
        order: "joint" to train on all environments of a call together, "sequential"
            to train on one after another, or the number in each stage, as "2+1".
        held_out: Fraction of each environment that is used only for evaluation.
        categories: Columns of numbers that are codes of categories.

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
            X: An array or tensor [n, ...] or a DataFrame.

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
            X: An array or tensor [n, ...] or a DataFrame.

        Returns:
            Standard deviation of the values over the posterior samples or ensemble
            members, [n].
        """
        std: NDArray[np.float64] = self._predict_inputs(X).std[:, 0].double().numpy()
        return self.model_.schema.target.scale * std

    def _check_targets(
        self, y: AnyInputs, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        values = column_or_1d(to_array(y), warn=True)
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"InvariantRegressor: y has values of type {values.dtype}, which are "
                "not numbers. Use InvariantClassifier for classes."
            ) from None


def _restore_labels(names: Sequence[str]) -> NDArray[Any]:
    """Return classes as they were before a file stored them as text."""
    if all(name.lstrip("-").isdecimal() for name in names):
        return np.array([int(name) for name in names])
    if set(names) == {"False", "True"}:
        return np.array([name == "True" for name in names])
    return np.array(names)


def _make_chunk(inputs: pd.DataFrame | NDArray[Any]) -> Chunk:
    """Return all rows of a table or an array as one chunk."""
    if isinstance(inputs, pd.DataFrame):
        return Chunk(inputs)
    pieces = list(Array(inputs, pd.DataFrame(index=range(len(inputs)))).chunks())
    arrays = [piece.inputs for piece in pieces if piece.inputs is not None]
    return Chunk(pd.concat([p.frame for p in pieces]), np.concatenate(arrays))
