"""Training stops where the loss on examples that were held out is lowest."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from cirm import Environment, Randomness, Task, create, fit, predict
from cirm.early_stopping import EarlyStoppingDescent, hold_out_examples
from cirm.training import Descent


def make_environment(rows, seed=0, signal=0.3, columns=12):
    """Rows whose first columns say a little about the class."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    odds = signal * x[:, :6].sum(1)
    y = (torch.rand(rows, generator=generator) < odds.sigmoid()).long()
    return Environment("a", x, y, Task.classification(2))


def train(environment, descent, seeds=(0,)):
    learner = replace(create("erm", environment), descent=descent)
    randomness = Randomness(seeds)
    state = learner.init(randomness.at("init"))
    steps = []
    state = learner.observe(
        state, (environment,), randomness, lambda step, *_: steps.append(step)
    )
    return learner, state, steps


def measure_loss(learner, state, environment):
    x, y = environment.take_all(len(state.params))
    return learner.likelihood.compute_losses(learner.outputs(state, x), y).mean((1, 2))


def test_training_stops_before_a_network_learns_its_examples_by_heart():
    environment, fresh = make_environment(300), make_environment(4000, seed=1)
    descent = Descent(epochs=400)
    losses = {}
    for kind in (descent, EarlyStoppingDescent.from_descent(descent)):
        learner, state, steps = train(environment, kind)
        losses[type(kind)] = float(measure_loss(learner, state, fresh))
    assert steps[-1] < 400
    assert losses[EarlyStoppingDescent] < 0.7 * losses[Descent]


def test_the_parameters_are_those_with_the_lowest_loss_on_held_out_examples():
    environment = make_environment(300)
    descent = EarlyStoppingDescent.from_descent(Descent(epochs=60))
    learner, state, _ = train(environment, descent)
    source = Randomness((0,)).at("held out").at("a")
    held_out = hold_out_examples(environment, source)[1]
    best = float(measure_loss(learner, state, held_out))
    for epochs in (1, 5, 20, 60):
        other = EarlyStoppingDescent.from_descent(Descent(epochs=epochs))
        other_learner, other_state, _ = train(environment, other)
        assert float(measure_loss(other_learner, other_state, held_out)) >= best


def test_a_replica_stops_where_it_would_stop_alone():
    environment = make_environment(200)
    descent = EarlyStoppingDescent.from_descent(Descent(epochs=40))
    _, both, _ = train(environment, descent, seeds=(3, 5))
    for index, seed in enumerate((3, 5)):
        _, alone, _ = train(environment, descent, seeds=(seed,))
        assert torch.allclose(both.params[index], alone.params[0], atol=1e-5)


def test_a_few_examples_are_all_trained_on():
    environment = make_environment(49)
    plain = Descent(epochs=5)
    _, expected, _ = train(environment, plain)
    _, found, _ = train(environment, EarlyStoppingDescent.from_descent(plain))
    assert torch.equal(found.params, expected.params)


def test_examples_are_held_out_at_random_and_only_once():
    environment = make_environment(100)
    parts = hold_out_examples(environment, Randomness((0,)))
    assert [len(part) for part in parts] == [85, 15]
    joined = torch.cat([part.take_all(1).x[0] for part in parts])
    assert torch.equal(joined.sort(0).values, environment.inputs.sort(0).values)


def make_table(rows, seed):
    environment = make_environment(rows, seed, signal=0.35, columns=29)
    names = [f"x{n}" for n in range(29)]
    table = pd.DataFrame(environment.inputs.numpy(), columns=names)
    return table.assign(y=np.where(environment.targets == 1, "yes", "no"))


@pytest.mark.parametrize(
    "rows", [1000, pytest.param(10_000, marks=pytest.mark.integration)]
)
def test_erm_is_within_a_point_of_logistic_regression_on_a_linear_table(rows):
    table, fresh = make_table(rows, 0), make_table(10_000, 1)
    names = list(table.columns[:-1])
    plain = LogisticRegression(max_iter=500).fit(table[names], table["y"])
    model = fit(table, "y", learner="erm")
    accuracy = 100 * (predict(model, fresh)["prediction"] == fresh["y"]).mean()
    assert accuracy > 100 * plain.score(fresh[names], fresh["y"]) - 1
    assert 0 < model.history[0].epochs < 400


def test_epochs_that_the_user_sets_are_all_trained():
    model = fit(make_table(200, 0), "y", learner="erm", settings={"epochs": 3})
    assert model.history[0].epochs == 3
    assert not isinstance(model.learner.descent, EarlyStoppingDescent)
