"""Numbers that show whether to trust a model, without using an unseen environment.

They are computed on examples that nothing is trained on (`fresh` of the problem), where
the data set has some to spare, and recorded under the split "diagnostic". Setting a
part of the data aside would change what is learned. So where there are none to spare,
as in a user's own files, the training examples are used, under the split "diagnostic on
training data": there a model that memorised its examples looks better than it is.

The following metrics are recorded after each stage, for each environment that has
arrived and for all of them together:

- worst group: the score of the worst inferred group (see `groups`);
- calibration: the calibration error in percent, weighted over bins of confidence. In
  regression: the mean prediction less the mean target, in deviations of the targets;
- slope penalty: the squared slope of the risk in a factor on the outputs;
- agreement: how often the model predicts what the reference predicts, in percent. In
  regression: the correlation of their predictions;
- reference: the score of the reference itself.

For all environments together there are also the range of the calibration errors over
environments and groups, and a failure as 1 or 0: `constant`. After
the last stage the score and the calibration error of each group are added.

All functions return a value per replica; percentages are from 0 to 100.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Problem, Stream, Task
from cirm.evaluation.groups import (
    GroupOfEachExample,
    GroupReferenceModel,
    compute_group_means,
    compute_worst_group_mean,
    concatenate_example_groups,
    count_group_sizes,
)
from cirm.learners.base import Learner
from cirm.likelihoods import Likelihood
from cirm.objectives import Batch, compute_irm_penalties
from cirm.randomness import Randomness
from cirm.records import ScoreRecord
from cirm.training import DivergenceError, build_averaging_weights

MAX_EXAMPLES = 1000  # per environment: enough for percentages, and quick
MAX_GROUPS = 24  # more would fill the records with rows that nobody reads
BINS = 10  # of confidence or of predicted values, as is usual for calibration errors
MIN_CONSTANT = 0.95  # of the examples of other classes, predicted as the same class
MIN_OTHERS = 5  # examples of other classes; a useful model might miss fewer
# Fractions of the targets' variance: predictions with less are constant, and the
# reference must explain this much.
CONSTANT_VARIANCE = 0.01
LEARNABLE_VARIANCE = 0.1


class PredictionsWithTargets(NamedTuple):
    """Predictions [replica, n, k] for examples with targets y [replica, n]."""

    predictions: Tensor
    y: Tensor
    groups: GroupOfEachExample


class DiagnosticsCalculator:
    """Compute the diagnostics of a learner after each stage.

    Attributes:
        seconds: How long the diagnostics have taken so far.
        diverged: Whether a reference diverged, after which no rows are recorded.
    """

    def __init__(
        self,
        learner: Learner[Any],
        problem: Problem,
        order: str,
        seeds: tuple[int, ...],
        label: str,
    ) -> None:
        self.learner, self.seeds, self.seconds = learner, seeds, 0.0
        self.label, self.order = label, order
        self.stages = Stream.from_order(problem.train, order).stages
        self.fresh = {environment.name: environment for environment in problem.fresh}
        self.split = "diagnostic" if self.fresh else "diagnostic on training data"
        self.randomness = Randomness(seeds).at("diagnostics")
        self.seen: dict[str, tuple[Environment, GroupOfEachExample]] = {}
        self.diverged = False

    def iterate_diagnostics_after_stage(
        self,
        stage_index: int,
        state: Any,  # noqa: ANN401
    ) -> Iterator[ScoreRecord]:
        """Yield the rows after a stage. Call it for every stage, in order."""
        start = time.perf_counter()
        try:
            for environment in self.stages[stage_index]:
                self.seen[environment.name] = self._take_examples_with_inferred_groups(
                    environment
                )
        except DivergenceError:  # only the reference did; the learner is not affected
            self.diverged = True
        if self.diverged:
            return
        predictions = {}
        for name, (environment, groups) in self.seen.items():
            x, y = environment.take_all(len(self.seeds))
            values = predict_examples(self.learner, state, x)
            predictions[name] = PredictionsWithTargets(values, y, groups)
        likelihood, task = self.learner.likelihood, self.stages[0][0].task
        last = stage_index == len(self.stages) - 1
        rows = list(iterate_diagnostic_metrics(likelihood, task, predictions, last))
        self.seconds += time.perf_counter() - start
        for where, metric, values in rows:
            for seed, value in zip(self.seeds, values.tolist(), strict=True):
                place = (self.label, self.order, seed, stage_index, where)
                yield ScoreRecord(*place, self.split, metric, value)

    def _take_examples_with_inferred_groups(
        self, environment: Environment
    ) -> tuple[Environment, GroupOfEachExample]:
        """Return the examples to score and their groups; the reference is dropped."""
        source = self.randomness.at(environment.name)
        reference = GroupReferenceModel.fit(environment, source)
        held_out = take_evenly_spaced_examples(
            self.fresh.get(environment.name, environment), len(self.seeds)
        )
        x, y = held_out.take_all(len(self.seeds))
        return held_out, reference.group_examples_by_reference_error(
            held_out.task, x, y
        )


def predict_and_group_examples(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    environment: Environment,
    reference: GroupReferenceModel,
    n_replicas: int,
) -> PredictionsWithTargets:
    """Predict the examples of an environment and group them by the reference."""
    x, y = environment.take_all(n_replicas)
    groups = reference.group_examples_by_reference_error(environment.task, x, y)
    return PredictionsWithTargets(predict_examples(learner, state, x), y, groups)


def predict_examples(learner: Learner[Any], state: Any, x: Tensor) -> Tensor:  # noqa: ANN401
    """Return predictions [replica, n, k] of inputs [replica, n, ...] on the CPU."""
    with torch.no_grad():
        return learner.predict(state, x.to(learner.descent.device)).cpu()


def take_evenly_spaced_examples(
    environment: Environment, n_replicas: int, max_examples: int = MAX_EXAMPLES
) -> Environment:
    """Return at most `max_examples` evenly spaced examples of an environment."""
    if len(environment) <= max_examples:
        return environment
    rows = torch.linspace(0, len(environment) - 1, max_examples).long()
    return environment.subset(rows.expand(n_replicas, -1))


def iterate_diagnostic_metrics(
    likelihood: Likelihood,
    task: Task,
    predictions_by_environment: dict[str, PredictionsWithTargets],
    is_last_stage: bool,
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield environment or "all", metric and its values [replica]."""
    pooled = concatenate_predictions_of_environments(
        list(predictions_by_environment.values())
    )
    for where, one in {"all": pooled, **predictions_by_environment}.items():
        yield where, "worst group", compute_worst_group_score(likelihood, one)
        yield where, "calibration", compute_calibration_errors(task, one)[:, 0]
        yield where, "slope penalty", compute_irm_penalty(likelihood, one)
        yield where, "agreement", compute_agreement_with_reference(task, one)
        yield where, "reference", compute_score_of_reference(task, one)
    errors = [
        compute_calibration_errors(task, one)
        for one in predictions_by_environment.values()
    ]
    yield (
        "all",
        "calibration spread",
        compute_range_of_finite_values(torch.cat(errors, 1)),
    )
    yield "all", "constant", are_predictions_constant(task, pooled).float()
    if not is_last_stage or len(pooled.groups.names) > MAX_GROUPS:
        return
    for (name, one), own_errors in zip(
        predictions_by_environment.items(), errors, strict=True
    ):
        scores = likelihood.compute_scores(one.predictions, one.y)
        means = compute_group_means(scores, one.groups)
        for group, title in enumerate(one.groups.names):
            # A number that some replica lacks would leave holes in the records.
            if means[:, group].isfinite().all():
                yield f"{name}: {title}", "group score", means[:, group]
                yield f"{name}: {title}", "group calibration", own_errors[:, 1 + group]


def concatenate_predictions_of_environments(
    predictions: Sequence[PredictionsWithTargets],
) -> PredictionsWithTargets:
    """Concatenate the examples of several environments."""
    return PredictionsWithTargets(
        torch.cat([one.predictions for one in predictions], 1),
        torch.cat([one.y for one in predictions], 1),
        concatenate_example_groups([one.groups for one in predictions]),
    )


def compute_worst_group_score(
    likelihood: Likelihood, predictions: PredictionsWithTargets
) -> Tensor:
    """Return the lowest accuracy or the highest error of a group, [replica]."""
    scores = likelihood.compute_scores(predictions.predictions, predictions.y)
    return compute_worst_group_mean(
        scores, predictions.groups, likelihood.metric == "error"
    )


def compute_calibration_errors(
    task: Task, predictions: PredictionsWithTargets
) -> Tensor:
    """Return errors in percent of all examples and of each group, [replica, 1 + group].

    The error of a group without examples is NaN, as are those of a regression whose
    targets are all the same, since errors are in units of their standard deviation.
    """
    if task.classes:
        confidence, predicted = predictions.predictions.max(-1)
        gaps = (predicted == predictions.y).float() - confidence
        bins = (confidence * BINS).long().clamp(0, BINS - 1)
    else:
        values = predictions.predictions.squeeze(-1)
        spread = predictions.y.std(
            -1, correction=min(1, predictions.y.shape[1] - 1), keepdim=True
        )
        gaps = (predictions.y - values) / spread.masked_fill(spread <= 1e-12, torch.nan)
        ranks = values.argsort(-1).argsort(-1)
        bins = BINS * ranks // values.shape[1]
    count = len(predictions.groups.names)
    sums = gaps.new_zeros(len(gaps), count * BINS)
    sums = sums.scatter_add(1, predictions.groups.indices * BINS + bins, gaps)
    sums = sums.unflatten(1, (count, BINS))
    pooled = sums.sum(1).abs().sum(-1, keepdim=True) / gaps.shape[1]
    by_group = sums.abs().sum(-1) / count_group_sizes(predictions.groups)
    return 100 * torch.cat([pooled, by_group], 1)


def compute_range_of_finite_values(values: Tensor) -> Tensor:
    """Return largest less smallest of the finite values [replica, m], [replica]."""
    finite = values.isfinite()
    largest = values.masked_fill(~finite, -torch.inf).amax(-1)
    return largest - values.masked_fill(~finite, torch.inf).amin(-1)


def compute_irm_penalty(
    likelihood: Likelihood, predictions: PredictionsWithTargets
) -> Tensor:
    """Return the squared slope of the risk in a factor on the outputs, [replica].

    Log probabilities serve as logits: they differ from a network's by a shift that
    does not matter, and also exist for the mean of several networks.
    """
    outputs = predictions.predictions
    if likelihood.metric == "accuracy":
        outputs = outputs.clamp(min=1e-12).log()
    size = predictions.y.shape[1]
    weights = build_averaging_weights((size,), predictions.y.device).expand(
        len(predictions.y), -1, -1
    )
    noise = Randomness(()).start_draws()
    batch = Batch(predictions.predictions, predictions.y, weights, (size,), 1.0, noise)
    return compute_irm_penalties(likelihood, outputs, batch)[:, 0]


def compute_agreement_with_reference(
    task: Task, predictions: PredictionsWithTargets
) -> Tensor:
    """Return how often model and reference agree, or their correlation, in percent."""
    if task.classes:
        same = predictions.predictions.argmax(-1) == predictions.groups.reference
        return 100 * same.float().mean(-1)
    pair = torch.stack(
        [predictions.predictions.squeeze(-1), predictions.groups.reference], 1
    )
    pair = pair - pair.mean(-1, keepdim=True)
    norms = pair.square().sum(-1).sqrt().clamp(min=1e-12)
    return 100 * (pair[:, 0] * pair[:, 1]).sum(-1) / (norms[:, 0] * norms[:, 1])


def compute_score_of_reference(
    task: Task, predictions: PredictionsWithTargets
) -> Tensor:
    """Return the reference's accuracy in percent or mean squared error, [replica]."""
    if task.classes:
        return 100 * (predictions.groups.reference == predictions.y).float().mean(-1)
    return (predictions.groups.reference - predictions.y).square().mean(-1)


def are_predictions_constant(task: Task, predictions: PredictionsWithTargets) -> Tensor:
    """Return whether predictions are nearly constant and targets are not, [replica].

    Classes are judged by the examples of all but the predicted class, however few. In
    regression only if the reference shows that there is something to learn.
    """
    if not task.classes:
        total = predictions.y.var(-1, correction=0)
        spread = predictions.predictions.squeeze(-1).var(-1, correction=0)
        unexplained = compute_score_of_reference(task, predictions)
        is_learnable = unexplained < (1 - LEARNABLE_VARIANCE) * total
        return (spread < CONSTANT_VARIANCE * total) & is_learnable
    predicted = predictions.predictions.argmax(-1)
    most = predicted.mode(-1, keepdim=True).values
    others = predictions.y != most
    alike = ((predicted == most) & others).sum(-1)
    count = others.sum(-1)
    return (count >= MIN_OTHERS) & (alike >= MIN_CONSTANT * count)
