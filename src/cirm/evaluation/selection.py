"""Rules that choose a learner's settings, and the data that each of them may see.

A rule scores a trained candidate. All that it gets of a problem is `TrainingData`: the
training environments. This has no place for a test environment or a sweep, so that no
rule can use one, by mistake or otherwise. Only `OracleRule` gets `TrainingAndTestData`;
what it chooses is a bound on what any rule could choose, never a result.

Scores are accuracies in percent or negative errors, [replica]: higher is better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stream
from cirm.evaluation.diagnostics import (
    compute_worst_group_score,
    concatenate_predictions_of_environments,
    predict_and_group_examples,
    take_evenly_spaced_examples,
)
from cirm.evaluation.groups import GroupReferenceModel
from cirm.evaluation.run import Progress, Transform, compute_mean_score
from cirm.learners.base import Learner
from cirm.randomness import Randomness
from cirm.registry import NamedClassRegistry
from cirm.training import Terms, ignore_training_steps

RULES = {
    "held-out": f"{__name__}:HeldOutRule",
    "next": f"{__name__}:NextEnvironmentRule",
    "worst-group": f"{__name__}:WorstGroupRule",
    "leave-one-out": f"{__name__}:LeaveOneOutRule",
    "oracle": f"{__name__}:OracleRule",
}
"""Import path by key."""

REGISTRY = NamedClassRegistry("selection rule", "cirm.rules", __package__, RULES)
"""The rules here and those that installed packages offer."""

MAX_GROUPED = 4000  # held-out examples of an environment; more only take longer


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Training environments, whole and each split in two: all that a rule may see.

    Attributes:
        whole: The training environments.
        learn: The examples of each that candidates learn from.
        held_out: The other examples of each.
    """

    whole: tuple[Environment, ...]
    learn: tuple[Environment, ...]
    held_out: tuple[Environment, ...]

    @classmethod
    def split(
        cls, train: Sequence[Environment], seeds: tuple[int, ...], fraction: float
    ) -> TrainingData:
        """Hold out a random part of each training environment, for each replica."""
        learn, held_out = [], []
        for environment in train:
            size = round(fraction * len(environment))
            if not 0 < size < len(environment):
                raise ValueError(
                    f"environment {environment.name!r} has {len(environment)} "
                    f"examples, so a fraction of {fraction:g} would leave none for "
                    "training or none for scoring. Choose another fraction with "
                    "--hold-out."
                )
            source = Randomness(seeds).at("selection", environment.name)
            order = source.permutation(len(environment))
            held_out.append(environment.subset(order[:, :size].contiguous()))
            learn.append(environment.subset(order[:, size:].contiguous()))
        return cls(tuple(train), tuple(learn), tuple(held_out))


@dataclass(frozen=True, slots=True)
class TrainingAndTestData(TrainingData):
    """What only a rule with `sees_test` gets: the test environments as well."""

    test: tuple[Environment, ...]


class TrainedLearner(NamedTuple):
    """A learner after a stream.

    Attributes:
        learner: The learner.
        state: What it has learned.
        seeds: The seed of each replica.
        next_scores: Score of each later stage before it was learned,
            [replica, stages - 1].
        left_out: Index of the training environment that was left out, if any.
    """

    learner: Learner[Any]
    state: Any
    seeds: tuple[int, ...]
    next_scores: Tensor
    left_out: int | None = None

    def compute_mean_score(self, environments: Sequence[Environment]) -> Tensor:
        """Return the mean accuracy, or negative error, over environments, [replica]."""
        replicas = len(self.seeds)
        scores = [
            compute_mean_score(self.learner, self.state, e, replicas)
            for e in environments
        ]
        return self.negate_scores_that_are_errors(torch.stack(scores).mean(0))

    def negate_scores_that_are_errors(self, scores: Tensor) -> Tensor:
        """Return scores such that higher is better: errors become negative."""
        return -scores if self.learner.likelihood.metric == "error" else scores


class Rule(ABC):
    """Scores a trained candidate; `cirm select` picks the candidate with the highest.

    A rule with settings of its own is a frozen dataclass. An instance can be used
    wherever the key of a built-in rule can, and other packages can offer rules by
    entry points of the group `cirm.rules`.

    Attributes:
        name: A short name, under which scores are recorded.
        description: What the score is, in one line.
        leaves_out: Whether candidates are trained without one environment, once for
            each. The rule's score is then the mean over these trainings.
        sees_test: Whether `score` gets `TrainingAndTestData`. Such a rule gives a bound
            and no result.

    Example:
        >>> class WorstEnvironment(Rule):
        ...     name = "worst-environment"
        ...     description = "score on the worst held-out part of an environment"
        ...
        ...     def score(self, trained, data):
        ...         parts = ([part] for part in data.held_out)
        ...         scores = list(map(trained.compute_mean_score, parts))
        ...         return torch.stack(scores).amin(0)
        >>> get_selection_rule(WorstEnvironment()).name
        'worst-environment'
    """

    name: ClassVar[str]
    description: ClassVar[str]
    leaves_out: ClassVar[bool] = False
    sees_test: ClassVar[bool] = False

    @abstractmethod
    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the score of each replica, [replica]; higher is better.

        Args:
            trained: The candidate after training on the learning parts.
            data: What the rule may see.
        """

    def find_obstacle(
        self, n_stages: int, n_training_environments: int, n_test_environments: int
    ) -> str:
        """Return why the rule cannot be applied, or an empty string if it can.

        Args:
            n_stages: Number of stages of the stream.
            n_training_environments: Number of training environments.
            n_test_environments: Number of test environments.
        """
        return ""


class HeldOutRule(Rule):
    """Mean score on the held-out parts of the training environments."""

    name = "held-out"
    description = "mean score on held-out parts of the training environments"

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the mean score on the held-out parts, [replica]."""
        return trained.compute_mean_score(data.held_out)


class NextEnvironmentRule(Rule):
    """Mean score on each next environment, before it is learned."""

    name = "next"
    description = "mean score on each next environment, before it is learned"

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the mean score on later stages before they were learned, [replica]."""
        return trained.next_scores.mean(1)

    def find_obstacle(
        self, n_stages: int, n_training_environments: int, n_test_environments: int
    ) -> str:
        """Return an obstacle if there is only one stage."""
        return (
            ""
            if n_stages > 1
            else (f"this rule needs two or more stages, but there is only {n_stages}")
        )


class WorstGroupRule(Rule):
    """Score of the worst inferred group among the held-out examples."""

    name = "worst-group"
    description = "score of the worst inferred group in held-out training data"

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the score of the worst group over all environments, [replica].

        Groups are pooled over the environments: with a few hundred examples, the worst
        of many small groups would be a matter of luck.
        """
        sets, replicas = [], len(trained.seeds)
        for learn, held_out in zip(data.learn, data.held_out, strict=True):
            at = Randomness(trained.seeds).at("selection", "reference", learn.name)
            reference = GroupReferenceModel.fit(learn, at)
            held_out = take_evenly_spaced_examples(held_out, replicas, MAX_GROUPED)
            one = (trained.learner, trained.state, held_out, reference, replicas)
            sets.append(predict_and_group_examples(*one))
        likelihood = trained.learner.likelihood
        pooled = concatenate_predictions_of_environments(sets)
        return trained.negate_scores_that_are_errors(
            compute_worst_group_score(likelihood, pooled)
        )


class LeaveOneOutRule(Rule):
    """Mean score on each training environment when it is left out."""

    name = "leave-one-out"
    description = "mean score on each training environment when it is left out"
    leaves_out = True

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the score on the whole environment that was left out, [replica]."""
        if trained.left_out is None:
            raise ValueError(
                "the rule leave-one-out needs a learner that was trained without one "
                "of the environments. Pass the number of that environment as "
                "left_out to train_without_held_out_examples."
            )
        return trained.compute_mean_score([data.whole[trained.left_out]])

    def find_obstacle(
        self, n_stages: int, n_training_environments: int, n_test_environments: int
    ) -> str:
        """Return an obstacle if there is only one training environment."""
        what = "two or more training environments"
        return (
            ""
            if n_training_environments > 1
            else f"this rule needs {what}, but there is only {n_training_environments}"
        )


class OracleRule(Rule):
    """Score on the test environments: a bound, not an honest choice."""

    name = "oracle"
    description = "score on the test environment: an upper bound, not a fair selection"
    sees_test = True

    def score(self, trained: TrainedLearner, data: TrainingData) -> Tensor:
        """Return the mean score on the test environments, [replica]."""
        if not isinstance(data, TrainingAndTestData):
            raise TypeError(
                "the rule oracle needs the test environments. Pass TrainingAndTestData "
                "instead of TrainingData."
            )
        return trained.compute_mean_score(data.test)

    def find_obstacle(
        self, n_stages: int, n_training_environments: int, n_test_environments: int
    ) -> str:
        """Return an obstacle if there is no test environment."""
        return (
            ""
            if n_test_environments
            else "this rule needs a test environment, but the data set has none"
        )


def get_selection_rule(rule: str | Rule) -> Rule:
    """Return a rule.

    Args:
        rule: A key such as "held-out", the name of an entry point, an import path such
            as "package.module:Class", or a rule, which is returned unchanged.

    Returns:
        The rule.

    Raises:
        ValueError: If no rule has this key.

    Example:
        >>> get_selection_rule("oracle").sees_test
        True
    """
    if isinstance(rule, Rule):
        return rule
    loaded = REGISTRY.load(rule)
    return loaded() if isinstance(loaded, type) else loaded


def train_without_held_out_examples(
    learner: Learner[Any],
    data: TrainingData,
    order: str,
    seeds: tuple[int, ...],
    left_out: int | None = None,
    progress: Progress = lambda done: None,
    transform: Transform | None = None,
) -> TrainedLearner:
    """Train on the learning parts, without one environment if it is left out.

    The whole of each environment of a later stage is scored before it is learned. A
    transform replaces each stage before the learner sees it.
    """
    parts = data.learn
    if left_out is not None:
        parts = parts[:left_out] + parts[left_out + 1 :]
        order = remove_environment_from_order(order, left_out)
    whole = {environment.name: environment for environment in data.whole}
    stream, randomness = Stream.from_order(parts, order), Randomness(seeds)
    trained = TrainedLearner(
        learner,
        learner.init(randomness.at("init")),
        seeds,
        torch.empty(len(seeds), 0),
        left_out,
    )
    for index, stage in enumerate(stream):

        def report_training_step(
            step: int, n_steps: int, _: Terms, index: int = index
        ) -> None:
            progress((index + step / n_steps) / len(stream))

        scores = trained.next_scores
        if index and left_out is None:
            coming = [whole[environment.name] for environment in stage]
            scores = torch.cat([scores, trained.compute_mean_score(coming)[:, None]], 1)
        source = randomness.at("stage", index)
        if transform is not None:
            stage = transform(stage, source.at("inference"), ignore_training_steps)
        state = learner.observe(trained.state, stage, source, report_training_step)
        trained = trained._replace(state=state, next_scores=scores)
    return trained


def remove_environment_from_order(order: str, index: int) -> str:
    """Return the order of the environments that remain without one of them."""
    if "+" not in order and not order.isdecimal():
        return order
    sizes, end = [int(size) for size in order.split("+")], 0
    for stage, size in enumerate(sizes):
        end += size
        if index < end:
            sizes[stage] -= 1
            break
    return "+".join(str(size) for size in sizes if size)
