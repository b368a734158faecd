"""Ridge regression is scikit-learn's, exactly also on a sequence."""

import pytest
import torch
from sklearn.linear_model import Ridge as Reference

from cirm.learners.ridge import Ridge
from cirm.likelihoods import SquaredError
from cirm.memory import measure_state_size
from cirm.networks import MLP
from tests.learners.places import make_values, train

LINEAR = MLP((4, 1))
PLACES = make_values("a", shift=1.0), make_values("b", (2.0, 0.0, 1.0, 0.0), 30)


def fit_scikit_learn(*places, alpha=3.0):
    x = torch.cat([place.inputs for place in places]).double()
    y = torch.cat([place.targets for place in places]).double()
    model = Reference(alpha=alpha).fit(x, y)
    return torch.tensor([*model.coef_, model.intercept_], dtype=torch.float32)


def fit(sequence, *stages):
    learner = Ridge(LINEAR, SquaredError(), l2=3.0, sequence=sequence)
    return train(learner, *stages, seeds=(3,))


def test_pooled_over_a_sequence_it_is_scikit_learn_on_all_data():
    state = fit("pool", PLACES[:1], PLACES[1:])
    torch.testing.assert_close(state.params[0], fit_scikit_learn(*PLACES))
    assert sum(e["examples"] for e in measure_state_size(state).values()) == 0


def test_the_last_reading_knows_the_last_stage_only():
    state = fit("last", PLACES[:1], PLACES[1:])
    torch.testing.assert_close(state.params[0], fit_scikit_learn(PLACES[1]))


def test_the_average_reading_averages_the_coefficients_of_the_stages():
    state = fit("average", PLACES[:1], PLACES[1:])
    expected = sum(fit_scikit_learn(place) for place in PLACES) / 2
    torch.testing.assert_close(state.params[0], expected)


def test_a_constant_feature_does_no_harm():
    x = PLACES[0].inputs.clone()
    x[:, 2] = 5.0
    place = PLACES[0].__class__("a", x, PLACES[0].targets, PLACES[0].task)
    state = train(Ridge(LINEAR, SquaredError(), l2=0.0), (place,), seeds=(3,))
    assert state.params.isfinite().all() and state.params[0, 2].abs() < 1e-3


@pytest.mark.parametrize(("name", "value"), [("l2", -1.0), ("sequence", "all")])
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"ridge: the setting {name} must be"):
        Ridge(**{name: value})
