"""Vectors of many continuous numbers: by column, and by direction."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from cirm import InvariantRegressor, adapt, fit, load, save, update
from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady.both import are_inputs_continuous
from cirm.memory import stack_states_of_replicas
from cirm.model.explain import describe_model
from cirm.model.numpy_model import load_numpy_model
from cirm.model.state_tensors import (
    flatten_state_to_tensors_by_path,
    restore_state_from_tensors,
)
from cirm.randomness import Randomness

WIDTH = 60
COLUMN = 7
CONTRADICTED = {"a": 0.2, "b": 0.1, "c": 0.9}


def make_place(name, kind, n=800, values=False):
    """Return rows of which a shortcut is in one column, or spread over all."""
    generator = torch.Generator().manual_seed(ord(name))
    fixed = torch.Generator().manual_seed(1)
    # Neither part is of use to the other: all is in a turned frame.
    frame = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=fixed))[0]
    if values:
        return make_place_of_values(name, kind, n, frame, generator)
    y = torch.randint(2, (n,), generator=generator)
    noisy = torch.where(torch.rand(n, generator=generator) < 0.2, 1 - y, y)
    contradicts = torch.rand(n, generator=generator) < CONTRADICTED[name]
    u = torch.where(contradicts, 1 - noisy, noisy)
    x = torch.randn(n, WIDTH, generator=generator)
    x[:, 0] += 1.7 * (2 * y - 1)
    if kind == "spread":
        x[:, 1] += 2.5 * (2 * u - 1)
    x = x @ frame
    if kind == "column":
        x[:, COLUMN] = 2 * u - 1 + 0.6 * torch.randn(n, generator=generator)
    return Environment(name, x, noisy, Task.classification(2))


def make_place_of_values(name, kind, n, frame, generator):
    """Return the same of a regression."""
    x = torch.randn(n, WIDTH, generator=generator)
    y = x[:, 0] + 0.7 * torch.randn(n, generator=generator)
    slope = {"a": 1.0, "b": 0.5, "c": -1.0}[name]
    u = slope * y + 0.5 * torch.randn(n, generator=generator)
    x[:, 1] += 2.5 * u * (kind == "spread")
    x = x @ frame
    if kind == "column":
        x[:, COLUMN] = u
    return Environment(name, x, y, Task.regression())


def make_place_of_drifting_sensors(name, seed=0, n=600):
    """Return rows whose columns have an own gain and offset at each place."""
    fixed = torch.Generator().manual_seed(1 + seed)
    means = torch.randn(2, WIDTH, generator=fixed)
    load = torch.randn(6, WIDTH, generator=fixed)
    steps = 0.4 * torch.randn(2, 5, WIDTH, generator=fixed)
    gain, offset = steps[:, : "abcde".index(name)].sum(1)
    generator = torch.Generator().manual_seed(ord(name) + 1000 * seed)
    y = torch.randint(2, (n,), generator=generator)
    x = means[y] + torch.randn(n, 6, generator=generator) @ load
    x = (2 + x + 0.7 * torch.randn(n, WIDTH, generator=generator)) * gain.exp()
    noisy = torch.where(torch.rand(n, generator=generator) < 0.1, 1 - y, y)
    return Environment(name, x + offset, noisy, Task.classification(2))


def train(places, settings=None):
    learner = create("steady", places[0], settings or {})
    randomness = Randomness((0,))
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(Stream.create_sequential(places)):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return learner, state


def score(learner, state, place):
    with torch.no_grad():
        prediction = learner.predict(state, place.inputs[None])
    return float(learner.likelihood.compute_scores(prediction, place.targets).mean())


@pytest.fixture(scope="module")
def fitted():
    return {
        kind: train([make_place(name, kind) for name in "ab"])
        for kind in ("column", "spread")
    }


def make_table(name, kind):
    """Return the same as a table."""
    place = make_place(name, kind)
    frame = pd.DataFrame(place.inputs, columns=[f"sensor {j}" for j in range(WIDTH)])
    return frame.assign(ill=np.where(place.targets == 1, "yes", "no"))


@pytest.fixture(scope="module")
def models():
    return {
        kind: update(fit(make_table("a", kind), "ill"), make_table("b", kind))
        for kind in ("column", "spread")
    }


def test_a_shortcut_in_one_column_is_found_by_column(fitted):
    learner, state = fitted["column"]
    assert learner.list_unstable_features(state) == [[f"column {COLUMN + 1}"]]
    assert state.directions.members.numel()  # though directions were searched, too


def test_a_shortcut_in_all_columns_is_found_by_direction(fitted):
    learner, state = fitted["spread"]
    assert learner.list_unstable_features(state) == [["direction 1"]]


@pytest.mark.parametrize("kind", ["column", "spread"])
def test_the_unseen_place_is_predicted_and_adapted_to(fitted, kind):
    learner, state = fitted[kind]
    place = make_place("c", kind)
    before = score(learner, state, place)
    adapted = learner.adapt(state, place.inputs[None])
    assert before > 60  # 10 % by the shortcut
    assert score(learner, adapted, place) > before + 5
    forgotten = learner.forget_adaptation(adapted)
    assert score(learner, forgotten, place) == before
    assert learner.get_residual_ratio_after_adapting(adapted) == 1


def test_a_direction_that_explains_little_of_a_drift_is_no_shortcut():
    *places, unseen = [make_place_of_drifting_sensors(name) for name in "abcde"]
    learner, state = train(places)
    assert not bool(state.directions.found)
    assert bool(state.directions.unexplained)
    assert score(learner, state, unseen) > 80
    evidence = learner.explain(state, environments=4)["evidence"]
    assert any("no direction explains it" in text for text in evidence)
    assert not any("Nor was a direction" in text for text in evidence)


def test_sensors_that_drift_are_predicted_by_column():
    *places, unseen = [make_place_of_drifting_sensors(name, 2) for name in "abcde"]
    learner, state = train(places)
    assert not bool(state.directions.found)  # it tells the class, as all has changed
    assert learner.list_unstable_features(state) == [[]]
    assert score(learner, state, unseen) > 75  # less than 50 without the direction


def test_a_direction_without_which_nothing_is_left_does_not_predict(fitted):
    learner, state = fitted["spread"]
    gains = torch.zeros_like(state.directions.gains)
    directions = state.directions._replace(gains=gains)
    state = state._replace(directions=directions, leads=torch.tensor([False]))
    assert learner.list_unstable_features(state) == [[]]
    assert any("no better than chance" in t for t in learner.explain(state)["evidence"])


def test_replicas_are_predicted_by_the_engine_that_found_something(fitted):
    parts = [fitted[kind] for kind in ("column", "spread")]
    learner = parts[0][0]
    inputs = make_place("c", "column", 40).inputs[None]

    def drop_axis(state):
        if isinstance(state, torch.Tensor):
            return state[0]
        return type(state)(*map(drop_axis, state))

    states = [drop_axis(state) for _, state in parts]
    columns = stack_states_of_replicas([states[0].columns] * 2)
    directions = stack_states_of_replicas([state.directions for state in states])
    joined = parts[0][1]._replace(
        columns=columns, directions=directions, leads=torch.tensor([False, True])
    )
    adapted = learner.adapt(joined, inputs.repeat(2, 1, 1))
    for state in (joined, adapted):
        with torch.no_grad():
            found = learner.predict(state, inputs.repeat(2, 1, 1))
        own = [one for _, one in parts]
        if state is adapted:
            own = [learner.adapt(one, inputs) for one in own]
        for r, one in enumerate(own):
            with torch.no_grad():
                wanted = learner.predict(one, inputs)[0]
            torch.testing.assert_close(found[r], wanted, atol=1e-5, rtol=1e-4)
    assert learner.list_unstable_features(joined) == [
        [f"column {COLUMN + 1}"],
        ["direction 1"],
    ]


@pytest.mark.filterwarnings("ignore:before the model learned")
@pytest.mark.parametrize("kind", ["column", "spread"])
def test_numbers_are_predicted_from_what_either_search_leaves(kind):
    places = [make_place(name, kind, values=True) for name in "abc"]
    model = InvariantRegressor()
    for place in places[:2]:
        model.partial_fit(place.inputs.numpy(), place.targets.numpy())
    learner, state = model.model_.learner, model.model_.state
    assert learner.view == "both"
    found = learner.list_unstable_features(state)[0]
    assert found
    if kind == "spread":  # of which the columns have found a part
        assert state.columns.unstable.any()
        assert all("direction" in name for name in found)
    x, y = places[2].inputs.numpy(), places[2].targets.numpy()
    before, after = (m.score(x, y) for m in (model, model.adapt(x)))
    assert before > 0.3  # with the shortcut it is negative
    assert after >= before
    evidence = model.model_.explain()["evidence"]
    sentences = [text for text in evidence if "weighted sum" in text]
    assert len(sentences) == sum("direction" in name for name in found)


def test_a_column_of_few_values_leaves_everything_to_the_columns():
    places = [make_place(name, "spread", 300) for name in "ab"]
    for place in places:
        place.inputs[:, 3] = (place.inputs[:, 3] > 0).float()
    learner, state = train(places)
    other, alone = train(places, {"view": "columns"})
    inputs = make_place("c", "spread", 50).inputs[None]
    assert learner.view == "both"
    assert not state.directions.members.numel()
    for opened, known in (
        (state, alone),
        (learner.adapt(state, inputs), other.adapt(alone, inputs)),
    ):
        assert torch.equal(
            learner.outputs(opened, inputs), other.outputs(known, inputs)
        )
    assert learner.explain(state) == other.explain(alone)


@pytest.mark.parametrize(
    ("features", "settings", "view"),
    [
        ((49,), {}, "columns"),
        ((50,), {}, "both"),
        ((512,), {}, "both"),
        ((513,), {}, "directions"),
        ((60,), {"unstable": (3,)}, "columns"),
        ((60,), {"stable": (3,)}, "columns"),
        ((60,), {"widths": (1,) * 60}, "both"),
        ((60,), {"widths": (2,) * 30}, "columns"),
        ((60,), {"network": "linear"}, "directions"),
        ((60,), {"view": "columns"}, "columns"),
        ((8,), {"view": "both"}, "both"),
        ((3, 4, 5), {}, "directions"),
    ],
)
def test_the_view_depends_on_shape_and_settings(features, settings, view):
    place = Environment(
        "a", torch.zeros(4, *features), torch.arange(4) % 2, Task.classification(2)
    )
    learner = create("steady", place, settings)
    assert learner.view == view
    if view == "both":
        assert learner.network.sizes == (math.prod(features), 2)


def test_rounded_and_constant_columns_are_continuous_and_codes_are_not():
    x = torch.randn(1, 3_000, 3, generator=torch.Generator().manual_seed(0))
    assert are_inputs_continuous(x)
    assert are_inputs_continuous((1_000 * x).round())
    constant = torch.cat([x, torch.ones(1, 3_000, 1)], 2)
    assert are_inputs_continuous(constant)
    assert not are_inputs_continuous(constant[..., 3:])
    assert not are_inputs_continuous((10 * x).round())
    assert not are_inputs_continuous(torch.cat([x, (x[..., :1] > 0).float()], 2))


@pytest.mark.parametrize("kind", ["column", "spread"])
def test_a_model_file_is_read_and_goes_on(models, kind, tmp_path):
    path = tmp_path / "m.cirm"
    new = make_table("c", kind)
    for model in (models[kind], adapt(models[kind], new.drop(columns="ill"))):
        save(model, path)
        read = load(path)
        inputs = make_place("c", kind, 30).inputs.numpy()
        wanted = model.predict_from_inputs(inputs)
        for one, other in zip(read.predict_from_inputs(inputs), wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        numpy_model = load_numpy_model(path)
        takes_torch = kind == "spread" or model.adaptation is not None
        assert (numpy_model is None) == takes_torch
        if numpy_model is not None:
            found = numpy_model.predict_from_inputs(inputs)
            np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-5)
        later = update(read, new)
        assert len(later.history) == 3


def test_sentences_name_the_columns_of_a_direction(models):
    (sentence,) = [
        text
        for text in describe_model(models["spread"])["explanation"]["evidence"]
        if "weighted sum" in text
    ]
    assert sentence.startswith("Direction 1 is a weighted sum of the columns.")
    place = make_place("a", "spread")
    moved = [
        place.inputs[place.targets == c].mean(0) for c in (0, 1)
    ]  # by the shortcut and by what is stable
    size = ((moved[1] - moved[0]) / place.inputs.std(0)).abs()
    named = [j for j in range(WIDTH) if f"`sensor {j}`" in sentence]
    assert len(named) == 5
    assert size[named].mean() > 1.5 * size.mean()


def test_nothing_found_is_said_of_columns_and_directions():
    places = [make_place(name, "none") for name in "ab"]
    learner, state = train(places)
    explanation = learner.explain(state, {}, 2)
    assert learner.list_unstable_features(state) == [[]]
    assert explanation["verdict"].startswith("No column was found")
    assert any("Nor was a direction" in text for text in explanation["evidence"])


def test_scores_on_past_rows_are_those_of_the_columns(models):
    for kind, is_scored in (("column", True), ("spread", False)):
        state = models[kind].state
        scores = models[kind].learner.score_on_past_environments(state, state)
        assert bool(scores) == is_scored


def test_a_state_that_does_not_fit_together_is_refused(fitted):
    learner, state = fitted["column"]
    shape = (WIDTH,)
    learner.check_state(state, shape)
    learner.check_state(fitted["spread"][1], shape)
    empty = state.directions._replace(members=torch.zeros(1, 0))
    bad = {
        "is not one truth value": state._replace(leads=torch.zeros(1)),
        "no direction was found": state._replace(
            leads=torch.tensor([True]),
            directions=state.directions._replace(found=torch.zeros(1)),
        ),
        "unused directions": state._replace(directions=empty),
    }
    for message, crafted in bad.items():
        with pytest.raises(ValueError, match=message):
            learner.check_state(crafted, shape)


def test_a_state_without_a_tensor_that_was_added_later_is_opened(fitted):
    learner, state = fitted["column"]
    tensors = flatten_state_to_tensors_by_path(state)
    for name in ("state.columns.weights", "state.directions.kernel.counts"):
        del tensors[name]
    opened = restore_state_from_tensors(learner, tensors)
    inputs = make_place("c", "column", 30).inputs[None]
    assert torch.equal(learner.outputs(opened, inputs), learner.outputs(state, inputs))
