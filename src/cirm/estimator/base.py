"""What the classifier and the regressor have in common."""

from __future__ import annotations

import copy
import numbers
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from cirm.data.batches import (
    ENVIRONMENT,
    TARGET,
    WEIGHT,
    BatchIteratorSource,
    convert_to_array_or_table,
    is_list_of_images,
)
from cirm.data.encoded_chunks import encode_inputs_of_chunk
from cirm.data.open_sources import convert_table_to_pandas, is_dataframe_like
from cirm.data.sources import (
    ArraySource,
    DataFrameSource,
    DataSource,
    SourceRowChunk,
    make_names_for_array_columns,
)
from cirm.estimator.cross_validation import warn_of_unused_groups
from cirm.learners import DEFAULT_LEARNER
from cirm.model.adapt import adapt
from cirm.model.compute import predict_inputs_in_chunks
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.metrics import PredictionsWithDeviation
from cirm.model.model import Model, NetworkLike
from cirm.model.rare_classes import ClassWeight
from cirm.networks import Network

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

AnyInputs = Any
"""An array, a tensor, a table (pandas, polars, pyarrow), or an iterable of batches."""

RandomState = int | np.random.RandomState | None
"""What scikit-learn accepts as `random_state`."""


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
        random_state: RandomState = None,
        device: str = "cpu",
        order: str = "joint",
        held_out: float = 0.1,
        categories: Sequence[str] = (),
        unstable: Sequence[str] = (),
        stable: Sequence[str] = (),
    ) -> None:
        self.learner = learner
        self.network = network
        self.settings = settings
        self.preset = preset
        self.seed = seed
        self.random_state = random_state
        self.device = device
        self.order = order
        self.held_out = held_out
        self.categories = categories
        self.unstable = unstable
        self.stable = stable

    def fit(
        self,
        X: AnyInputs,
        y: AnyInputs = None,
        environments: Sequence[Any] | None = None,
        sample_weight: Sequence[float] | None = None,
    ) -> Self:
        """Fit a new model.

        Args:
            X: An array or tensor [n, ...] or a table of pandas, polars or pyarrow.
                Images have their channels first or last.
                Missing values are allowed. Or an iterable of batches (inputs, targets)
                or (inputs, targets, environments); `y` is then left out.
            y: Targets [n].
            environments: Name of the environment of each row, [n]. Without it, all
                rows are one environment. They come in order of appearance or, if they
                are an ordered categorical of pandas such as `name_periods` returns, in
                the order of its categories.
            sample_weight: Weight of each row, [n]: 2 counts like the row twice, and 0
                like no row.

        Returns:
            The estimator.

        Raises:
            ValueError: If inputs, targets or settings are invalid.
        """
        source = self._build_source_of_arrays(
            X, y, environments, sample_weight, is_first_fit=True
        )
        return self._fit_model_to_source(source)

    def partial_fit(
        self,
        X: AnyInputs,
        y: AnyInputs = None,
        environment: str = "",
        classes: Sequence[Any] | None = None,
        accept_units: bool = False,
        sample_weight: Sequence[float] | None = None,
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
            sample_weight: Weight of each row, [n], as for `fit`.

        Returns:
            The estimator.

        Raises:
            ValueError: If inputs, targets or settings are invalid.
        """
        known = len(self.model_.history) if hasattr(self, "model_") else 0
        name = environment or f"environment {known}"
        names = None if y is None else [name] * len(y)
        source = self._build_source_of_arrays(
            X, y, names, sample_weight, not known, classes
        )
        if not known:
            return self._fit_model_to_source(source)
        self.model_ = update(
            self.model_, source, order=self.order, accept_units=accept_units, again=True
        )
        self._warn_of_new_notes(known)
        return self

    def adapt(
        self, X: AnyInputs, environment: str = "", accept_units: bool = False
    ) -> Self:
        """Adapt to a new environment by rows whose targets are not known.

        Args:
            X: Rows of the new environment: an array or tensor [n, ...] or a DataFrame.
            environment: Name of the environment. By default "new environment".
            accept_units: Whether to use numbers that look like another unit than in
                the first environment. Otherwise they raise an error.

        Returns:
            A new, fitted estimator for that environment; this one does not change.
            `partial_fit` of the new one continues as if it had not been adapted.

        Raises:
            ValueError: If the learner cannot adapt, or the inputs are invalid.
        """
        check_is_fitted(self, "model_")
        inputs = self._check_and_convert_inputs(X, is_first_fit=False)
        name = environment or "new environment"
        source: DataSource
        if isinstance(inputs, pd.DataFrame):
            source = DataFrameSource(inputs, name, "X")
        else:
            source = ArraySource(
                inputs, pd.DataFrame(index=range(len(inputs))), name, "X"
            )
        model = adapt(self.model_, source, accept_units=accept_units)
        estimator = copy.copy(self)
        estimator.model_ = model
        assert model.adaptation is not None
        for note in model.adaptation.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        return estimator

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
                in nor registered by an installed package, its class.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: If the file is damaged or holds a model for another task.
        """
        model = load(path, network, learner=learner)
        if cls._task not in ("auto", model.task.kind):
            is_class = bool(model.task.classes)
            other = "InvariantClassifier" if is_class else "InvariantRegressor"
            raise ValueError(
                f"model file {str(path)!r} contains a {model.task.kind} model, but "
                f"{cls.__name__} needs a {cls._task} model. Load it with {other}."
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
        estimator._set_trained_model(model)
        estimator._set_feature_names(model)
        return estimator

    def _set_feature_names(self, model: Model) -> None:
        """Set the attributes in which scikit-learn keeps the columns."""
        encoding = model.schema.treatment.encoding
        if encoding is None:
            return
        names = [column.name for column in encoding.columns]
        self.n_features_in_ = len(names)
        if names != list(make_names_for_array_columns(len(names))):
            self.feature_names_in_ = np.array(names, dtype=object)

    def _fit_model_to_source(self, source: DataSource) -> Self:
        model = fit(
            source,
            learner=self.learner,
            settings=self.settings,
            preset=self.preset,
            network=self.network,
            seed=self._choose_seed(),
            device=self.device,
            order=self.order,
            held_out=self.held_out,
            task=self._task,
            classes=self._list_declared_classes(),
            categories=self.categories,
            unstable=self.unstable,
            stable=self.stable,
            class_weight=self._get_class_weights(),
        )
        self._set_trained_model(model)
        if isinstance(
            source, BatchIteratorSource
        ):  # which scikit-learn has not checked
            self._set_feature_names(model)
        self._warn_of_new_notes()
        return self

    def _warn_of_new_notes(self, n_known_notes: int = 0) -> None:
        """Show the notes of all environments after the first ones."""
        notes = [
            note
            for entry in self.model_.history[n_known_notes:]
            for note in entry.notes
        ]
        for note in dict.fromkeys(notes):
            warnings.warn(note, UserWarning, stacklevel=4)

    def _set_trained_model(self, model: Model) -> None:
        self.model_ = model

    def _list_declared_classes(self) -> Sequence[str]:
        return ()

    def _get_class_weights(self) -> ClassWeight:
        return None

    def _choose_seed(self) -> int:
        """Return the seed: `random_state` in one of scikit-learn's forms, or `seed`."""
        if self.random_state is None:
            return self.seed
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31))

    def __sklearn_clone__(self) -> Self:
        requests = self.get_metadata_routing().fit.requests
        warn_of_unused_groups(requests)
        copied: Self = super().__sklearn_clone__()
        return copied

    def _check_targets(
        self,
        y: AnyInputs,
        is_first_fit: bool,
        classes: Sequence[Any] | None,
        weights: NDArray[np.float64] | None = None,
    ) -> NDArray[Any]:
        raise NotImplementedError

    def _build_source_of_arrays(
        self,
        X: AnyInputs,
        y: AnyInputs,
        environments: Sequence[Any] | None,
        weights: Sequence[float] | None,
        is_first_fit: bool,
        classes: Sequence[Any] | None = None,
    ) -> DataSource:
        """Return the rows with their targets, environments and weights."""
        if y is None:
            if hasattr(X, "shape") or hasattr(X, "__array__") or is_dataframe_like(X):
                # scikit-learn's checks look for these words.
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y "
                    "is None"
                )
            if weights is not None:
                raise ValueError(
                    f"{type(self).__name__}: sample_weight cannot be used if X yields "
                    "batches. Leave it out, or pass X and y as arrays or tables."
                )
            return self._build_batch_source(X, is_first_fit, classes)
        inputs = self._check_and_convert_inputs(X, is_first_fit)
        mass = _check_and_convert_sample_weight(
            weights, len(inputs), type(self).__name__
        )
        targets = self._check_targets(y, is_first_fit, classes, mass)
        if len(inputs) != len(targets):
            raise ValueError(
                f"{type(self).__name__}: X has {len(inputs)} rows, but y has "
                f"{len(targets)}. Pass one target for each row."
            )
        columns: dict[str, Any] = {TARGET: targets}
        if mass is not None:
            columns[WEIGHT] = mass
        names = {"target": TARGET}
        if environments is not None:
            columns[ENVIRONMENT] = self._check_and_convert_environments(
                environments, len(targets)
            )
            names["environment"] = ENVIRONMENT
            inputs, columns = _sort_rows_by_ordered_environment(
                inputs, columns, environments
            )
        if mass is not None:
            names["weight"] = WEIGHT
        if not isinstance(inputs, pd.DataFrame):
            return ArraySource(inputs, pd.DataFrame(columns), "data", "X", **names)
        if clash := set(columns) & set(inputs.columns):
            raise ValueError(
                f"{type(self).__name__}: X has a column {min(clash)!r}, a name that "
                "cirm uses itself. Rename the column."
            )
        frame = inputs.reset_index(drop=True)
        return DataFrameSource(frame.assign(**columns), "data", "X", **names)

    def _build_batch_source(
        self, X: AnyInputs, is_first_fit: bool, classes: Sequence[Any] | None
    ) -> DataSource:
        source = BatchIteratorSource(X, "data", "X")
        pieces = [chunk.frame[TARGET].to_numpy() for chunk in source.iterate_chunks()]
        self._check_targets(np.concatenate(pieces), is_first_fit, classes)
        return source

    def _check_and_convert_environments(
        self, environments: Sequence[Any], n_rows: int
    ) -> NDArray[Any]:
        names = np.asarray(convert_to_array_or_table(environments))
        if not names.ndim:
            raise ValueError(
                f"{type(self).__name__}: environments is {environments!r}. Pass one "
                "name for each row, such as X['site'] instead of 'site'."
            )
        if pd.isna(names).any():
            raise ValueError(
                f"{type(self).__name__}: the environment of row "
                f"{int(pd.isna(names).argmax())} (counted from 0) is missing. Pass "
                "environments= with one name for each row."
            )
        if len(names) != n_rows:
            raise ValueError(
                f"{type(self).__name__}: environments has {len(names)} entries, but X "
                f"has {n_rows} rows. Pass environments= with one name for each row."
            )
        return names.astype(str)

    def _check_and_convert_inputs(self, X: AnyInputs, is_first_fit: bool) -> Any:  # noqa: ANN401
        """Return inputs as a DataFrame or, if they have more axes, as an array."""
        if isinstance(X, Tensor) or is_list_of_images(X):
            X = convert_to_array_or_table(X)
        elif is_dataframe_like(X):
            X = convert_table_to_pandas(X)
        if getattr(X, "ndim", 2) > 2:
            return np.asarray(X)
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=is_first_fit, skip_check_array=True)
            return X.set_axis([str(name) for name in X.columns], axis=1)
        array = validate_data(
            self,
            X,
            reset=is_first_fit,
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if is_first_fit else 1,
            dtype="numeric"
            if is_first_fit or self._has_only_numeric_columns()
            else None,
        )
        names = make_names_for_array_columns(array.shape[1])
        if not is_first_fit and hasattr(self, "feature_names_in_"):
            names = [str(name) for name in self.feature_names_in_]  # in their order
        frame = pd.DataFrame(array, columns=names)
        return frame.infer_objects() if array.dtype == object else frame

    def _has_only_numeric_columns(self) -> bool:
        """Return whether the model reads no text, so that arrays must be numbers."""
        encoding = self.model_.schema.treatment.encoding
        columns = encoding.columns if encoding else ()
        others = ("category", "date", "text")
        return not any(column.kind in others for column in columns)

    def _predict_inputs(self, X: AnyInputs) -> PredictionsWithDeviation:
        check_is_fitted(self, "model_")
        chunk = _build_chunk_of_all_rows(
            self._check_and_convert_inputs(X, is_first_fit=False)
        )
        encoded = encode_inputs_of_chunk(chunk, self.model_.schema, "X")
        return predict_inputs_in_chunks(self.model_, encoded, in_double_precision=True)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _check_and_convert_sample_weight(
    weights: Sequence[float] | None, n_rows: int, name: str
) -> NDArray[np.float64] | None:
    """Return valid weights [n] of rows, of which at least one is positive, if any."""
    if weights is None:
        return None
    array = np.asarray(convert_to_array_or_table(weights), np.float64)
    if array.shape != (n_rows,):
        # scikit-learn's checks look for these words.
        raise ValueError(
            f"{name}: sample_weight.shape == {array.shape}, expected ({n_rows},). Give "
            "one weight for each row."
        )
    if not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError(
            f"{name}: sample_weight contains a weight that is negative, NaN or "
            "infinite, or only zeros. Give finite weights of zero or more, at least "
            "one of them positive."
        )
    return array


def _build_chunk_of_all_rows(inputs: pd.DataFrame | NDArray[Any]) -> SourceRowChunk:
    """Return all rows of a table or an array as one chunk."""
    if not len(inputs):
        raise ValueError("X has 0 rows. Pass at least one row.")
    if isinstance(inputs, pd.DataFrame):
        return SourceRowChunk(inputs)
    pieces = list(
        ArraySource(inputs, pd.DataFrame(index=range(len(inputs)))).iterate_chunks()
    )
    arrays = [piece.inputs for piece in pieces if piece.inputs is not None]
    return SourceRowChunk(pd.concat([p.frame for p in pieces]), np.concatenate(arrays))


def _sort_rows_by_ordered_environment(
    inputs: Any,  # noqa: ANN401  an array or a table
    columns: dict[str, Any],
    environments: Sequence[Any],
) -> tuple[Any, dict[str, Any]]:
    """Return rows in the order of the categories, if environments have an order."""
    names = getattr(environments, "array", environments)  # of a column of pandas
    if not isinstance(names, pd.Categorical) or not names.ordered:
        return inputs, columns
    order = np.argsort(names.codes, kind="stable")
    is_table = isinstance(inputs, pd.DataFrame)
    return (
        inputs.iloc[order] if is_table else inputs[order],
        {name: np.asarray(values)[order] for name, values in columns.items()},
    )
