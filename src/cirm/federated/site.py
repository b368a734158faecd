"""A site: one environment with its own parameters, multipliers and steps.

What it keeps between visits is in a file of its own folder, so that a site that is
stopped goes on where it was. Asked the same twice, it answers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.admm import Carry, init_carry, rescale_multipliers, step_environments
from cirm.environments import Environment
from cirm.federated.keeping import load, mover_state, restore_mover, save
from cirm.federated.study import Study, Visit
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import check_finite, split_rows


class Unopened(ValueError):
    """The site knows nothing of the stage yet."""


@dataclass(frozen=True)
class Course:
    """What a stage is like: its number, steps of an epoch, examples of all sites."""

    stage: int
    steps: int
    examples: int


class Answer(NamedTuple):
    """Tensors that leave the site, and numbers [replica] to watch."""

    tensors: dict[str, Tensor]
    numbers: dict[str, list[float]]


@dataclass(frozen=True)
class Site:
    """One environment, under the site's name, and the folder of what it keeps."""

    environment: Environment
    folder: Path

    def visited(
        self,
        study: Study,
        course: Course,
        visit: Visit,
        arrived: Mapping[str, Tensor],
    ) -> Answer:
        """Take the steps of a visit.

        What arrives: `features` [replica, f], `shared` [replica, q] and, the first
        time in a stage, `prior`. What leaves: at a meeting `value`, w_e + u_e
        [replica, q]; at the stage's last also `local`, w_e; where the features move
        without a meeting before `slope` [replica, f].
        """
        learner, kept = study.made(), self._kept(study, course, arrived)
        tensors, notes = kept
        if notes["done"] == list(visit):
            return self._answer(visit, tensors, notes["numbers"])
        carry = self._carry(tensors, notes, arrived["shared"])
        mover = learner.descent.make_optimiser(carry.local)
        restore_mover(mover, "mover", tensors)
        look = learner.make_viewer(tensors["prior"], course.examples)
        turns, length = learner.admm.turns, learner.admm.count_round_steps(course.steps)
        number, nobody = -1, carry.u[:, :0]
        for turn in range(visit.first, visit.last):
            if turn // turns != number:
                number = turn // turns
                batch = self._batch(study, course, number, f"visit {visit.first}")
                carry = rescale_multipliers(
                    carry, learner.admm.weights_at(batch.progress)
                )
                view = look(arrived["features"], batch)
            ends = turn % length == 0, False
            carry, numbers = step_environments(carry, view, mover, nobody, ends)
        check_finite(carry.local.detach(), visit.last)  # before anything is kept
        tensors |= {"local": carry.local.detach()[:, 0], "u": carry.u[:, 0]}
        tensors |= {"v": carry.v[:, 0], **mover_state(mover, "mover")}
        if visit.slopes:
            tensors["slope"] = self.slope(study, course, visit, tensors, arrived)
        watched = {n: numbers[n].tolist() for n in ("risk", "constraint")}
        notes = {"done": list(visit), "pending": visit.meets, "numbers": watched}
        save(self._path(study, course), tensors, {**notes, "weights": carry.weights})
        return self._answer(visit, tensors, watched)

    def slope(
        self,
        study: Study,
        course: Course,
        visit: Visit,
        kept: Mapping[str, Tensor],
        arrived: Mapping[str, Tensor],
    ) -> Tensor:
        """Gradient [replica, f] of the features' loss at what is shared now."""
        learner = study.made()
        number = (visit.last - 1) // learner.admm.turns
        batch = self._batch(study, course, number, f"slope {visit.last}")
        features = arrived["features"].clone().requires_grad_()
        view = learner.make_viewer(kept["prior"], course.examples)(features, batch)
        loss = view.outer(arrived["shared"]).sum()
        return torch.autograd.grad(loss, features)[0]

    def met(
        self, study: Study, course: Course, visit: Visit, arrived: Mapping[str, Tensor]
    ) -> Answer:
        """After a meeting: the slope of the features; nothing is kept of it."""
        tensors, _ = self._kept(study, course, arrived)
        return Answer({"slope": self.slope(study, course, visit, tensors, arrived)}, {})

    def _kept(
        self, study: Study, course: Course, arrived: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What the site keeps of this stage; at its first visit, the start."""
        kept = load(self._path(study, course))
        if kept is not None:
            return kept
        if "prior" not in arrived:
            raise Unopened(f"site {self.environment.name!r}: the stage must be opened")
        weights = study.made().admm.weights_at(0.0)
        carry = init_carry(arrived["shared"], 1, weights)
        start = {"local": carry.local.detach()[:, 0], "u": carry.u[:, 0]}
        tensors = {**start, "v": carry.v[:, 0], "prior": arrived["prior"]}
        start_notes: dict[str, Any] = {"done": None, "pending": False, "numbers": {}}
        return tensors, {**start_notes, "weights": weights}

    def _carry(
        self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any], shared: Tensor
    ) -> Carry:
        """Where the steps go on; u has grown if there was a meeting since."""
        local, u = tensors["local"], tensors["u"]
        if notes["pending"]:
            u = u + local - shared
        own = [tensor.unsqueeze(1) for tensor in (local.clone(), u, tensors["v"])]
        weights = notes["weights"][0], notes["weights"][1]
        return Carry(own[0].requires_grad_(), shared, own[1], own[2], weights)

    def _answer(
        self, visit: Visit, tensors: Mapping[str, Tensor], numbers: dict[str, Any]
    ) -> Answer:
        leaving = {}
        if visit.meets:
            leaving["value"] = tensors["local"] + tensors["u"]
        if visit.final:
            leaving["local"] = tensors["local"]
        if visit.slopes:
            leaving["slope"] = tensors["slope"]
        return Answer(leaving, numbers)

    def _batch(self, study: Study, course: Course, number: int, noise: str) -> Batch:
        """A batch by its number; the same that a joint run would take."""
        randomness = Randomness(study.seeds).at("stage", course.stage)
        environment, descent = self.environment, study.made().descent
        epoch, step = divmod(number, course.steps)
        replicas = len(study.seeds)
        if course.steps == 1:
            piece = environment.take_all(replicas)
        else:
            order = randomness.at("order", environment.name).start_draws()
            for _ in range(epoch):
                order.permutation(len(environment))
            rows = order.permutation(len(environment))
            piece = environment.take(split_rows(rows, course.steps)[step])
        draws = randomness.at("noise", environment.name, noise).start_draws()
        progress = (epoch + step / course.steps) / descent.epochs
        return descent.make_batch([piece], draws, progress)

    def _path(self, study: Study, course: Course) -> Path:
        return self.folder / f"{study.name}-{study.begun}-{course.stage}.npz"
