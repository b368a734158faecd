"""Boosted trees predict what scikit-learn's do, from tensors alone."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.memory import measure_state_size
from tests.learners.places import make_values, train

QUICK = {"iterations": 8, "leaf_examples": 5}
SAME = {
    "max_iter": 8,
    "min_samples_leaf": 5,
    "early_stopping": False,
    "random_state": 0,
}


def make_classes(name, classes, size=150):
    generator = torch.Generator().manual_seed(ord(name))
    x = torch.randn(size, 3, generator=generator)
    y = ((x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.5)) % classes
    return Environment(name, x, y, Task.classification(classes))


def predict(places, inputs, **settings):
    learner = create("boosting", places[0], {**QUICK, **settings})
    state = train(learner, *[(place,) for place in places], seeds=(3,))
    return learner.predict(state, inputs[None])[0], state


def fit_scikit_learn(*places):
    x = np.concatenate([place.inputs.numpy() for place in places])
    y = np.concatenate([place.targets.numpy() for place in places])
    cls = HistGradientBoostingClassifier
    if not places[0].task.classes:
        cls = HistGradientBoostingRegressor
    return cls(**SAME).fit(x, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_are_those_of_scikit_learn(classes):
    place = make_classes("a", classes)
    found, _ = predict([place], place.inputs)
    expected = fit_scikit_learn(place).predict_proba(place.inputs.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_values_are_those_of_scikit_learn():
    place = make_values("a", size=150)
    found, _ = predict([place], place.inputs)
    expected = fit_scikit_learn(place).predict(place.inputs.numpy())
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-5)


def test_pooled_over_a_sequence_all_examples_are_kept_and_used():
    places = make_classes("a", 2), make_classes("b", 2)
    found, state = predict(places, places[0].inputs)
    expected = fit_scikit_learn(*places).predict_proba(places[0].inputs.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert measure_state_size(state)["memory"]["examples"] == 300


def test_the_other_readings_keep_no_example():
    places = make_classes("a", 2), make_classes("b", 2)
    each = [
        fit_scikit_learn(place).predict_proba(places[0].inputs.numpy())
        for place in places
    ]
    last, state = predict(places, places[0].inputs, sequence="last")
    np.testing.assert_allclose(last, each[1], atol=1e-5)
    assert "memory" not in measure_state_size(state)
    mean, state = predict(places, places[0].inputs, sequence="average")
    np.testing.assert_allclose(mean, (each[0] + each[1]) / 2, atol=1e-5)
    assert "memory" not in measure_state_size(state)


def test_a_class_without_examples_is_unlikely():
    place = make_classes("a", 2)
    data = Environment("a", place.inputs, place.targets, Task.classification(3))
    found, _ = predict([data], data.inputs)
    assert (found[:, 2] < 0.01).all()
    single = Environment("b", place.inputs, torch.ones(150).long(), data.task)
    found, _ = predict([single], data.inputs)
    assert (found.argmax(-1) == 1).all()


@pytest.mark.parametrize(
    ("name", "value"), [("iterations", 0), ("leaves", 1), ("sequence", "all")]
)
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"boosting: the setting {name} must be"):
        create("boosting", make_classes("a", 2), {name: value})
