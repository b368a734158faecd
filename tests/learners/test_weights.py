"""Weights of examples: a weight of two counts like the same example twice."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners import (
    LEARNERS,
    create,
    get_learner_class,
    list_learner_settings,
)
from cirm.model.rare_classes import repeat_examples_by_weight
from cirm.randomness import Randomness

WEIGHTED = [key for key in LEARNERS if get_learner_class(key).weighs_examples]
SETTINGS = {"epochs": 20, "hidden": (3,), "batch": 0, "rate": 0.01}


def places(task, seed=0):
    """Two environments with whole weights, and the same with repeated examples."""
    generator = torch.Generator().manual_seed(seed)
    weighted, repeated = [], []
    for name, rows in (("a", 30), ("b", 20)):
        x = torch.randn(rows, 2, generator=generator)
        y = (x[:, 0] + torch.randn(rows, generator=generator) > 0).long()
        y = y if task.classes else x[:, 0] + y
        weights = torch.randint(1, 4, (rows,), generator=generator)
        weighted.append(Environment(name, x, y, task, weights=weights.float()))
        copies = (part.repeat_interleave(weights, 0) for part in (x, y))
        repeated.append(Environment(name, *copies, task))
    return tuple(weighted), tuple(repeated)


def train(key, stages):
    settings = dict(SETTINGS)
    if "initial_std" in [name for name, _, _ in list_learner_settings(key)]:
        settings["initial_std"] = 1e-4  # noise is drawn for each example
    learner = create(key, stages[0][0], settings)
    state = learner.init(Randomness((0,)).at("init"))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, Randomness((0,)).at("stage", index))
    return learner.predict(state, torch.linspace(-2, 2, 20).reshape(1, 10, 2))


@pytest.mark.parametrize("task", [Task(("no", "yes")), Task()], ids=lambda t: t.kind)
@pytest.mark.parametrize("key", WEIGHTED)
def test_whole_weights_count_like_repeated_examples(key, task):
    weighted, repeated = places(task)
    first, second = places(task, seed=1)
    found = train(key, (weighted, tuple(e.rename(f"{e.name}2") for e in first)))
    wished = train(key, (repeated, tuple(e.rename(f"{e.name}2") for e in second)))
    assert torch.allclose(found, wished, atol=2e-3)
    plain = tuple(
        Environment(e.name, e.inputs, e.targets, task) for e in (*weighted, *first)
    )
    other = train(key, (plain[:2], tuple(e.rename(f"{e.name}2") for e in plain[2:])))
    assert not torch.allclose(found, other, atol=2e-3)


def test_batches_average_without_bias_whatever_rows_they_have():
    (environment, _), _ = places(Task(("no", "yes")))
    learner = create("erm", environment, {**SETTINGS, "batch": 7, "epochs": 1})
    batches = learner.descent.iterate_batches((environment,), Randomness((0,)))
    sums = [(batch.share[0, 0].sum(), batch.y.shape[1]) for batch in batches]
    mean = sum(total * rows for total, rows in sums) / sum(rows for _, rows in sums)
    assert float(mean) == pytest.approx(1)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(3), "the targets have \\[4\\]. Give one weight for each"),
        (torch.zeros(4), "positive"),
    ],
)
def test_wrong_weights_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        Environment("a", torch.ones(4, 1), torch.ones(4), Task(), weights=weights)


def test_examples_are_repeated_by_weights_whose_fractions_add_up():
    weights = torch.tensor([2.0, 0.5, 0.5, 1.0, 0.25, 3.0])
    x = torch.arange(6.0)[:, None]
    environment = Environment("a", x, x[:, 0], Task(), weights=weights)
    found = repeat_examples_by_weight(environment)
    assert found.weights is None
    assert found.take_all(1).y[0].tolist() == [0, 0, 1, 3, 5, 5, 5]
