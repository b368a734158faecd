"""Rules that choose a learner's settings, and what each of them may see.

An `Offer` is all that a rule gets of a problem: the training environments. It has no
place for a test environment or a sweep, so that none can be looked at, by mistake or
otherwise. Only `oracle` takes the test environments, by an argument of its own; what it
chooses is a bound on what any rule could choose, never a result.

Scores are accuracies in percent or negative errors, [replica]: the higher the better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.environments import Environment, Stream
from cirm.evaluation.diagnostics import thin_environment
from cirm.evaluation.groups import Reference
from cirm.evaluation.measures import Look, predict_examples, together, worst_group
from cirm.evaluation.run import score
from cirm.learners.base import Learner
from cirm.randomness import Randomness
from cirm.training import Terms

RULES = {
    "held-out": "mean score on held-out parts of the training environments",
    "next": "mean score on each next environment, before it is learned",
    "worst-group": "score of the worst inferred group in held-out training data",
    "leave-one-out": "mean score on each training environment when it is left out",
    "oracle": "score on the test environment: a bound, not an honest choice",
}
"""What each rule goes by; the last alone sees the test environment."""

MOST = 4000  # held-out examples of an environment that are put into groups

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rule may see: training environments, whole and in two parts each.

    A candidate learns from `learn`; `held` are the examples held out from it.
    """

    whole: tuple[Environment, ...]
    learn: tuple[Environment, ...]
    held: tuple[Environment, ...]

    @classmethod
    def of(
        cls, train: Sequence[Environment], seeds: tuple[int, ...], part: float
    ) -> Offer:
        """Training environments, a random part of each held out, for each replica."""
        learn, held = [], []
        for environment in train:
            size = round(part * len(environment))
            if not 0 < size < len(environment):
                raise ValueError(
                    f"environment {environment.name!r}: the part held out must leave "
                    f"examples on either side; got {part:g} of {len(environment)}"
                )
            source = Randomness(seeds).at("selection", environment.name)
            order = source.permutation(len(environment))
            held.append(environment.subset(order[:, :size].contiguous()))
            learn.append(environment.subset(order[:, size:].contiguous()))
        return cls(tuple(train), tuple(learn), tuple(held))

    def without(self, left: int) -> tuple[Environment, ...]:
        """The parts to learn from, but for one environment."""
        return self.learn[:left] + self.learn[left + 1 :]


class Trained(NamedTuple):
    """A learner after a stream, and its scores before each later stage.

    `ahead` is [replica, stages - 1].
    """

    learner: Learner[Any]
    state: Any
    ahead: Tensor


def trained(
    learner: Learner[Any],
    offer: Offer,
    order: str,
    seeds: tuple[int, ...],
    left: int | None = None,
    progress: Progress = lambda done: None,
) -> Trained:
    """Train on what is offered; without one environment, if it is left out.

    Each environment of a later stage is scored, all of it, before it is learned.
    """
    parts = offer.learn if left is None else offer.without(left)
    order = order if left is None else shortened(order, left)
    whole = {environment.name: environment for environment in offer.whole}
    stream, randomness = Stream.from_order(parts, order), Randomness(seeds)
    state, ahead = learner.init(randomness.at("init")), []
    for index, stage in enumerate(stream):

        def watch(step: int, steps: int, _: Terms, index: int = index) -> None:
            progress((index + step / steps) / len(stream))

        if index and left is None:
            coming = [whole[environment.name] for environment in stage]
            ahead.append(benefit(learner, state, coming, len(seeds)))
        state = learner.observe(state, stage, randomness.at("stage", index), watch)
    scores = torch.stack(ahead, 1) if ahead else torch.empty(len(seeds), 0)
    return Trained(learner, state, scores)


def held_out(model: Trained, offer: Offer, seeds: tuple[int, ...]) -> Tensor:
    """Mean score on the held-out parts, [replica]."""
    return benefit(model.learner, model.state, offer.held, len(seeds))


def next_environment(model: Trained) -> Tensor:
    """Mean score on each next stage before it was learned, [replica]."""
    return model.ahead.mean(1)


def worst_inferred_group(
    model: Trained, offer: Offer, seeds: tuple[int, ...]
) -> Tensor:
    """Score of the worst inferred group of all held-out examples, [replica].

    Groups are pooled over the environments: of a few hundred examples, the worst of
    many small groups would be a matter of luck.
    """
    looks = []
    for learn, held in zip(offer.learn, offer.held, strict=True):
        at = Randomness(seeds).at("selection", "reference", learn.name)
        reference = Reference.of(learn, at)
        held = thin_environment(held, len(seeds), MOST)
        x, y = held.take_all(len(seeds))
        groups = reference.groups(held, reference.answers(x), y)
        looks.append(Look(predict_examples(model.learner, model.state, x), y, groups))
    likelihood = model.learner.likelihood
    return _signed(model.learner, worst_group(likelihood, together(looks)))


def leave_one_out(
    model: Trained, offer: Offer, left: int, seeds: tuple[int, ...]
) -> Tensor:
    """Score on the whole of the environment that the model was trained without."""
    return benefit(model.learner, model.state, [offer.whole[left]], len(seeds))


def oracle(
    model: Trained, seeds: tuple[int, ...], *, test: Sequence[Environment]
) -> Tensor:
    """Mean score on the test environments, [replica]: what no honest rule can see."""
    return benefit(model.learner, model.state, test, len(seeds))


def benefit(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    environments: Sequence[Environment],
    replicas: int,
) -> Tensor:
    """Mean over environments of accuracy, or of negative error, [replica]."""
    scores = [score(learner, state, e, replicas) for e in environments]
    return _signed(learner, torch.stack(scores).mean(0))


def shortened(order: str, left: int) -> str:
    """The order of the environments that remain when one is left out."""
    if "+" not in order and not order.isdecimal():
        return order
    sizes, end = [int(size) for size in order.split("+")], 0
    for stage, size in enumerate(sizes):
        end += size
        if left < end:
            sizes[stage] -= 1
            break
    return "+".join(str(size) for size in sizes if size)


def find_inapplicable_rules(
    rules: Sequence[str], stages: int, train: int, test: int
) -> dict[str, str]:
    """Of these rules, those that need more of stages or environments, and what."""
    for rule in rules:
        if rule not in RULES:
            raise ValueError(
                f"rule: it must be one of {', '.join(RULES)}, or all; got {rule!r}"
            )
    needs = {
        "next": (2, stages, "two or more stages"),
        "leave-one-out": (2, train, "two or more training environments"),
        "oracle": (1, test, "a test environment"),
    }
    return {
        rule: f"there must be {what}; got {number}"
        for rule, (least, number, what) in needs.items()
        if rule in rules and number < least
    }


def _signed(learner: Learner[Any], values: Tensor) -> Tensor:
    return -values if learner.likelihood.metric == "error" else values
