"""Inferred environments are the groups that a plain model cannot serve alike."""

import math
from dataclasses import replace

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.inference import INFERENCE, REGISTRY, create_inference
from cirm.inference.eiil import (
    EIIL,
    PooledInputs,
    find_groups_of_highest_irm_penalty,
    pool_environments,
)
from cirm.learners import create
from cirm.randomness import Randomness

QUICK = {"hidden": (), "epochs": 30, "reference_rate": 0.05}
SEED = Randomness((3,))


def spurious(name, size, flips, seed=0):
    """Labels, and a spurious input that disagrees with a part of them."""
    source = Randomness((seed,)).at(name)
    label = source.at("label").integers(2, size)[0]
    agrees = source.at("agrees").uniform(size)[0] >= flips
    sign = (2.0 * label - 1) * (2.0 * agrees - 1)
    inputs = torch.stack([sign, torch.zeros(size)], -1)
    return Environment(name, inputs, label, Task.classification(2)), agrees


def agreement(environment):
    """Where the first input has the sign of the label."""
    x, y = environment.take_all(1)
    return ((x[0, :, 0] > 0) == (y[0] == 1)).float()


@pytest.mark.parametrize("steps", [0, 1500])
def test_a_pure_spurious_feature_splits_by_agreement_with_it(steps):
    environment, agrees = spurious("a", 300, 0.2)
    stage = EIIL(**QUICK, steps=steps, rate=1e-2)((environment,), SEED)
    assert [e.name for e in stage] == ["inferred 0", "inferred 1"]
    assert sorted(agreement(e).mean().item() for e in stage) == [0.0, 1.0]
    assert sum(map(len, stage)) == 300
    assert max(map(len, stage)) == int(agrees.sum())


def test_several_environments_are_pooled_first():
    given = [spurious("a", 200, 0.3)[0], spurious("b", 100, 0.1)[0]]
    stage = EIIL(**QUICK, steps=0)(tuple(given), SEED)
    assert sorted(agreement(e).mean().item() for e in stage) == [0.0, 1.0]
    shown = torch.cat([e.take_all(1).x[0] for e in stage])
    expected = torch.cat([e.inputs for e in given])
    assert torch.equal(shown.sort(0)[0], expected.sort(0)[0])


def test_the_gradient_is_that_of_the_mean_penalty():
    slopes = Randomness((1,)).normal(50)[0]
    start = Randomness((2,)).normal(50)[0]
    logits = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=0.1)
    for _ in range(20):
        chances = logits.sigmoid()
        groups = torch.stack([chances, 1 - chances])
        loss = -(groups * slopes).mean(-1).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(
        find_groups_of_highest_irm_penalty(slopes, start, 20, 0.1),
        logits.detach(),
        rtol=1e-4,
        atol=1e-4,
    )


def test_ascent_ends_at_the_signs_of_the_slopes():
    slopes = Randomness((1,)).normal(400)[0]
    places = (
        find_groups_of_highest_irm_penalty(
            slopes, Randomness((2,)).normal(400)[0], 3000, 1e-2
        )
        > 0
    )
    positive = slopes > 0
    assert torch.equal(places, positive) or torch.equal(places, ~positive)


def test_an_empty_group_leaves_one_environment():
    # One class only: every slope is negative.
    inputs = torch.ones(20, 2)
    label = torch.zeros(20, dtype=torch.int64)
    environment = Environment("a", inputs, label, Task.classification(2))
    (only,) = EIIL(**QUICK, steps=0)((environment,), SEED)
    assert (only.name, len(only)) == ("inferred 0", 20)


def test_slopes_are_those_of_a_reference_that_minimises_the_risk():
    environment, agrees = spurious("a", 300, 0.2)
    slopes = EIIL(**{**QUICK, "epochs": 100}).compute_loss_derivatives(
        environment, SEED
    )
    # No factor on the outputs lowers the risk of the minimum.
    assert abs(slopes.mean()) < 0.01
    # It agrees with a chance p, by the logit log(p / (1 - p)) of the frequencies.
    part = agrees.float().mean().item()
    logit = math.log(part / (1 - part))
    assert slopes[agrees].mean().item() == pytest.approx(-(1 - part) * logit, abs=0.02)
    assert slopes[~agrees].mean().item() == pytest.approx(part * logit, abs=0.05)


def test_values_are_split_too():
    x = Randomness((4,)).normal(200, 1)[0]
    noise = 0.5 * Randomness((5,)).normal(200)[0]
    environment = Environment("a", x, x[:, 0] + noise, Task.regression())
    stage = EIIL(**QUICK, steps=0)((environment,), SEED)
    # The slope 2 (f - y) f changes sign with the error times the output.
    for one in stage:
        inputs, targets = one.take_all(1)
        products = (inputs[..., 0] - targets) * inputs[..., 0]
        right = (products > 0).float().mean().item()
        assert right < 0.15 or right > 0.85


def test_the_same_seed_infers_the_same_groups():
    environment, _ = spurious("a", 60, 0.2)
    infer = EIIL(**QUICK, steps=5)
    for first, second in zip(
        infer((environment,), SEED), infer((environment,), SEED), strict=True
    ):
        assert torch.equal(first.take_all(1).x, second.take_all(1).x)


def test_one_seed_at_a_time():
    environment, _ = spurious("a", 60, 0.2)
    with pytest.raises(ValueError, match="one seed at a time, but 2 seeds"):
        EIIL(**QUICK)((environment,), Randomness((3, 5)))


def test_pooled_inputs_come_in_the_order_of_the_rows():
    a, b = (
        Environment("a", torch.arange(3.0)[:, None], torch.zeros(3), Task()),
        Environment(
            "b",
            10 + torch.arange(2.0)[None, :, None],
            torch.ones(1, 2),
            Task(),
            replicated=True,
        ),
    )
    pool = pool_environments((a, b))
    x, y = pool.take(torch.tensor([[4, 0, 3, 2]]))
    assert x[0, :, 0].tolist() == [11.0, 0.0, 10.0, 2.0]
    assert y[0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert isinstance(pool.inputs, PooledInputs) and pool_environments((a,)) is a


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": -1}, "eiil: the setting steps must be 0 or more, but is -1"),
        ({"rate": 0.0}, "eiil: the setting rate must be above 0, but is 0.0"),
        ({"epochs": 0}, "epochs must be positive, but is 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EIIL(**settings)


def test_it_is_made_by_its_key():
    assert REGISTRY.describe("eiil").startswith("EIIL: find the two groups")
    assert list(INFERENCE) == ["eiil"]
    made = create_inference("eiil", {"steps": 7}, "paper")
    assert (made.steps, made.hidden, made.outputs) == (7, (390, 390), 1)
    with pytest.raises(
        ValueError, match=r"there is no setting 'stepz'\. Choose one of hidden, act"
    ):
        create_inference("eiil", {"stepz": 7})
    with pytest.raises(
        ValueError, match=r"there is no preset 'x'\. Choose one of paper, eiil"
    ):
        create_inference("eiil", preset="x")
    with pytest.raises(ValueError, match=r"no inference 'zin'\. Choose one of eiil"):
        create_inference("zin")


@pytest.mark.parametrize("key", ["groupdro", "dfr", "irmv1"])
def test_learners_that_compare_environments_compare_the_inferred_ones(key):
    place, agrees = spurious("a", 400, 0.15)
    stable = place.targets + 0.8 * Randomness((1,)).normal(400)[0]
    inputs = torch.stack([place.inputs[:, 0], stable], -1)
    place = replace(place, inputs=inputs)
    accuracies = []
    for stage in ((place,), EIIL(**QUICK, steps=0)((place,), SEED)):
        settings = {"hidden": (), "epochs": 60, "rate": 0.05}
        own = {"step": 0.1} if key == "groupdro" else {}
        learner = create(key, place, {**settings, **own})
        state = learner.observe(learner.init(SEED), stage, SEED)
        p = learner.predict(state, inputs[None])[0]
        right = p.argmax(-1) == place.targets
        accuracies.append(right[~agrees].float().mean().item())
    assert accuracies[1] > accuracies[0] + 0.1
