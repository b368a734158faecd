"""Logistic regression is scikit-learn's, and its readings of a sequence differ."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.logistic import Logistic
from cirm.memory import measure_state_size
from cirm.networks import MLP
from tests.learners.places import NETWORK, make_classes, train

LINEAR = MLP((4, 2))
PLACES = make_classes("a", 0, 60, flip=0.2), make_classes("b", 1, 40, flip=0.2)


def fit_scikit_learn(*places):
    x = torch.cat([place.inputs for place in places])
    y = torch.cat([place.targets for place in places])
    # Two outputs, each penalised: the difference is penalised half as much.
    model = LogisticRegression(C=2.0, tol=1e-8, max_iter=1000).fit(x, y)
    return torch.tensor(model.predict_proba(PLACES[0].inputs), dtype=torch.float32)


def predict(learner, *stages):
    state = train(learner, *stages, seeds=(3,))
    return learner.predict(state, PLACES[0].inputs[None])[0], state


def test_pooled_over_a_sequence_it_is_scikit_learn_on_all_data():
    found, state = predict(Logistic(LINEAR), PLACES[:1], PLACES[1:])
    torch.testing.assert_close(found, fit_scikit_learn(*PLACES), rtol=1e-3, atol=1e-4)
    assert measure_state_size(state)["memory"]["examples"] == 100


def test_the_last_reading_knows_the_last_stage_only():
    found, state = predict(Logistic(LINEAR, sequence="last"), PLACES[:1], PLACES[1:])
    expected = fit_scikit_learn(PLACES[1])
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert "memory" not in measure_state_size(state)


def test_the_average_reading_averages_the_coefficients_of_the_stages():
    first, second = (
        train(Logistic(LINEAR, sequence="last"), (place,)).params for place in PLACES
    )
    both = train(Logistic(LINEAR, sequence="average"), PLACES[:1], PLACES[1:])
    torch.testing.assert_close(both.params, (first + second) / 2)


def test_three_classes_of_which_one_is_missing():
    place = make_classes("a", 0, 60)
    data = Environment("a", place.inputs, place.targets, Task.classification(3))
    learner = create("logistic", data)
    state = train(learner, (data,), seeds=(3,))
    p = learner.predict(state, data.inputs[None])[0]
    assert (p[:, 2] < 0.1).all()
    assert (p.argmax(-1) == data.targets).float().mean() > 0.9


def test_a_network_with_hidden_layers_is_refused():
    with pytest.raises(ValueError, match="logistic: the network must be linear"):
        Logistic(NETWORK)


@pytest.mark.parametrize(("name", "value"), [("l2", -1.0), ("sequence", "all")])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"logistic: the setting {name} must be"):
        Logistic(**{name: value})
