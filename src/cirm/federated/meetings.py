"""The server: the average, the feature step and the rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cirm.federated.checkpoint import Checkpoint, Table
from cirm.federated.ledger import Entry, Ledger
from cirm.federated.link import Answered, Link, Request
from cirm.federated.site import Course
from cirm.federated.study import Consensus, Study, Visit, visits
from cirm.randomness import Randomness
from cirm.training import check_finite

TRIES = 3  # of an exchange where all that comes is refused
LEDGER = "ledger.jsonl"


@dataclass
class Meetings:
    """A study over stages of named sites, going on from its folder's checkpoint.

    What the data are like, the sites say. At least `least` sites must answer an
    exchange, else it is asked again.
    """

    study: Study
    stages: Sequence[Sequence[str]]
    link: Link
    folder: Path
    least: int = 1
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder / LEDGER)
        self.checkpoint = Checkpoint(self.folder, self.stages)
        names = [name for stage in self.stages for name in stage]
        if not names or not all(self.stages) or len(set(names)) < len(names):
            raise ValueError(
                "stages: each must name sites, and each site belongs to one; "
                f"got {list(map(list, self.stages))}"
            )
        fewest = min(map(len, self.stages))
        if not 1 <= self.least <= fewest:
            raise ValueError(
                f"least: it must be 1 to {fewest}, the sites of the smallest stage; "
                f"got {self.least}"
            )

    def run(self) -> None:
        """Run every stage that is not done."""
        self.study, first = self.checkpoint.study(self.study)
        for index in range(first, len(self.stages)):
            self._stage(index, self.stages[index])
        self.say(f"the study is done: {self.checkpoint.path}")

    def _stage(self, index: int, names: Sequence[str]) -> None:
        begun = self.checkpoint.within(index)
        # A stage begins when all its sites are there; one that goes on needs fewer.
        least = self.least if begun else len(names)
        entry = self.ledger.open("join", index, (0, 0))
        self.link.wait_for(names, least, entry)
        if entry.refused:
            self.ledger.close(entry)
        there = [name for name in names if name in self.link.facts]
        self._agree(there)
        learner = self.study.made()
        table = self._table(index, there, learner)
        if begun:
            self.checkpoint.restore(table)
            self.say(f"going on with stage {index} after step {table.done}")
        steps, epochs = table.course.steps, learner.descent.epochs
        for visit in visits(learner.admm, epochs, steps, table.features.shape[1] > 0):
            if visit.last > table.done:
                self._exchange(visit, names, table)
                table.done = visit.last
                check_finite(torch.cat([table.shared, table.features], 1), visit.last)
                self.checkpoint.keep(self.study, table)
        self.checkpoint.close(self.study, table)

    def _agree(self, names: Sequence[str]) -> None:
        """Take what the data are like from the sites; refuse those that differ."""
        for name in names:
            facts, study = self.link.facts[name], self.study
            wanted = study.features, study.classes
            if study.features and (facts.features, facts.classes) != wanted:
                raise ValueError(
                    f"site {name!r}: data must have features {list(study.features)} "
                    f"and classes {list(study.classes)}; got {list(facts.features)} "
                    f"and {list(facts.classes)}"
                )
            self.study = replace(study, features=facts.features, classes=facts.classes)

    def _table(self, index: int, names: Sequence[str], learner: Consensus) -> Table:
        """A stage at its start."""
        ended = self.checkpoint.ended()
        state = (
            learner.finish_stage(*ended)
            if ended
            else learner.init(Randomness(self.study.seeds).at("init"))
        )
        features, shared = learner.start_stage(state)
        sizes = [self.link.facts[name].examples for name in names]
        batch = learner.descent.batch
        steps = -(-max(sizes) // batch) if batch else 1
        moving = features.detach().clone().requires_grad_()
        return Table(
            course=Course(index, steps, sum(sizes)),
            features=moving,
            shared=shared,
            past=state.last,
            prior=learner.get_prior(state),
            mover=learner.descent.make_optimiser(moving),
        )

    def _exchange(self, visit: Visit, names: Sequence[str], table: Table) -> None:
        """Have the sites take their steps, meet, and move the features."""
        answers = self._asked("visit", visit, names, table)
        for name, answer in answers.items():
            for kind, held in (("value", table.value), ("local", table.local)):
                if kind in answer.tensors:
                    held[name] = answer.tensors[kind]
        if visit.slopes:
            self._move(answers, table)
        if visit.meets:
            values = torch.stack([table.value[name] for name in sorted(table.value)], 1)
            table.shared = torch.cat([values, table.past], 1).mean(1)
        if visit.final:  # one that is absent at the end counts as it last was
            table.local = {**table.value, **table.local}
        if visit.moves:
            self._move(self._asked("slope", visit, names, table), table)

    def _move(self, answers: dict[str, Answered], table: Table) -> None:
        """Move the features by the sum of the sites' slopes."""
        told: list[Tensor] = [
            answers[name].tensors["slope"]
            for name in sorted(answers)
            if "slope" in answers[name].tensors  # late answers have none
        ]
        if told:
            table.features.grad = torch.stack(told).sum(0)
            table.mover.step()

    def _asked(
        self, kind: str, visit: Visit, names: Sequence[str], table: Table
    ) -> dict[str, Answered]:
        """Answers of enough sites."""
        found: dict[str, Answered] = {}
        refusals, told = 0, False
        while len(found) < self.least:
            entry = self.ledger.open(kind, table.course.stage, visit[:2])
            left = [name for name in names if name not in found]
            requests = {name: self._request(kind, visit, name, table) for name in left}
            answers = self.link.ask(kind, requests, entry)
            found |= {name: a for name, a in answers.items() if name in names}
            self._close(entry)
            refusals = refusals + 1 if entry.refused and not answers else 0
            if refusals == TRIES:
                raise ValueError(
                    f"study: {self.least} sites must give answers that can be used; "
                    f"got {entry.refused}"
                )
            if len(found) < self.least:
                if not told:
                    self.say(f"waiting for {self.least} of {', '.join(names)}")
                told = True
                time.sleep(self.link.pause)
        return found

    def _close(self, entry: Entry) -> None:
        """Write an exchange down, unless nothing happened."""
        if entry.down or entry.up or entry.refused:
            self.ledger.close(entry)
            self.say(entry.told())

    def _request(self, kind: str, visit: Visit, name: str, table: Table) -> Request:
        tensors = {"features": table.features.detach(), "shared": table.shared}
        if name in self.link.unopened:
            tensors["prior"] = table.prior
        shared, features = list(table.shared.shape), list(table.features.shape)
        wanted: dict[str, list[int]] = {}
        if kind == "visit":
            wanted |= {"value": shared} if visit.meets else {}
            wanted |= {"local": shared} if visit.final else {}
        if kind == "slope" or visit.slopes:
            wanted["slope"] = features
        course = table.course
        notes = {
            "study": self.study.text(),
            "course": [course.stage, course.steps, course.examples],
            "visit": list(visit),
            "shapes": {n: list(t.shape) for n, t in tensors.items()},
        }
        return Request(tensors, notes, wanted)
