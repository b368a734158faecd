"""Run a learner over a stream: train on each stage, score every environment."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cirm.data.scm import compute_squared_errors_of_coefficients
from cirm.environments import Environment, Problem, Stage, Stream
from cirm.evaluation.adaptation import (
    RowCount,
    draw_unlabelled_inputs,
    list_unseen_environments,
    parse_adaptation_row_counts,
)
from cirm.evaluation.diagnostics import DiagnosticsCalculator
from cirm.evaluation.measures import (
    iterate_metrics_of_environments,
    iterate_unstable_feature_counts_and_flags_by_replica,
)
from cirm.evaluation.predictions import (
    CHUNK,
    Predictions,
    predict_environment,
    predict_sweep,
)
from cirm.learners import create, get_learner_key
from cirm.learners.base import Learner
from cirm.memory import measure_state_size
from cirm.randomness import Randomness
from cirm.records import (
    AdaptedScoreRecord,
    Record,
    RunRecord,
    ScoreRecord,
    TrainingCurveRecord,
)
from cirm.training import DivergenceError, Terms, Watch

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

Progress = Callable[[float], None]
"""Called now and then with the part of the work that is done, from 0 to 1."""

Transform = Callable[[Stage, Randomness, Watch], Stage]
"""Replaces a stage before the learner sees it, as environment inference does."""

INFERENCE_SHARE = 0.5  # of a stage's progress; inference takes about as long


def run(
    learner: LearnerLike,
    problem: Problem,
    order: str,
    seeds: tuple[int, ...],
    *,
    label: str = "",
    dataset: dict[str, Any] | None = None,
    selection: str = "",
    transform: Transform | None = None,
    progress: Progress = lambda done: None,
    diagnose: bool = False,
    adapt: tuple[RowCount, ...] = (),
) -> Iterator[Record]:
    """Train on each stage in turn and score every environment after each.

    Args:
        learner: An instance, or anything else that `cirm.create` accepts: a key such as
            "erm", an import path or a class.
        problem: The environments, drawn for these seeds.
        order: "sequential", "joint", or the number of environments of each stage, such
            as "2+1".
        seeds: One seed for each replica.
        label: The learner's name in the records; its key if empty.
        dataset: A description of the data for the records.
        selection: How the learner's settings were chosen, for the records.
        transform: Replaces each stage before the learner sees it.
        progress: Called with the part of the work that is done.
        diagnose: Whether to add diagnostics and further measures (see
            `cirm.evaluation.diagnostics` and `cirm.evaluation.measures`). The time
            recorded is without them.
        adapt: Numbers of unlabelled rows, or "all". After the last stage, a learner
            that can adapt adapts to so many rows of each unseen environment, and is
            scored on all of its rows. The time recorded is without this.

    Yields:
        Training curves and scores of each stage, which features were found unstable,
        scores after adaptation, and last a `RunRecord` with settings, memory and time.

    Raises:
        DivergenceError: If the parameters of a replica are not finite.
        ValueError: If there is no such learner or order, or `adapt` has other values.

    Example:
        >>> from cirm.data.colored import Colored
        >>> from cirm.learners.erm import ERM
        >>> from cirm.training import Descent
        >>> data = Colored(source="digits", examples=100, sweep=())
        >>> problem = data.draw_problem((0,))
        >>> learner = ERM(descent=Descent(epochs=2))
        >>> records = list(run(learner, problem, "sequential", (0,)))
        >>> [r.environment for r in records if r.kind == "score" and r.stage == 1]
        ['train-1', 'train-2', 'test']
    """
    label = label or get_learner_key(learner)
    if not isinstance(learner, Learner) or learner.network is None:
        learner = create(learner, problem.train[0])
    stream = Stream.from_order(problem.train, order)
    counts = parse_adaptation_row_counts(adapt)
    randomness = Randomness(seeds)
    start = time.perf_counter()
    state = learner.init(randomness.at("init"))
    recorder = None
    aside = 0.0  # seconds spent on what is not the learner's work
    if diagnose:
        recorder = DiagnosticsCalculator(learner, problem, order, seeds, label)
        yield from _iterate_scores_before_training(
            learner, state, problem, label, order, seeds
        )
        aside = time.perf_counter() - start
    before = 0.0 if transform is None else INFERENCE_SHARE
    for index, stage in enumerate(stream):
        curves: list[TrainingCurveRecord] = []

        def record_training_step(
            step: int, n_steps: int, numbers: Terms, index: int = index
        ) -> None:
            done = before + (1 - before) * step / n_steps
            progress((index + done) / len(stream))
            for name, values in numbers.items():
                curves.extend(  # noqa: B023  the list of this very stage
                    TrainingCurveRecord(label, order, seed, index, step, name, value)
                    for seed, value in zip(seeds, values.tolist(), strict=True)
                )

        def report_inference_step(
            step: int, n_steps: int, _: Terms, index: int = index
        ) -> None:
            progress((index + before * step / n_steps) / len(stream))

        source = randomness.at("stage", index)
        try:
            if transform is not None:
                stage = transform(stage, source.at("inference"), report_inference_step)
            state = learner.observe(state, stage, source, record_training_step)
        except DivergenceError as error:
            raise DivergenceError(
                _explain_divergence_error(error, label, index, seeds)
            ) from None
        yield from curves
        last = index == len(stream) - 1
        predictions: dict[str, Predictions] = {}
        inferred = stage if transform is not None and last else ()
        for split, position, environment, found in _iterate_predictions_after_stage(
            learner, state, problem, last, inferred, len(seeds)
        ):
            if recorder is not None and last and split in ("train", "test"):
                predictions[environment.name] = found
            scores = compute_mean_score_of_predictions(learner, found)
            for seed, number in zip(seeds, scores.tolist(), strict=True):
                yield ScoreRecord(
                    label, order, seed, index, environment.name, split,
                    learner.likelihood.metric, number, position,
                )  # fmt: skip
        if problem.truth is not None and last:
            yield from _iterate_squared_errors_of_linear_coefficients(
                learner, state, problem.truth, label, order, seeds
            )
        if recorder is not None:
            yield from recorder.iterate_diagnostics_after_stage(index, state)
    seconds = time.perf_counter() - start - aside
    where = len(stream) - 1, label, order, seeds
    yield from iterate_unstable_feature_counts_and_flags_by_replica(
        learner, state, *where
    )
    if recorder is not None:
        seconds -= recorder.seconds
        yield from iterate_metrics_of_environments(predictions, *where)
    for count in counts if learner.adapts else ():
        yield from _iterate_scores_after_adaptation(
            learner, state, problem, count, label, order, seeds
        )
    yield RunRecord(
        label,
        order,
        seeds,
        collect_learner_settings(learner),
        dataset or {},
        selection,
        measure_state_size(state),
        seconds,
    )


def compute_mean_score(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    environment: Environment,
    n_replicas: int,
    chunk_size: int = CHUNK,
) -> Tensor:
    """Return the mean score of each replica on an environment.

    Args:
        learner: The learner.
        state: Its state.
        environment: The environment to score.
        n_replicas: Number of replicas in the state.
        chunk_size: Number of examples that are predicted at once.

    Returns:
        Accuracies in percent or mean squared errors, [replica].

    Example:
        >>> from cirm import Environment, Randomness, Task
        >>> from cirm.learners import create
        >>> x, y = torch.zeros(4, 1), torch.tensor([1.0, 1.0, -1.0, -1.0])
        >>> data = Environment("a", x, y, Task.regression())
        >>> learner = create("erm", data, {"hidden": ()})
        >>> state = learner.init(Randomness((0,)))
        >>> state = state._replace(params=torch.zeros_like(state.params))
        >>> compute_mean_score(learner, state, data, n_replicas=1).tolist()
        [1.0]
    """
    found = predict_environment(learner, state, environment, n_replicas, chunk_size)
    return compute_mean_score_of_predictions(learner, found)


def compute_mean_score_of_predictions(
    learner: Learner[Any], found: Predictions
) -> Tensor:
    """Return the mean score [replica] of predictions and targets."""
    predictions, targets = found
    scores = learner.likelihood.compute_scores(predictions, targets)
    # Sums of parts, whose last digits all recorded scores have.
    total = torch.stack([part.sum(-1) for part in scores.split(CHUNK, 1)]).sum(0)
    return total / targets.shape[1]


def collect_learner_settings(learner: Learner[Any]) -> dict[str, Any]:
    """Return a learner's settings as plain values for a record."""
    settings: dict[str, Any] = {}
    for item in dataclasses.fields(learner):
        value = getattr(learner, item.name)
        if item.name == "descent":
            settings.update(dataclasses.asdict(value))
        elif item.name in ("network", "likelihood"):
            settings[item.name] = repr(value)
        else:
            settings[item.name] = value
    return settings


def _iterate_scores_before_training(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    problem: Problem,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[ScoreRecord]:
    """Yield the scores of a state that has seen nothing, to measure transfer from."""
    for environment in problem.train:
        scores = compute_mean_score(learner, state, environment, len(seeds))
        for seed, number in zip(seeds, scores.tolist(), strict=True):
            where = label, order, seed, 0, environment.name, "untrained"
            yield ScoreRecord(*where, learner.likelihood.metric, number)


def _iterate_predictions_after_stage(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    problem: Problem,
    is_last_stage: bool,
    inferred_stage: Stage,
    n_replicas: int,
) -> Iterator[tuple[str, float | None, Environment, Predictions]]:
    """Yield split, position, environment and predictions of all that is scored."""
    parts = {"train": problem.train, "inferred": inferred_stage, "test": problem.test}
    for split, environments in parts.items():
        for one in environments:
            yield split, None, one, predict_environment(learner, state, one, n_replicas)
    if is_last_stage and problem.sweep:
        positions, environments = zip(*problem.sweep, strict=True)
        found = predict_sweep(learner, state, environments, n_replicas)
        for position, one, pair in zip(positions, environments, found, strict=True):
            yield "sweep", position, one, pair


def _iterate_squared_errors_of_linear_coefficients(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    true_coefficients: Tensor,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[ScoreRecord]:
    """Yield squared errors of linear coefficients, read off predictions.

    Yield nothing for functions that are not linear, such as trees.
    """
    width = true_coefficients.shape[-1]
    probes = torch.cat([torch.zeros(1, width), torch.eye(width)])
    far = torch.cat([-torch.eye(width), torch.full((1, width), 2.0)])
    with torch.no_grad():
        values, far_values = (
            learner.predict(state, rows.expand(len(seeds), -1, -1))[..., 0]
            for rows in (probes, far)
        )
    coefficients = values[:, 1:] - values[:, :1]
    if not torch.allclose(
        far_values, values[:, :1] + coefficients @ far.T, rtol=1e-3, atol=1e-3
    ):
        return
    errors = compute_squared_errors_of_coefficients(coefficients, true_coefficients)
    for seed, row in zip(seeds, errors.tolist(), strict=True):
        for name, error in zip(("causal", "noncausal"), row, strict=True):
            yield ScoreRecord(
                label, order, seed, 0, name, "truth", "coefficients", error
            )


def _iterate_scores_after_adaptation(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    problem: Problem,
    row_count: RowCount,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[AdaptedScoreRecord]:
    """Adapt to each unseen environment in turn, and yield the scores there."""
    for split, position, environment in list_unseen_environments(problem):
        inputs = draw_unlabelled_inputs(environment, row_count, seeds)
        adapted = learner.adapt(state, inputs.to(learner.descent.device))
        scores = compute_mean_score(learner, adapted, environment, len(seeds))
        for seed, number in zip(seeds, scores.tolist(), strict=True):
            yield AdaptedScoreRecord(
                label, order, seed, str(row_count), environment.name, split,
                learner.likelihood.metric, number, position,
            )  # fmt: skip


def _explain_divergence_error(
    error: DivergenceError, label: str, stage: int, seeds: tuple[int, ...]
) -> str:
    message, lost = error.args
    which = ", ".join(str(seeds[row]) for row in lost)
    return (
        f"learner {label}, stage {stage}: {message} (seeds {which}). Use a smaller "
        "learning rate (--set rate=...) or a smaller penalty."
    )
