"""Tables: what `steady` finds, predicts without rows of a place, and adapts to."""

import pytest
import torch

from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.steady.columns_basis import find_one_hot_feature_blocks
from cirm.model.state_tensors import (
    flatten_state_to_tensors_by_path,
    restore_state_from_tensors,
)
from cirm.randomness import Randomness

AGREEMENT = {"a": 0.9, "b": 0.8, "c": 0.1, "d": 0.8, "e": 0.8, "f": 0.8}


def make_place(name, n=1000, values=False, seed=0):
    """Three stable features, one of noise, and a shortcut in the last column."""
    generator = torch.Generator().manual_seed(seed + 7 * ord(name[0]))
    y = (torch.rand(n, generator=generator) < 0.4).long()
    s = torch.randn(n, 4, generator=generator)
    s[:, :3] += torch.tensor([1.0, 0.7, -0.5]) * y[:, None]
    if values:
        y = s[:, :3].sum(1) + torch.randn(n, generator=generator)
        slope = {"a": 0.9, "b": 0.6, "c": -0.9}[name]
        u = slope * y + torch.randn(n, generator=generator)
        return Environment(name, torch.cat([s, u[:, None]], 1), y, Task.regression())
    agrees = torch.rand(n, generator=generator) < AGREEMENT[name]
    u = torch.where(agrees, y, 1 - y).float()
    task = Task.classification(2)
    return Environment(name, torch.cat([s, u[:, None]], 1), y, task)


def train(stream, settings=None, seeds=(0,)):
    learner = create("steady", stream.stages[0][0], settings or {})
    randomness = Randomness(seeds)
    state = learner.init(randomness.at("init"))
    for index, stage in enumerate(stream):
        state = learner.observe(state, stage, randomness.at("stage", index))
    return learner, state


def score(learner, state, place):
    inputs = place.inputs[None]
    return float(
        learner.likelihood.compute_scores(
            learner.predict(state, inputs), place.targets[None]
        ).mean()
    )


@pytest.fixture(scope="module", params=["sequential", "joint"])
def fitted(request):
    places = [make_place(name) for name in "ab"]
    return train(Stream.from_order(places, request.param))


def test_the_shortcut_alone_is_found(fitted):
    learner, state = fitted
    assert state.unstable.tolist() == [[False] * 4 + [True]]
    explanation = learner.explain(state, {"w": 1, "x": 1, "y": 1, "z": 1, "scan": 1})
    assert [entry["feature"] for entry in explanation["unstable"]] == ["scan"]
    first, second = explanation["unstable"][0]["effects"]
    assert 6 < first < 13
    assert 3 < second < 5.5


def test_the_unseen_place_is_predicted_as_without_the_column(fitted):
    learner, state = fitted
    place = make_place("c")
    keep = [
        Environment(p.name, p.inputs[:, :4], p.targets, p.task)
        for p in map(make_place, "abc")
    ]
    oracle, known = train(Stream.create_sequential(keep[:2]))
    reached, possible = score(learner, state, place), score(oracle, known, keep[2])
    assert reached > possible - 3


@pytest.mark.parametrize("rows", [100, 300, 1000])
def test_rows_without_labels_turn_the_column_around(fitted, rows):
    learner, state = fitted
    place = make_place("c")
    adapted = learner.adapt(state, place.inputs[None, :rows])
    assert score(learner, adapted, place) > score(learner, state, place) + 8
    effect = learner.explain(adapted)["adaptation"]["effects"][0]
    assert effect["low"] < effect["here"] < effect["high"] < 1
    assert effect["low"] < 1 / 9 * 1.5


def test_adapting_twice_or_in_another_order_gives_the_same_predictions(fitted):
    learner, state = fitted
    inputs = make_place("c", 500).inputs[None]
    once = learner.adapt(state, inputs)
    again = learner.adapt(once, inputs.flip(1))
    assert torch.equal(learner.outputs(once, inputs), learner.outputs(again, inputs))


def test_learning_goes_on_as_if_the_state_had_not_been_adapted(fitted):
    learner, state = fitted
    place, inputs = make_place("c", 300), make_place("c").inputs[None]
    randomness = Randomness((0,))
    plain = learner.observe(state, (place,), randomness)
    after = learner.observe(learner.adapt(state, inputs), (place,), randomness)
    assert torch.equal(learner.outputs(plain, inputs), learner.outputs(after, inputs))


def test_too_few_rows_and_a_constant_column_are_refused(fitted):
    learner, state = fitted
    inputs = make_place("c").inputs[None].clone()
    few = learner.adapt(state, inputs[:, :20])
    assert "too few" in learner.explain(few)["adaptation"]["refusals"][0]
    inputs[..., -1] = 1.0
    constant = learner.adapt(state, inputs)
    assert "constant" in learner.explain(constant)["adaptation"]["refusals"][0]
    assert torch.equal(learner.outputs(state, inputs), learner.outputs(few, inputs))


def test_one_place_changes_nothing_and_says_so():
    learner, state = train(Stream.create_sequential([make_place("a")]))
    assert not state.unstable.any()
    assert "One place" in learner.explain(state)["verdict"]
    inputs = make_place("c").inputs[None]
    adapted = learner.adapt(state, inputs)
    assert torch.equal(learner.outputs(state, inputs), learner.outputs(adapted, inputs))


def test_the_users_word_decides():
    places = [make_place(name) for name in "ab"]
    _, state = train(
        Stream.create_sequential(places), {"stable": (4,), "unstable": (3,)}
    )
    assert state.unstable.tolist() == [[False, False, False, True, False]]


def test_a_sequence_learns_what_pooling_learns():
    places = [make_place(name, values=True) for name in "ab"]
    places = [Environment(p.name, p.inputs[:, :4], p.targets, p.task) for p in places]
    _, apart = train(Stream.create_sequential(places))
    _, together = train(Stream.create_joint(places))
    assert torch.allclose(apart.whole.mean, together.whole.mean, atol=1e-6)


def test_a_regression_adapts_too():
    places = [make_place(name, values=True) for name in "abc"]
    learner, state = train(Stream.create_sequential(places[:2]))
    assert state.unstable.tolist() == [[False] * 4 + [True]]
    adapted = learner.adapt(state, places[2].inputs[None, :300])
    before, after = (score(learner, s, places[2]) for s in (state, adapted))
    assert before == pytest.approx(1.0, abs=0.15)
    assert after < 0.75


def test_residuals_of_an_adapted_regression_are_smaller():
    places = [make_place(name, values=True) for name in "abc"]
    learner, state = train(Stream.create_sequential(places[:2]))
    assert learner.get_residual_ratio_after_adapting(state) == 1
    adapted = learner.adapt(state, places[2].inputs[None])
    errors = [score(learner, s, places[2]) for s in (state, adapted)]
    factor = learner.get_residual_ratio_after_adapting(adapted)
    assert (errors[1] / errors[0]) ** 0.5 - 0.1 < factor < 0.95


def test_columns_are_trusted_one_by_one():
    """One column agrees in ten environments, and one turns around."""
    places = []
    for index in range(10):
        place = make_place("a", 400, seed=index)
        y, generator = place.targets, torch.Generator().manual_seed(index)
        agrees = torch.rand(400, generator=generator) < (0.9 if index % 2 else 0.2)
        turned = torch.where(agrees, y, 1 - y).float()[:, None]
        inputs = torch.cat([place.inputs, turned], 1)
        places.append(Environment(str(index), inputs, y, place.task))
    settings = {"trust": "interval", "unstable": (4, 5)}
    learner, state = train(Stream.create_sequential(places), settings)
    inputs = places[0].inputs[None, :50].clone()
    outputs = []
    for column in (4, 5):
        for value in (0.0, 1.0):
            inputs[..., column] = value
            outputs.append(learner.outputs(state, inputs).mean())
    assert outputs[1] - outputs[0] > 2
    assert outputs[3] == outputs[2]


def test_trust_in_the_average_uses_unstable_columns():
    places = [make_place(name) for name in "ab"]
    learner, state = train(Stream.create_sequential(places), {"trust": "average"})
    inputs = places[0].inputs[None].clone()
    inputs[..., -1] = 1 - inputs[..., -1]
    here, there = (
        learner.outputs(state, rows).mean(1)
        for rows in (places[0].inputs[None], inputs)
    )
    assert float((here - there).abs().min()) > 2


def test_one_hot_columns_are_found_without_being_told():
    generator = torch.Generator().manual_seed(0)
    one_hot = torch.eye(4)[torch.randint(4, (200,), generator=generator)]
    number = torch.randn(200, 1, generator=generator)
    flag = torch.randint(2, (200, 1), generator=generator).float()
    features = torch.cat([number, flag, one_hot, flag, number], 1)
    assert find_one_hot_feature_blocks(features) == (1, 1, 4, 1, 1)
    assert find_one_hot_feature_blocks(features[:, :5]) == (1, 1, 1, 1, 1)


def test_a_noisy_copy_does_not_hide_the_shortcut():
    places = []
    for name in "ab":
        place, generator = make_place(name), torch.Generator().manual_seed(ord(name))
        u = place.inputs[:, -1:] + torch.randn(1000, 1, generator=generator)
        copy = u + 0.5 * u.std() * torch.randn(1000, 1, generator=generator)
        inputs = torch.cat([place.inputs[:, :-1], u, copy], 1)
        inputs[:, -2] += 2 * place.inputs[:, -1]
        inputs[:, -1] += 2 * place.inputs[:, -1]
        places.append(Environment(name, inputs, place.targets, place.task))
    _, state = train(Stream.create_sequential(places))
    assert state.unstable[0].tolist() == [False] * 4 + [True, True]


def test_products_of_columns_are_learned():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 4, generator=generator)
    score_of_row = x[:, 0] + 1.5 * x[:, 1] * x[:, 2]
    y = (torch.rand(4000, generator=generator) < score_of_row.sigmoid()).long()
    place = Environment("a", x, y, Task.classification(2))
    learner, state = train(Stream.create_sequential([place]))
    used = state.basis.factors[0] > 0
    assert state.basis.pairs[0, used].tolist() == [[1, 2]]
    best = 100 * float(((score_of_row > 0) == (y == 1)).float().mean())
    assert score(learner, state, place) > best - 1


def test_another_noise_of_the_target_is_not_another_meaning():
    places = []
    for name, noise in (("a", 0.7), ("b", 1.4)):
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(1000, 4, generator=generator)
        y = x.sum(1) + noise * torch.randn(1000, generator=generator)
        places.append(Environment(name, x, y, Task.regression()))
    _, state = train(Stream.create_sequential(places))
    assert not state.unstable.any()


def test_causes_of_a_regression_are_kept_if_little_is_known_without_them():
    generator = torch.Generator().manual_seed(3)

    def make_causes(name, slope, n=500):
        x = torch.randn(n, 6, generator=generator)
        noise = 0.5 * torch.randn(n, generator=generator)
        y = slope * x[:, 0] + 0.6 * x[:, 1] + 0.1 * x[:, 2] + noise
        return Environment(name, x, y, Task.regression())

    places = [make_causes("a", 1.2), make_causes("b", 0.7)]
    learner, state = train(Stream.from_order(places, "sequential"))
    assert not state.unstable.any() and state.entangled[0, 0]
    assert score(learner, state, make_causes("c", 1.0)) < 0.35  # the noise is 0.25


def test_a_column_that_changes_is_set_aside_though_others_say_nothing():
    """What that costs on the environments seen is told."""
    places = []
    for name, slope in (("a", 1.0), ("b", 0.6)):
        generator = torch.Generator().manual_seed(ord(name))
        x = torch.randn(1000, 4, generator=generator)
        y = slope * x[:, 0] + torch.randn(1000, generator=generator)
        places.append(Environment(name, x, y, Task.regression()))
    learner, state = train(Stream.create_sequential(places))
    assert state.unstable.tolist() == [[True] + [False] * 3]
    assert "trust=average" in " ".join(learner.explain(state)["evidence"])


def test_a_column_whose_meaning_the_rows_do_not_show_is_refused(fitted):
    learner, state = fitted
    inputs = make_place("c", 100).inputs[None].clone()
    generator = torch.Generator().manual_seed(0)
    inputs[..., -1] = torch.randint(2, (100,), generator=generator).float()
    adapted = learner.adapt(state, inputs)
    assert (
        "these rows do not show what it means here"
        in learner.explain(adapted)["adaptation"]["refusals"][0]
    )
    assert torch.equal(learner.outputs(state, inputs), learner.outputs(adapted, inputs))


def test_replicas_learn_each_from_their_own_rows():
    first = [make_place(name) for name in "ab"]
    both = [
        Environment(
            p.name,
            torch.stack([p.inputs, q.inputs]),
            torch.stack([p.targets, q.targets]),
            p.task,
            replicated=True,
        )
        for p, q in zip(first, [make_place(n, seed=5) for n in "ab"], strict=True)
    ]
    learner, state = train(Stream.create_sequential(both), seeds=(0, 1))
    _, alone = train(Stream.create_sequential(first), seeds=(0,))
    inputs = make_place("c").inputs
    pair = learner.outputs(state, torch.stack([inputs, inputs]))
    assert torch.allclose(pair[0], learner.outputs(alone, inputs[None])[0])


def make_classes(name, classes=5, n=1000):
    """Stable means of each class, and a column of categories that follows it."""
    generator = torch.Generator().manual_seed(ord(name))
    centres = 1.3 * torch.randn(classes, 5, generator=torch.Generator().manual_seed(0))
    y = torch.randint(classes, (n,), generator=generator)
    s = centres[y] + torch.randn(n, 5, generator=generator)
    share = {"a": 0.9, "b": 0.8, "c": 0.9}[name]
    aim = (y + 1) % classes if name == "c" else y
    other = torch.randint(classes, (n,), generator=generator)
    u = torch.where(torch.rand(n, generator=generator) < share, aim, other)
    marks = torch.nn.functional.one_hot(u, classes).float()
    task = Task.classification(classes)
    return Environment(name, torch.cat([s, marks], 1), y, task)


def test_many_classes_find_and_relearn_a_column_of_categories():
    places = [make_classes(name) for name in "abc"]
    learner, state = train(
        Stream.create_sequential(places[:2]), {"widths": (1, 1, 1, 1, 1, 5)}
    )
    assert state.unstable.tolist() == [[False] * 5 + [True] * 5]
    adapted = learner.adapt(state, places[2].inputs[None, :300])
    before, after = (score(learner, each, places[2]) for each in (state, adapted))
    assert before > 85
    assert after > before + 4


def test_a_product_that_turns_around_is_no_longer_used():
    """Neither of two columns says anything alone; together they show the label."""
    places, plain = [], []
    for name, flip in (("a", 0.1), ("b", 0.2), ("c", 0.9)):
        place = make_place(name)
        generator = torch.Generator().manual_seed(ord(name))
        wrong = torch.rand(1000, generator=generator) < flip
        one = torch.randint(2, (1000,), generator=generator)
        other = torch.where(wrong, 1 - place.targets, place.targets) ^ one
        stable = place.inputs[:, :4]
        marks = torch.stack([one, other], 1).float()
        plain.append(Environment(name, stable, place.targets, place.task))
        inputs = torch.cat([stable, marks], 1)
        places.append(Environment(name, inputs, place.targets, place.task))
    learner, first = train(Stream.create_sequential(places[:1]))
    assert first.basis.pairs[0, first.basis.factors[0] > 0].tolist() == [[4, 5]]
    _, state = train(Stream.create_sequential(places[:2]))
    assert not (state.basis.factors > 0).any()
    oracle, known = train(Stream.create_sequential(plain[:2]))
    expected = score(oracle, known, plain[2])
    assert score(learner, state, places[2]) > expected - 3


@pytest.mark.parametrize("part", ["a class in the middle", "all classes"])
def test_strong_columns_of_many_classes_may_change_a_little(part):
    """One class that the column hardly shows moves, or all effects shrink by 1.5 %."""
    places = []
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        y = torch.randint(4, (400,), generator=generator)
        x = torch.randn(400, 3, generator=generator)
        means = torch.tensor([-4.0, 0.3, -2.0, 4.0])
        if part == "all classes":
            means = torch.tensor([-4.0, -2.0, 2.0, 4.0]) * (1 - 0.015 * number)
        else:
            means[1] -= 0.3 * number
        x[:, 0] += means[y]
        places.append(Environment(f"{number}", x, y, Task.classification(4)))
    _, state = train(Stream.create_sequential(places))
    assert not state.unstable.any()


def test_columns_of_a_product_keep_their_meaning_where_their_means_differ():
    """The slope of one column is the mean of the other, which is another everywhere."""
    places = []
    for number, mean in enumerate((0.0, 0.4, -0.4)):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(1000, 4, generator=generator)
        x[:, :2] += mean
        logits = x[:, 0] + x[:, 1] + x[:, 2] + 1.5 * x[:, 0] * x[:, 1]
        y = (torch.rand(1000, generator=generator) < logits.sigmoid()).long()
        places.append(Environment(f"{number}", x, y, Task.classification(2)))
    _, state = train(Stream.create_sequential(places))
    assert (state.basis.factors > 0).any()
    assert not state.unstable.any()


def test_a_tiny_place_does_not_hide_what_the_others_can_show():
    places = [make_place("d", 15), *(make_place(name) for name in "ef")]
    learner, state = train(Stream.create_sequential(places))
    told = " ".join(learner.explain(state)["evidence"])
    assert "a change can be detected" in told and "too few rows" not in told


@pytest.mark.parametrize("kind", ["category", "related columns"])
def test_a_shortcut_spread_over_several_features_is_found(kind):
    """None of the features changes by much; together they do."""
    places, plain = [], []
    for name in "abc":
        place = make_place(name)
        generator = torch.Generator().manual_seed(ord(name))
        shown = place.inputs[:, -1].long()
        if kind == "category":
            level = 4 * shown + torch.randint(4, (1000,), generator=generator)
            marks = torch.nn.functional.one_hot(level, 8).float()
        else:
            noise = torch.randn(1000, 4, generator=generator)
            marks = (2 * shown - 1)[:, None] + 0.8 * noise
        stable = place.inputs[:, :4]
        plain.append(Environment(name, stable, place.targets, place.task))
        inputs = torch.cat([stable, marks], 1)
        places.append(Environment(name, inputs, place.targets, place.task))
    learner, state = train(Stream.create_sequential(places[:2]))
    assert not state.unstable[0, :4].any()
    assert state.unstable[0, 4:].all()
    oracle, known = train(Stream.create_sequential(plain[:2]))
    expected = score(oracle, known, plain[2])
    assert score(learner, state, places[2]) > expected - 3
    adapted = learner.adapt(state, places[2].inputs[None, :300])
    assert score(learner, adapted, places[2]) > expected + 3


@pytest.mark.parametrize("values", [False, True])
def test_a_state_of_an_earlier_revision_is_opened_and_learns_on(values):
    places = [make_place(name, values=values) for name in "ab"]
    learner, state = train(Stream.create_sequential(places[:1]))
    tensors = flatten_state_to_tensors_by_path(state)
    for name in learner.added_later:
        tensors.pop(name, None)  # the other engine's
    opened = restore_state_from_tensors(learner, tensors)
    later = learner.observe(opened, (places[1],), Randomness((0,)).at("stage", 1))
    assert later.unstable.tolist() == [[False] * 4 + [True]]
    del tensors["state.unit"]
    with pytest.raises(ValueError, match=r"lacks the tensor 'state\.unit'"):
        restore_state_from_tensors(learner, tensors)


def test_many_classes_find_a_column_that_told_nothing_in_the_first_place():
    places = []
    for name, share in (("a", 0.0), ("b", 0.8)):
        place = make_classes(name, classes=4)
        generator = torch.Generator().manual_seed(7 + ord(name))
        other = torch.randint(4, (len(place),), generator=generator)
        follows = torch.rand(len(place), generator=generator) < share
        mark = torch.where(follows, place.targets, other).float()
        inputs = torch.cat([place.inputs[:, :5], mark[:, None]], 1)
        places.append(Environment(name, inputs, place.targets, place.task))
    _, state = train(Stream.create_sequential(places))
    assert state.unstable.tolist() == [[False] * 5 + [True]]
