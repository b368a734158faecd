"""How many hidden units are active for all examples of a chunk, or for none of them?

    python -m benchmarks.notes.always_active_units

Such units of the second layer need no products in the backward pass: with one output,
their gradients are of rank one. Trains IRMv1 and C-VIRMv1 as in table 3, on a tenth of
its examples, and prints the fractions at some of the first 200 of 501 steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cirm.learners import create
from cirm.learners.irmv1 import IRMv1
from cirm.networks.large_batches import CHUNK
from cirm.paper import EXPERIMENTS
from cirm.randomness import Randomness
from cirm.runs.jobs import draw_environments_of_job
from cirm.training import Terms, create_gradient_function_of_loss
from cirm.variational import (
    create_initial_posterior_of_stage,
    flatten_gaussian_to_vector,
)

Loss = Callable[[Tensor, Any, Any], Terms]

EXAMPLES = 2500  # of each of the two environments, a tenth of those of table 3
STEPS = (1, 100, 200)  # the penalty has its full weight from step 190 on


def measure_constant_units(params: Tensor, parts: list[Tensor]) -> list[float]:
    """Return the fractions of units that are always active, and never, in layer 2.

    `parts` are the first examples of each colour, which are a chunk of their own.
    """
    shapes = [(392, 390), (1, 390), (390, 390), (1, 390)]
    lengths = [a * b for a, b in shapes]
    pieces = params[0, : sum(lengths)].split(lengths)
    w1, b1, w2, b2 = (p.view(s) for p, s in zip(pieces, shapes, strict=True))
    active = [(x @ w1 + b1).relu() @ w2 + b2 > 0 for x in parts]
    always = torch.stack([part.all(0) for part in active]).float().mean()
    never = torch.stack([~part.any(0) for part in active]).float().mean()
    return [float(always), float(never)]


def start_training(learner: Any, state: Any) -> tuple[Loss, Tensor]:  # noqa: ANN401
    """Return the loss of a learner and the parameters that it starts from."""
    if isinstance(learner, IRMv1):
        return learner.compute_loss, state.params
    start = create_initial_posterior_of_stage(
        state.start, state.posterior, learner.initial_std
    )
    # The KL divergence is summed, as `kl_scale` of the preset says.
    loss = partial(learner.compute_loss, kl_weight=learner.beta)
    return loss, flatten_gaussian_to_vector(start)


def main() -> None:
    """Print the fractions for both learners."""
    torch.set_num_threads(1)
    jobs = [t.plan_jobs((0,))[0] for t in EXPERIMENTS["table3"].list_trials()]
    for key in ("irmv1", "c-virmv1"):
        job = next(job for job in jobs if job.learner == key and not job.infer)
        job = replace(job, data={**job.data, "examples": EXAMPLES})
        stage = draw_environments_of_job(job).train
        x = torch.cat([e.take_all(1).x for e in stage], 1).flatten(2)[0]
        is_first_colour = x[:, : x.shape[1] // 2].any(1)
        parts = [x[is_first_colour][:CHUNK], x[~is_first_colour][:CHUNK]]
        learner = create(key, stage[0], job.settings, job.preset)
        randomness = Randomness((0,))
        state = learner.init(randomness.at("init"))
        loss, params = start_training(learner, state)
        params = params.clone().requires_grad_()
        gradient, source = (
            create_gradient_function_of_loss(loss),
            randomness.at("stage", 0),
        )
        for step, _ in learner.descent.iterate_epochs(
            gradient, params, state, stage, source
        ):
            if step in STEPS:
                always, never = measure_constant_units(params.detach(), parts)
                print(f"{key}, step {step}: {always:.0%} always, {never:.0%} never")
            if step == STEPS[-1]:
                break


if __name__ == "__main__":
    main()
