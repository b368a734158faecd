"""Changes of meaning that only the unlabelled rows of a new place show."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners.steady.columns_unlabelled import RelationToStablePredictions
from tests.learners.steady.test_columns import score, train

NAMES = {"w": 1, "x": 1, "y": 1, "z": 1, "scanner": 1}


def draw_place(seed, agreement=0.85, n=300, kind="binary"):
    """Four stable features, and a scanner that agrees with the label so often."""
    generator = torch.Generator().manual_seed(seed)
    s = torch.randn(n, 4, generator=generator)
    noise = torch.randn(n, generator=generator)
    if kind == "regression":
        y = s @ torch.tensor([1.0, 0.7, -0.5, 0.4]) + noise
        u = (2 * agreement - 1) * y + torch.randn(n, generator=generator)
        inputs = torch.cat([s, u[:, None]], 1)
        return Environment(f"{seed}", inputs, y, Task.regression())
    classes = 3 if kind == "classes" else 2
    y = torch.randint(classes, (n,), generator=generator)
    if kind == "classes":
        s[:, :3] += 1.2 * torch.eye(3)[y]
    else:
        s += torch.tensor([1.0, 0.7, -0.5, 0.4]) * y[:, None]
    agrees = torch.rand(n, generator=generator) < agreement
    shift = 1 + torch.randint(classes - 1, (n,), generator=generator)
    u = torch.where(agrees, y, (y + shift) % classes)
    columns = torch.eye(3)[u] if kind == "classes" else u.float()[:, None]
    inputs = torch.cat([s, columns], 1)
    return Environment(f"{seed}", inputs, y, Task.classification(classes))


def fit_two_places(kind="binary", settings=None, n=300):
    """The scanner means the same at both places, so that labels show no change."""
    places = [draw_place(seed, kind=kind, n=n) for seed in (1, 2)]
    learner, state = train(Stream.create_sequential(places), settings)
    assert not state.unstable.any()
    return learner, state


@pytest.mark.parametrize("kind", ["binary", "regression", "classes"])
def test_a_column_that_turns_around_only_at_the_new_place_is_learned_again(kind):
    learner, state = fit_two_places(kind)
    place = draw_place(3, 0.1, 2000, kind)
    adapted = learner.adapt(state, place.inputs[None, :300])
    found = adapted.adaptation.found[0].nonzero()[:, 0].tolist()
    assert found == ([4, 5, 6] if kind == "classes" else [4])
    keep = [
        Environment(p.name, p.inputs[:, :4], p.targets, p.task)
        for p in (draw_place(seed, kind=kind) for seed in (1, 2))
    ]
    oracle, known = train(Stream.create_sequential(keep))
    rest = Environment("c", place.inputs[:, :4], place.targets, place.task)
    possible = score(oracle, known, rest)
    before, after = (score(learner, own, place) for own in (state, adapted))
    if kind == "regression":  # an error
        assert after < 0.9 * possible < possible < 0.5 * before
    else:
        assert before < possible - 5
        assert after > possible + 1


def test_the_explanation_says_that_only_these_rows_show_it():
    learner, state = fit_two_places()
    adapted = learner.adapt(state, draw_place(3, 0.1).inputs[None])
    told = learner.explain(adapted, NAMES)["adaptation"]
    assert [entry["feature"] for entry in told["effects"]] == ["scanner"]
    assert told["found"] == ["scanner"]
    assert (
        "The places seen did not show that this column can change"
        in told["effects"][0]["sentence"]
    )
    assert told["effects"][0]["high"] < 1 < min(told["effects"][0]["seen"])
    assert learner.explain(adapted, NAMES)["unstable"] == []


def test_the_explanation_says_that_a_column_is_not_used_here():
    learner, state = fit_two_places()
    adapted = learner.adapt(state, draw_place(3, 0.5).inputs[None])
    told = learner.explain(adapted, NAMES)["adaptation"]
    assert told["found"] == ["scanner"] and not told["effects"]
    assert "no longer use 1 column" in told["verdict"]
    assert "`scanner` is not used here" in told["refusals"][0]


def test_columns_that_keep_their_meaning_are_left_alone():
    learner, state = fit_two_places()
    alarms = 0
    for seed in range(10, 50):
        adapted = learner.adapt(state, draw_place(seed).inputs[None])
        alarms += bool(adapted.adaptation.found.any())
    assert alarms <= 3  # the level allows two of forty; half of a relation may be lost


def test_rows_of_a_training_place_change_nothing():
    learner, state = fit_two_places()
    inputs = draw_place(1).inputs[None]
    adapted = learner.adapt(state, inputs)
    assert torch.equal(learner.outputs(state, inputs), learner.outputs(adapted, inputs))


def make_constant(inputs):
    inputs[:, -1] = 1.0


def make_rare(inputs):
    """One scanner is hardly used here, but means the same."""
    is_new = inputs[:, -1] == 1
    inputs[is_new.nonzero()[3:, 0], -1] = 0.0


def change_unit(inputs):
    inputs[:, 0] *= -1000


@pytest.mark.parametrize("change", [make_constant, make_rare, change_unit])
def test_rows_that_cannot_show_a_meaning_change_nothing(change):
    learner, state = fit_two_places()
    inputs = draw_place(3).inputs.clone()
    change(inputs)
    adapted = learner.adapt(state, inputs[None])
    assert not adapted.adaptation.found.any()


def test_few_rows_and_the_users_word_are_respected():
    place = draw_place(3, 0.1)
    learner, state = fit_two_places()
    assert not learner.adapt(state, place.inputs[None, :29]).adaptation.found.any()
    learner, state = fit_two_places(settings={"stable": (4,)})
    assert not learner.adapt(state, place.inputs[None]).adaptation.found.any()


def test_learning_forgets_what_only_unlabelled_rows_have_shown():
    learner, state = fit_two_places()
    adapted = learner.adapt(state, draw_place(3, 0.1).inputs[None])
    assert adapted.unstable.equal(state.unstable)
    assert adapted.predictor.coefficients.equal(state.predictor.coefficients)


def test_intervals_are_as_wide_as_the_model_without_the_column_needs():
    learner, state = fit_two_places("regression")
    rows = draw_place(3, 0.5, 2000, "regression").inputs[None]
    adapted = learner.adapt(state, rows)
    assert adapted.adaptation.found.any()
    assert float(adapted.adaptation.residual) > 1.1


def test_the_p_value_of_a_loss():
    # At half of the relation seen, either is as likely.
    assert (
        RelationToStablePredictions(1.0, 0.1, 0.5, 0.1, 1.0).compute_p_value_of_loss()
        == 0.5
    )
    # z = (0.5 - 0.1) / sqrt(0.16 ** 2 + 0.12 ** 2) = 2
    found = RelationToStablePredictions(
        1.0, 0.24, 0.1, 0.16, 1.0
    ).compute_p_value_of_loss()
    assert found == pytest.approx(0.02275, abs=1e-5)
    # Of a feature with a quarter of the variance, the effect is the same.
    assert (
        RelationToStablePredictions(1.0, 0.1, 0.25, 0.01, 4.0).compute_p_value_of_loss()
        > 0.99
    )
