"""What is known of a model besides what it has learned: plain values, for JSON.

Nothing here needs torch, so that a stored model can predict without loading it.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cirm.data.schema import Schema
from cirm.model.outputs import ArrayPredictions
from cirm.model.threshold import (
    DecisionThreshold,
    HeldOutProbabilities,
    choose_decision_threshold,
    describe_threshold_in_words,
)
from cirm.tasks import Task

Settings = dict[str, Any]
AnyModel = TypeVar("AnyModel", bound="ModelMetadata")


@dataclass(frozen=True)
class ModelTrainingPlan:
    """How a model learns, in plain values. It does not change after the first fit.

    Attributes:
        learner: Key of the learner, or "module:Class" if it is not registered.
        settings: All settings of the learner, including the defaults, so that the
            defaults of a later version do not change an old model.
        network: Description of the network.
        seed: Seed of all random draws.
        adaptive_epochs: Whether the number of epochs follows the number of rows.
        held_out: Fraction of each environment that is used only for evaluation.
        positive: Of two classes, the one that a threshold and the precision-recall
            curve are about: the rarer one, unless the user says otherwise.
        class_weight: How much a row of a class counts in training; one by default.
    """

    learner: str
    settings: Settings
    network: Settings
    seed: int = 0
    adaptive_epochs: bool = True
    held_out: float = 0.1
    positive: str = ""
    class_weight: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class NonconformitySummary:
    """How far predictions were from the targets of an environment, without its rows.

    Attributes:
        rows: Number of rows of each class, and of all classes under "".
        quantiles: Fifty quantiles of the nonconformity scores of each: the log odds
            against the true class, or the logarithm of the absolute residual in
            standard deviations of the target.
        answered: Number of rows whose confidence is at least each of 21 values, from
            none to 99.9 %. Empty for a regression.
        wrong: How many of these rows are predicted wrongly.
    """

    rows: dict[str, int]
    quantiles: dict[str, tuple[float, ...]]
    answered: tuple[int, ...] = ()
    wrong: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainingHistoryEntry:
    """One environment that a model has learned from, and how the training went.

    Attributes:
        name: Name of the environment.
        stage: Index of the training stage, from 0. Environments that were learned
            together share it.
        rows: Number of rows.
        held_out: Number of those rows that were not used for training.
        time: When the training ended, in ISO format (UTC).
        epochs: Number of epochs.
        seconds: Duration of the training of the whole stage.
        fingerprint: Digest of the rows, by which they are recognised later.
        metrics_before: Metrics on all rows before the model learned from them. Empty
            for the first stage.
        arrival: What `evaluate` needs to compare with these metrics: estimates with
            their variances, and for each class its rows and how many were correct.
        metrics_after: Metrics after training, on the held-out rows if there are any
            and on the training rows otherwise.
        importance: Mean change of the predictions when a column is replaced by random
            values, for each column of a table.
        diagnostics: Further numbers that show whether the model can be trusted.
        notes: Warnings about the data and the training.
        files: SHA-256 of each file that the rows were read from, by its name.
        past: How well what was learned before is still predicted, if the state allows
            to say: the number of `rows`, how many of them are `stored` (0 if it is an
            estimate from moments), and their accuracy in percent or root mean squared
            error `before` and `after` this stage.
        confident: Number of held-out rows after training whose confidence is at least
            each of 21 values, from none to 99.9 %. Empty for a regression.
        nonconformity: How far predictions were from the targets, before the model
            learned from the rows; in the first stage, on held-out rows afterwards.
        nonconformity_adapted: The same if the model had been adapted to the rows
            first, for learners that can.
        rule: Rule of the threshold that was used on arrival, or after the first stage;
            empty if there was none.
    """

    name: str
    stage: int
    rows: int
    held_out: int
    time: str
    epochs: int
    seconds: float
    fingerprint: str
    metrics_before: dict[str, float] = field(default_factory=dict)
    metrics_after: dict[str, float] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    arrival: dict[str, dict[str, float]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    past: dict[str, float] = field(default_factory=dict)
    confident: tuple[int, ...] = ()
    nonconformity: NonconformitySummary | None = None
    nonconformity_adapted: NonconformitySummary | None = None
    rule: str = ""


@dataclass(frozen=True)
class ModelAdaptation:
    """The environment that a model was adapted to, from rows without targets.

    Attributes:
        name: Name of the environment.
        rows: Number of rows that were used.
        time: When the model was adapted, in ISO format (UTC).
        notes: Warnings about the rows.
    """

    name: str
    rows: int
    time: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelMetadata:
    """A trained model, as far as plain values describe it.

    Attributes:
        plan: How the model learns: learner, settings, network and seed.
        schema: How it reads data: columns, target and task.
        history: The environments that it has learned from, oldest first.
        created: When it was first fitted, in ISO format (UTC).
        adaptation: The environment that it was adapted to since then, if any.
        threshold: From which probability of the positive class on it is predicted. By
            default the more likely class is.
        held_out_scores: Of two classes, the probabilities of the held-out rows of the
            last stage, by which `predict` and `evaluate` can choose a threshold.
    """

    plan: ModelTrainingPlan
    schema: Schema
    history: tuple[TrainingHistoryEntry, ...]
    created: str
    adaptation: ModelAdaptation | None = None
    threshold: DecisionThreshold | None = None
    held_out_scores: HeldOutProbabilities | None = None

    @property
    def positive(self) -> str:
        """Of two classes, the one that thresholds are about; empty otherwise."""
        if len(self.task.classes) != 2:
            return ""
        return self.plan.positive or self.task.classes[1]

    @property
    def stages(self) -> int:
        """Number of training stages so far."""
        return max((entry.stage for entry in self.history), default=-1) + 1

    @property
    def task(self) -> Task:
        """The task: classification with its classes, or regression."""
        return self.schema.task

    @abstractmethod
    def predict_from_inputs(self, inputs: NDArray[np.float32]) -> ArrayPredictions:
        """Return predictions for inputs [n, *shape]."""

    def explain(self) -> dict[str, Any]:
        """Return what the learner reports about its decisions; {} if nothing."""
        return {}

    def get_residual_ratio_after_adapting(self) -> float:
        """Return by what factor an adaptation has made residuals smaller."""
        return 1.0


def set_decision_threshold(model: AnyModel, rule: str) -> AnyModel:
    """Return the model with the threshold of a rule; unchanged without a rule."""
    if not rule:
        return model
    if not model.positive:
        raise ValueError(
            "--threshold: only a model of two classes has a threshold, but this one "
            f"has {len(model.task.classes)} classes. Remove the option."
            if model.task.classes
            else "--threshold: a regression has no threshold. Remove the option."
        )
    chosen = choose_decision_threshold(rule, model.positive, model.held_out_scores)
    return replace(model, threshold=chosen)


def describe_decision_threshold(model: ModelMetadata) -> dict[str, Any] | None:
    """Return the threshold in plain values with a sentence; None without one."""
    if model.threshold is None:
        return None
    sentence = describe_threshold_in_words(model.threshold, model.held_out_scores)
    return {**dataclasses.asdict(model.threshold), "sentence": sentence}


def format_current_time() -> str:
    """Return the time in ISO format (UTC)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def count_features_of_each_column(schema: Schema) -> dict[str, int]:
    """Return the number of features of each column that the inputs hold, in order."""
    encoding = schema.treatment.encoding
    return encoding.widths if encoding is not None else {}


def list_names_of_features(schema: Schema) -> tuple[str, ...]:
    """Return what each feature of a table is called; nothing for other inputs."""
    encoding = schema.treatment.encoding
    return encoding.features if encoding is not None else ()


def list_distinct_environment_names(
    history: Sequence[TrainingHistoryEntry],
) -> list[str]:
    """Return the names of environments, numbered where they come again.

    Example:
        >>> from types import SimpleNamespace
        >>> history = [SimpleNamespace(name=name) for name in ("a", "table", "table")]
        >>> list_distinct_environment_names(history)
        ['a', 'table', 'table (2)']
    """
    names: list[str] = []
    counts: dict[str, int] = {}
    for entry in history:
        counts[entry.name] = counts.get(entry.name, 0) + 1
        count = counts[entry.name]
        names.append(f"{entry.name} ({count})" if count > 1 else entry.name)
    return names


def describe_adaptation_of_model(model: ModelMetadata) -> dict[str, Any] | None:
    """Return what a model was adapted to and what changed; None if it was not."""
    if model.adaptation is None:
        return None
    adaptation = dataclasses.asdict(model.adaptation) | model.explain().get(
        "adaptation", {}
    )
    return {**adaptation, "notes": list(model.adaptation.notes)}
