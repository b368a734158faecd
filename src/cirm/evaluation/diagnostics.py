"""Numbers that tell whether to trust a model, without a look at an unseen environment.

They are taken on examples that nothing is trained on (`fresh` of the problem), where
the data set has some to spare, and recorded under the split "diagnostic". Setting a
part of the data aside would change what is learned; so where there are none to spare,
as in a user's own files, the training examples are used, under "diagnostic on training
data": there a model that learned its examples by heart looks better than it is.

After each stage, of each environment that has arrived, and the first of all of them
together:

- worst group: the score of the worst inferred group (see `groups`);
- calibration: how far confidence is from accuracy (of values: the mean prediction from
  the mean target, in deviations of the targets), weighted over bins, in percent;
- slope penalty: the squared slope of the risk in a factor on the outputs;
- agreement: how often it answers as the reference does (of values: their correlation),
  in percent;
- reference: the score of the reference itself.

Of all together also the spread of the calibration errors between environments and
groups, and two failures as 1 or 0: `constant` and `shortcut`. After the last stage
the score and the calibration of each group are added.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cirm.environments import Environment, Problem, Stream, Task
from cirm.evaluation import measures
from cirm.evaluation.groups import Groups, Reference, group_means
from cirm.evaluation.measures import Look, predict_examples
from cirm.learners.base import Learner
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.records import Score
from cirm.training import DivergenceError

MOST = 1000  # examples of an environment that are looked at
MOST_GROUPS = 24  # groups of an environment that have rows of their own


class Diagnosis:
    """What is known of the environments so far, to judge a learner by.

    `seconds` is the time that it has taken; `lost` says that a reference could not be
    trained, so that there are no more rows.
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
        self.seen: dict[str, tuple[Environment, Groups]] = {}
        self.lost = False

    def after(self, index: int, state: Any) -> Iterator[Score]:  # noqa: ANN401
        """The rows after a stage; told of every stage, in order."""
        began = time.perf_counter()
        try:
            for environment in self.stages[index]:
                self.seen[environment.name] = self._grouped(environment)
        except (
            DivergenceError
        ):  # of the reference; what was learned is none the worse for it
            self.lost = True
        if self.lost:
            return
        looks = {name: self._look(state, *held) for name, held in self.seen.items()}
        likelihood = self.learner.likelihood
        task = self.stages[0][0].task
        last = index == len(self.stages) - 1
        numbers = list(compute_diagnostics(likelihood, task, looks, last))
        self.seconds += time.perf_counter() - began
        for where, metric, values in numbers:
            for seed, value in zip(self.seeds, values.tolist(), strict=True):
                yield Score(
                    self.label,
                    self.order,
                    seed,
                    index,
                    where,
                    self.split,
                    metric,
                    value,
                )

    def _grouped(self, environment: Environment) -> tuple[Environment, Groups]:
        """The examples to look at and their groups; the reference is then let go."""
        source = self.randomness.at(environment.name)
        reference = Reference.of(environment, source)
        held = thin_environment(
            self.fresh.get(environment.name, environment), len(self.seeds)
        )
        x, y = held.take_all(len(self.seeds))
        return held, reference.groups(held, reference.answers(x), y)

    def _look(self, state: Any, held: Environment, groups: Groups) -> Look:  # noqa: ANN401
        x, y = held.take_all(len(self.seeds))
        return Look(predict_examples(self.learner, state, x), y, groups)


def thin_environment(
    environment: Environment, replicas: int, most: int = MOST
) -> Environment:
    """At most so many examples of an environment, evenly taken."""
    if len(environment) <= most:
        return environment
    rows = torch.linspace(0, len(environment) - 1, most).long()
    return environment.subset(rows.expand(replicas, -1))


def compute_diagnostics(
    likelihood: Likelihood, task: Task, looks: dict[str, Look], last: bool
) -> Iterator[tuple[str, str, Tensor]]:
    """Environment or "all", metric, and its value for each replica, [replica]."""
    whole = measures.together(list(looks.values()))
    for where, look in {"all": whole, **looks}.items():
        yield where, "worst group", measures.worst_group(likelihood, look)
        yield where, "calibration", measures.calibrations(task, look)[:, 0]
        yield where, "slope penalty", measures.slope_penalty(likelihood, look)
        yield where, "agreement", measures.agreement(task, look)
        yield where, "reference", measures.reference_score(task, look)
    parts = [measures.calibrations(task, look) for look in looks.values()]
    yield "all", "calibration spread", measures.spread(torch.cat(parts, 1))
    yield "all", "constant", measures.is_constant(task, whole).float()
    yield "all", "shortcut", measures.is_shortcut(likelihood, task, whole).float()
    if not last or len(whole.groups.names) > MOST_GROUPS:
        return
    for (name, look), errors in zip(looks.items(), parts, strict=True):
        values = likelihood.scores(look.predictions, look.y)
        means = group_means(values, look.groups)
        for group, title in enumerate(look.groups.names):
            # A number that some replica lacks would leave holes in the records.
            if means[:, group].isfinite().all():
                yield f"{name}: {title}", "group score", means[:, group]
                yield f"{name}: {title}", "group calibration", errors[:, 1 + group]
