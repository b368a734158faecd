"""How fast this machine is now, by the training steps that jobs take.

Small and large steps are timed separately: which of two processors is faster, and by
how much, depends on the size of the products, as does the library that computes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from cirm.data.image_sets import IMAGE_SETS
from cirm.runs.jobs import TrainingJob
from cirm.runs.tracker import estimate_training_cost_of_job

if TYPE_CHECKING:
    from cirm.networks import Activation

StepKind = Literal["small", "large"]
"""A batch of a few hundred examples, or a full batch of thousands of images."""

StepSeconds = dict[StepKind, float]
"""The processor seconds of a step by its kind."""

STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
REFERENCE_SECONDS = 0.3  # of processor time, which suffices for a tenth
MAX_REFERENCE_WAIT = 2.0  # seconds of the clock, on a busy machine
LARGE_COST = 0.5  # of a job with 1,000 examples of one seed


class MachineSpeed(NamedTuple):
    """How fast this machine is now.

    Attributes:
        small: Processor time of a small training step, as a multiple of the recorded
            one.
        large: The same of a large step.
        share: Part of a core that a process gets.
    """

    small: float
    large: float
    share: float

    def get_slowness(self, job: TrainingJob) -> float:
        """Return the processor time of a job as a multiple of the recorded one."""
        return self.large if find_step_kind(job) == "large" else self.small


def find_step_kind(job: TrainingJob) -> StepKind:
    """Return whether the steps of a job are small or large."""
    from cirm.learners import get_preset_settings

    settings = {**get_preset_settings(job.learner, job.preset), **job.settings}
    has_large_steps = (
        settings.get("batch") == 0
        and job.data.get("source") in IMAGE_SETS
        and estimate_training_cost_of_job(job) >= LARGE_COST * len(job.seeds)
    )
    return "large" if has_large_steps else "small"


def time_reference_training_steps() -> tuple[StepSeconds, float]:
    """Return the processor seconds of a step of each kind, and our share of a core.

    The steps are those of ERM on tables 1 and 3, without reading data, by the code that
    jobs use. They are computed on one thread, as jobs are: on a busy machine several
    threads mostly wait for one another, and take fifty times as long.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    steps: dict[StepKind, Callable[[], None]] = {
        "small": create_training_step((28, 28), 250, (100, 100, 2), "elu"),
        "large": create_training_step((14, 14), 2048, (390, 390, 1), "relu"),
    }
    for take_step in steps.values():
        take_step()  # the first one takes longer
    seconds, counts = dict.fromkeys(STEP_KINDS, 0.0), dict.fromkeys(STEP_KINDS, 0)
    clock, used = time.perf_counter(), time.process_time()
    while (
        time.process_time() - used < REFERENCE_SECONDS
        and time.perf_counter() - clock < MAX_REFERENCE_WAIT
    ) or not all(counts.values()):
        kind = min(STEP_KINDS, key=seconds.__getitem__)
        begin = time.process_time()
        steps[kind]()
        seconds[kind] += time.process_time() - begin
        counts[kind] += 1
    share = (time.process_time() - used) / (time.perf_counter() - clock)
    torch.set_num_threads(threads)
    return {kind: seconds[kind] / counts[kind] for kind in STEP_KINDS}, min(share, 1.0)


def create_training_step(
    side: tuple[int, int],
    examples: int,
    layers: tuple[int, ...],
    activation: Activation,
) -> Callable[[], None]:
    """Return a step of ERM on images of two channels, as coloured digits are.

    One channel is empty, and so is the border of the other.
    """
    import torch

    from cirm.networks import MLP
    from cirm.randomness import Randomness
    from cirm.training import Descent, take_optimiser_step

    randomness = Randomness((0,))
    x = randomness.normal(examples, 2, *side)
    channels = torch.arange(examples) % 2
    x[:, torch.arange(examples), channels] = 0
    x[..., :2, :] = x[..., -2:, :] = 0
    y = (torch.arange(examples) // 2 % 2).float()
    network = MLP((2 * side[0] * side[1], *layers), activation)
    params = network.init(randomness)
    descent = Descent(rate=1e-3)
    optimiser = descent.create_optimiser(params)
    is_full_batch = examples >= 1000

    def take_step() -> None:
        batch = x if is_full_batch else x.clone()  # each small batch is a new one
        leaf = params.detach().requires_grad_()
        logits = network(leaf, batch)[..., -1]
        loss = torch.nn.functional.softplus((1 - 2 * y) * logits).mean()
        (params.grad,) = torch.autograd.grad(loss, leaf)
        take_optimiser_step(optimiser, params)

    return take_step
