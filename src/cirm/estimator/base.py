"""Estimators in scikit-learn's manner over a trained model.

An environment is a place that data come from. `fit` starts anew with the environments
it is given, `partial_fit` goes on with one more; see `cirm.model` for what is decided
by the first environment and stays.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from cirm.data.batches import ENVIRONMENT, TARGET, Batches, as_array, name_columns
from cirm.data.rows import encode_chunk
from cirm.data.sources import Array, Chunk, Frame, Source
from cirm.learners import DEFAULT_LEARNER
from cirm.model.file import load, save
from cirm.model.fit import fit, update
from cirm.model.metrics import Answers
from cirm.model.model import Model
from cirm.model.predict import predict_inputs

Anything = Any
"""An array, a tensor, a DataFrame, or an iterable of batches."""


class InvariantEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common.

    `learner` is a learner's key and `settings` its settings, over those of a `preset`;
    `network` is a torch module of one's own, whose last layer is linear. The part
    `held_out` of each environment only tells what to expect. Columns in `categories`
    hold codes. Missing values are allowed.
    """

    model_: Model

    def __init__(
        self,
        learner: str = DEFAULT_LEARNER,
        *,
        network: nn.Module | None = None,
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
        X: Anything,
        y: Anything = None,
        environments: Sequence[Any] | None = None,
    ) -> Self:
        """Learn from rows X [n, ...] and targets y [n], from environments [n].

        Without environments all rows are one. X may also be an iterable of batches
        (inputs, targets) or (inputs, targets, environments); y is then left out.
        """
        source = self._source(X, y, environments, first=True)
        return self._begin(source, self._classes_of(source))

    def partial_fit(
        self,
        X: Anything,
        y: Anything = None,
        environment: str = "",
        classes: Sequence[Any] | None = None,
        accept_units: bool = False,
    ) -> Self:
        """Go on with one more environment; the first call starts.

        `classes` are, at the first call, all that will ever come. Numbers that look
        like another unit than before are refused unless they are accepted.
        """
        begun = hasattr(self, "model_")
        name = environment or f"environment {len(self.model_.visits) if begun else 0}"
        names = None if y is None else [name] * len(y)
        source = self._source(X, y, names, first=not begun, classes=classes)
        if not begun:
            return self._begin(source, self._classes_of(source))
        known = len(self.model_.visits)
        self.model_ = update(
            self.model_, source, order=self.order, accept_units=accept_units, again=True
        )
        self._warn(known)
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a file, which `cirm` commands read too."""
        check_is_fitted(self, "model_")
        save(self.model_, path)

    @classmethod
    def load(cls, path: str | Path, network: nn.Module | None = None) -> Self:
        """The estimator of a file; `network` is that it was trained with, if any."""
        model = load(path, network)
        cls._check_task(model)
        plan = model.plan
        made = cls(
            learner=plan.learner,
            network=network,
            settings=None if network is not None else dict(plan.settings),
            seed=plan.seed,
            held_out=plan.held_out,
        )
        made._take(model)
        made._know_columns(model)
        return made

    @classmethod
    def _check_task(cls, model: Model) -> None:
        """Refuse a model of values as a classifier, and one of classes as the other."""
        known = {"classification": "classes", "regression": "values"}
        wanted = known.get(cls._task)
        got = "classes" if model.task.classes else "values"
        if wanted and got != wanted:
            raise ValueError(
                f"{cls.__name__}: the file must hold a model of {wanted}; got one of "
                f"{got}"
            )

    def _know_columns(self, model: Model) -> None:
        """What scikit-learn keeps of the columns that were learned from."""
        encoding = model.schema.treatment.encoding
        if encoding is None:
            return
        names = [column.name for column in encoding.columns]
        self.n_features_in_ = len(names)
        if names != list(name_columns(len(names))):
            self.feature_names_in_ = np.array(names, dtype=object)

    def _begin(self, source: Source, classes: Sequence[str]) -> Self:
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
            classes=classes,
            categories=self.categories,
        )
        self._take(model)
        self._warn()
        return self

    def _warn(self, known: int = 0) -> None:
        """Warn of what was noted of the environments after so many known ones."""
        notes = [note for visit in self.model_.visits[known:] for note in visit.notes]
        for note in dict.fromkeys(notes):
            warnings.warn(note, UserWarning, stacklevel=4)

    _task: Any = "auto"

    def _take(self, model: Model) -> None:
        self.model_ = model

    def _classes_of(self, source: Source) -> Sequence[str]:
        return ()

    def _targets(
        self, y: Anything, first: bool, classes: Sequence[Any] | None
    ) -> NDArray[Any]:
        raise NotImplementedError

    def _source(
        self,
        X: Anything,
        y: Anything,
        environments: Sequence[Any] | None,
        first: bool,
        classes: Sequence[Any] | None = None,
    ) -> Source:
        """The rows with their targets and environments."""
        if y is None:
            if hasattr(X, "shape") or hasattr(X, "__array__"):
                raise ValueError(
                    f"{type(self).__name__} requires y to be passed, but the target y "
                    "is None"
                )
            return self._batches(X, first, classes)
        inputs = self._checked(X, first)
        targets = self._targets(y, first, classes)
        if len(inputs) != len(targets):
            raise ValueError(
                f"{type(self).__name__}: X and y must have as many rows; "
                f"got {len(inputs)} and {len(targets)}"
            )
        columns: dict[str, Any] = {TARGET: targets}
        if environments is not None:
            named = np.asarray(as_array(environments))
            if pd.isna(named).any():
                raise ValueError(
                    f"{type(self).__name__}: environments must name one for each row; "
                    f"got none for row {int(pd.isna(named).argmax())}"
                )
            columns[ENVIRONMENT] = named.astype(str)
            if len(columns[ENVIRONMENT]) != len(targets):
                raise ValueError(
                    f"{type(self).__name__}: environments must name one for each row; "
                    f"got {len(columns[ENVIRONMENT])} for {len(targets)} rows"
                )
        words = {"target": TARGET}
        if environments is not None:
            words["environment"] = ENVIRONMENT
        if isinstance(inputs, pd.DataFrame):
            frame = inputs.reset_index(drop=True)
            if clash := set(columns) & set(frame.columns):
                raise ValueError(
                    f"{type(self).__name__}: no column of X may be called "
                    f"{' or '.join(sorted(columns))}; got {min(clash)!r}"
                )
            return Frame(frame.assign(**columns), "data", "X", **words)
        return Array(inputs, pd.DataFrame(columns), "data", "X", **words)

    def _batches(
        self,
        X: Anything,
        first: bool,
        classes: Sequence[Any] | None,
    ) -> Source:
        source = Batches(X, "data", "X")
        pieces = [portion.frame[TARGET] for portion in source.portions()]
        labels = np.concatenate([piece.to_numpy() for piece in pieces])
        self._targets(labels, first, classes)
        return source

    def _checked(self, X: Anything, first: bool) -> Any:  # noqa: ANN401
        """Inputs as a table of columns or, with more axes, as an array."""
        if isinstance(X, Tensor):
            X = as_array(X)
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
        return pd.DataFrame(array, columns=name_columns(array.shape[1]))

    def _answers(self, X: Anything) -> Answers:
        check_is_fitted(self, "model_")
        inputs = self._checked(X, first=False)
        if isinstance(inputs, pd.DataFrame):
            portion = Chunk(inputs)
        else:
            (portion,) = _whole(inputs)
        inputs = encode_chunk(portion, self.model_.schema, "X")
        return predict_inputs(self.model_, inputs, exact=True)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _whole(inputs: NDArray[Any]) -> list[Chunk]:
    """All rows of an array as one portion."""
    pieces = list(Array(inputs, pd.DataFrame(index=range(len(inputs)))).portions())
    return [
        Chunk(
            pd.concat([piece.frame for piece in pieces]),
            np.concatenate(
                [piece.inputs for piece in pieces if piece.inputs is not None]
            ),
        )
    ]
