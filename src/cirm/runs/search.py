"""A random search over a learner's settings, by rules that see no test environment.

Every trial is a job, named by its content, that trains on a part of each training
environment and leaves the scores of all rules that this one training allows; each
environment that the rule leave-one-out leaves out is a job more. What has been trained
is not trained again for another rule, for more trials, or after an interruption.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cirm.records import Record, Run, Score
from cirm.runs.jobs import Job, described, execute, fingerprint
from cirm.runs.plans import PreparedDataset
from cirm.runs.search_space import Space, drawn, spelled_space

if TYPE_CHECKING:
    from torch import Tensor

    from cirm.environments import Environment
    from cirm.evaluation.selection import Offer

DIVERGED = "diverged"


@dataclass(frozen=True)
class Candidate(Job):
    """A job that trains on a part of the training environments; its records are scores.

    The part `held` of each is held out; `left` is the number of one that is left out
    of the training altogether. Only with `oracle` is the test environment scored.
    """

    held: float = 0.2
    left: int | None = None
    oracle: bool = False


@dataclass(frozen=True)
class Search:
    """What is tried: so many draws from a space, judged by rules.

    `on` is without its test environments, see `training_only`. `settings` are fixed,
    and go over those of the preset; the draws over both.
    """

    on: PreparedDataset
    learner: str
    order: str
    seeds: tuple[int, ...]
    space: Space
    rules: tuple[str, ...]
    trials: int = 20
    preset: str = ""
    settings: Mapping[str, Any] | None = None
    held: float = 0.2
    draw: int = 0

    @property
    def key(self) -> str:
        """A short name for all but the number of trials and the rules.

        With more of these the search goes on in the same folder.
        """
        (first,) = replace(self, rules=("held-out",)).jobs(0)
        text = " ".join([first.key, str(self.draw), str(spelled_space(self.space))])
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def chosen(self, trial: int) -> dict[str, Any]:
        """The settings of a trial that are not the preset's or the defaults."""
        return {**(self.settings or {}), **drawn(self.space, trial, self.draw)}

    def jobs(self, trial: int) -> list[Candidate]:
        """The jobs of a trial, that with all environments first."""
        from cirm.learners import create

        create(self.learner, self.on.problem.train[0], self.chosen(trial), self.preset)
        lefts: list[int | None] = []
        if set(self.rules) - {"leave-one-out"}:
            lefts.append(None)
        if "leave-one-out" in self.rules:
            lefts += range(len(self.on.problem.train))
        return [
            Candidate(
                dataset=self.on.dataset,
                learner=self.learner,
                order=self.order,
                seeds=self.seeds,
                data=self.on.data,
                settings=self.chosen(trial),
                preset=self.preset,
                selection="a trial of a search",
                label=self.learner,
                files=fingerprint(self.on.data),
                held=self.held,
                left=left,
                oracle="oracle" in self.rules and left is None,
            )
            for left in lefts
        ]

    def every(self) -> list[Candidate]:
        """The jobs of all trials, each once."""
        jobs = [job for trial in range(self.trials) for job in self.jobs(trial)]
        return list({job.key: job for job in jobs}.values())


def drop_test_environments(on: PreparedDataset) -> PreparedDataset:
    """A data set without its test environments and sweep."""
    from cirm.environments import Problem

    return on._replace(problem=Problem(on.problem.train))


@execute.register(Candidate)
def scored(
    job: Candidate, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """The scores of a candidate; that it diverged is one too. Its time comes last."""
    import torch

    from cirm.evaluation.run import collect_settings
    from cirm.learners import create

    torch.set_num_threads(1)
    began = time.perf_counter()
    offer, test = offered(job), unseen(job) if job.oracle else ()
    learner = create(job.learner, offer.whole[0], job.settings, job.preset)
    rows: list[Record] = [
        Score(job.name, job.order, seed, 0, where, "selection", metric, value)
        for (where, metric), values in _scores(job, learner, offer, test, progress)
        for seed, value in zip(job.seeds, values.tolist(), strict=True)
    ]
    seconds = time.perf_counter() - began
    settings, data = collect_settings(learner), described(job)
    name, order, way = job.name, job.order, job.selection
    return [*rows, Run(name, order, job.seeds, settings, data, way, seconds=seconds)]


def offered(job: Candidate) -> Offer:
    """The training environments of a candidate's data; nothing else leaves here."""
    from cirm.data import get_dataset_class
    from cirm.evaluation.selection import Offer

    problem = get_dataset_class(job.dataset)(**job.data).draw(job.seeds)
    return Offer.of(problem.train, job.seeds, job.held)


def unseen(job: Candidate) -> tuple[Environment, ...]:
    """The test environments of a candidate's data, for the oracle."""
    from cirm.data import get_dataset_class

    return get_dataset_class(job.dataset)(**job.data).draw(job.seeds).test


def _scores(
    job: Candidate,
    learner: Any,  # noqa: ANN401  any learner
    offer: Offer,
    test: Sequence[Environment],
    progress: Callable[[float], None],
) -> list[tuple[tuple[str, str], Tensor]]:
    """Environment or "all", rule, and the score of each replica."""
    import torch

    from cirm.evaluation import selection
    from cirm.training import DivergenceError

    seeds = job.seeds
    try:
        model = selection.trained(learner, offer, job.order, seeds, job.left, progress)
    except DivergenceError:
        return [(("all", DIVERGED), torch.ones(len(seeds)))]
    if job.left is not None:
        name = offer.whole[job.left].name
        left_out = selection.leave_one_out(model, offer, job.left, seeds)
        return [((name, "leave-one-out"), left_out)]
    found = {
        "held-out": selection.held_out(model, offer, seeds),
        "worst-group": selection.worst_inferred_group(model, offer, seeds),
    }
    if model.ahead.numel():
        found["next"] = selection.next_environment(model)
    if test:
        found["oracle"] = selection.oracle(model, seeds, test=test)
    return [(("all", rule), values) for rule, values in found.items()]
