"""Small environments, and states trained on them, for the tests of learners."""

import torch

from cirm.environments import Environment, Task
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2))
DESCENT = Descent(epochs=4, batch=10, rate=0.02)
WHOLE = Descent(epochs=1, batch=0)


def make_classes(name, feature=0, size=25, flip=0.0):
    """Return examples whose label is the sign of a feature, some of them flipped."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    x = torch.randn(size, 4, generator=generator)
    flipped = torch.rand(size, generator=generator) < flip
    y = ((x[:, feature] > 0) ^ flipped).long()
    return Environment(name, x, y, Task.classification(2))


def make_values(name, slopes=(1.0, -1.0, 0.0, 0.0), size=40, scale=1.0, shift=0.0):
    """Return examples whose target is linear in the inputs, with a little noise."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    x = scale * torch.randn(size, len(slopes), generator=generator) + shift
    noise = torch.randn(size, generator=generator)
    return Environment(
        name, x, x @ torch.tensor(slopes) + 0.1 * noise, Task.regression()
    )


def train(learner, *stages, seeds=SEEDS):
    """Return the state after all stages."""
    state = learner.init(Randomness(seeds))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, Randomness(seeds).at(index))
    return state


def make_batch(*stage, seeds=SEEDS, progress=0.0):
    """Return one batch of all examples of a stage."""
    (batch,) = WHOLE.iterate_batches(stage, Randomness(seeds))
    return batch._replace(progress=progress)


STAGES = (
    (make_classes("a", 0), make_classes("b", 1)),
    (make_classes("c", 2),),
)
