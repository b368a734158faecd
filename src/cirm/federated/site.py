"""A site: one environment with its own parameters, multipliers and steps.

A site stores its state in a file between assignments, so that it continues where it was
after a restart. Given the same assignment twice, it answers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cirm.admm import (
    ADMMVariables,
    init_admm_variables,
    rescale_lagrange_multipliers,
    take_local_gradient_step,
)
from cirm.environments import Environment
from cirm.federated.study import SiteAssignment, StageStepRange
from cirm.federated.tensor_file import (
    get_optimiser_state_tensors,
    read_tensor_file,
    restore_optimiser_state,
    write_tensor_file,
)
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import check_parameters_are_finite, split_rows_into_equal_parts

Tensors = Mapping[str, Tensor]


class StageNotStartedError(ValueError):
    """The site has no state for the stage and needs the prior to start it."""


class TensorsSentBySite(NamedTuple):
    """Tensors that leave the site, and metrics [replica] for monitoring."""

    tensors: dict[str, Tensor]
    metrics: dict[str, list[float]]


@dataclass(frozen=True)
class FederatedSite:
    """One environment, under the site's name, and the folder of its state."""

    environment: Environment
    folder: Path

    def run_training_steps(
        self, assignment: SiteAssignment, received: Tensors
    ) -> TensorsSentBySite:
        """Take the steps of a segment.

        The server sends `features` [replica, f], `shared` [replica, q] and, for the
        first assignment of a stage, `prior`. Before an average the site returns
        `value`, w_e + u_e [replica, q]; at the end of the stage also `local`, w_e; and
        where features move without an average before, `gradient` [replica, f].
        """
        study, stage, segment = assignment
        tensors, notes = self._load_stage_state(assignment, received)
        if notes["done"] == list(segment):
            return _build_site_reply(segment, tensors, notes["metrics"])
        learner = study.create_learner_of_study()
        carry = _restore_admm_variables(tensors, notes, received["shared"])
        optimiser = learner.descent.create_optimiser(carry.local)
        restore_optimiser_state(optimiser, tensors)
        viewer = learner.create_batch_objectives_function(
            tensors["prior"], stage.examples
        )
        steps_per_batch = learner.admm.steps_per_batch
        number, past = -1, carry.u[:, :0]  # the past takes part in the average only
        for turn in range(segment.first, segment.last):
            if turn // steps_per_batch != number:
                number = turn // steps_per_batch
                batch = self._build_batch_by_number(
                    assignment, number, f"visit {segment.first}"
                )
                weights = learner.admm.get_constraint_weights_at_progress(
                    batch.progress
                )
                carry = rescale_lagrange_multipliers(carry, weights)
                view = viewer(received["features"], batch)
            follows, _ = learner.admm.find_whether_step_follows_or_ends_round(
                turn, stage.steps
            )
            # The coordinator ends rounds.
            carry, values = take_local_gradient_step(
                carry, view, optimiser, past, follows, ends_round=False
            )
        check_parameters_are_finite(
            carry.local.detach(), segment.last
        )  # before the state is stored
        tensors |= {"local": carry.local.detach()[:, 0], "u": carry.u[:, 0]}
        tensors |= {"v": carry.v[:, 0], **get_optimiser_state_tensors(optimiser)}
        if segment.updates_features_before_average:
            gradient = self._compute_loss_gradient(assignment, tensors, received)
            tensors["gradient"] = gradient
        metrics = {name: values[name].tolist() for name in ("risk", "constraint")}
        notes = {"done": list(segment), "pending": segment.averages, "metrics": metrics}
        path = self._get_path_of_stage_state(assignment)
        write_tensor_file(path, tensors, {**notes, "weights": carry.weights})
        return _build_site_reply(segment, tensors, metrics)

    def compute_feature_gradient(
        self, assignment: SiteAssignment, received: Tensors
    ) -> TensorsSentBySite:
        """Return the gradient of the features after an average; nothing is stored."""
        tensors, _ = self._load_stage_state(assignment, received)
        gradient = self._compute_loss_gradient(assignment, tensors, received)
        return TensorsSentBySite({"gradient": gradient}, {})

    def _compute_loss_gradient(
        self, assignment: SiteAssignment, stored: Tensors, received: Tensors
    ) -> Tensor:
        """Return the gradient [replica, f] of the features' loss at the shared w."""
        study, stage, segment = assignment
        learner = study.create_learner_of_study()
        number = (segment.last - 1) // learner.admm.steps_per_batch
        batch = self._build_batch_by_number(assignment, number, f"slope {segment.last}")
        features = received["features"].clone().requires_grad_()
        view = learner.create_batch_objectives_function(
            stored["prior"], stage.examples
        )(features, batch)
        loss = view.feature_loss(received["shared"]).sum()
        return torch.autograd.grad(loss, features)[0]

    def _load_stage_state(
        self, assignment: SiteAssignment, received: Tensors
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and notes of a stage; at its start, the initial ones."""
        stored = read_tensor_file(self._get_path_of_stage_state(assignment))
        if stored is not None:
            return stored
        if "prior" not in received:
            name = self.environment.name
            raise StageNotStartedError(
                f"site {name!r}: the site has no tensors of this stage yet. The "
                "server will send them with its next request"
            )
        admm = assignment.study.create_learner_of_study().admm
        weights = admm.get_constraint_weights_at_progress(0.0)
        carry = init_admm_variables(received["shared"], 1, weights)
        tensors = {"local": carry.local.detach()[:, 0], "u": carry.u[:, 0]}
        tensors |= {"v": carry.v[:, 0], "prior": received["prior"]}
        notes: dict[str, Any] = {"done": None, "pending": False, "metrics": {}}
        return tensors, {**notes, "weights": weights}

    def _build_batch_by_number(
        self, assignment: SiteAssignment, batch_number: int, noise: str
    ) -> Batch:
        """Make a batch by its number, the same that a joint run would take."""
        study, stage, _ = assignment
        randomness = Randomness(study.seeds).at("stage", stage.number)
        environment, descent = self.environment, study.create_learner_of_study().descent
        epoch, step = divmod(batch_number, stage.steps)
        if stage.steps == 1:
            piece = environment.take_all(len(study.seeds))
        else:
            order = randomness.at("order", environment.name).start_draws()
            for _ in range(epoch):
                order.permutation(len(environment))
            rows = order.permutation(len(environment))
            piece = environment.take(
                split_rows_into_equal_parts(rows, stage.steps)[step]
            )
        draws = randomness.at("noise", environment.name, noise).start_draws()
        progress = (epoch + step / stage.steps) / descent.epochs
        return descent.build_batch([piece], draws, progress)

    def _get_path_of_stage_state(self, assignment: SiteAssignment) -> Path:
        study, stage, _ = assignment
        name = f"{study.name}-{study.run_id}-{stage.number}.safetensors"
        return self.folder / name


def _restore_admm_variables(
    tensors: Tensors, notes: Mapping[str, Any], shared: Tensor
) -> ADMMVariables:
    """Continue from a state; u grows if there was an average since."""
    local, u = tensors["local"], tensors["u"]
    if notes["pending"]:
        u = u + local - shared
    w, u, v = (tensor.unsqueeze(1) for tensor in (local.clone(), u, tensors["v"]))
    weights = notes["weights"][0], notes["weights"][1]
    return ADMMVariables(w.requires_grad_(), shared, u, v, weights)


def _build_site_reply(
    segment: StageStepRange, tensors: Tensors, metrics: dict[str, list[float]]
) -> TensorsSentBySite:
    leaving = {}
    if segment.averages:
        leaving["value"] = tensors["local"] + tensors["u"]
    if segment.is_last:
        leaving["local"] = tensors["local"]
    if segment.updates_features_before_average:
        leaving["gradient"] = tensors["gradient"]
    return TensorsSentBySite(leaving, metrics)
