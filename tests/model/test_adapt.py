"""A model is adapted to a new environment by rows whose targets are not known."""

import importlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.base import clone

from cirm import (
    InvariantClassifier,
    adapt,
    evaluate,
    fit,
    load,
    predict,
    save,
    update,
)
from cirm.model.explain import describe_model

QUICK = {"hidden": (8,), "epochs": 30, "rate": 0.02, "batch": 64}


def place(rows, share, seed):
    """Rows of which a share is ill; the marker tells which, the colour nothing."""
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < share
    return pd.DataFrame(
        {
            "marker": rng.normal(size=rows) + 1.5 * ill,
            "age": rng.normal(50, 10, rows),
            "colour": rng.choice(["red", "blue"], rows),
            "outcome": np.where(ill, "ill", "well"),
        }
    )


@pytest.fixture
def model(reweigh):
    table = place(400, 0.5, 0)
    return fit(table, "outcome", learner=reweigh, settings=QUICK)


@pytest.fixture
def new():
    """A place where nine of ten are ill."""
    return place(600, 0.9, 1)


def read_file(model, path):
    """What the file of a model holds, except when it was adapted."""
    save(replace(model, adaptation=replace(model.adaptation, time="")), path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    # The entries of the metadata come in any order.
    return sorted(header.pop("__metadata__").items())[:2], content[8 + length :]


def test_adapting_estimates_what_differs_and_improves_the_predictions(model, new):
    adapted = adapt(model, new.drop(columns="outcome"))
    before, after = (evaluate(one, new)["overall"] for one in (model, adapted))
    assert after["accuracy"] > before["accuracy"] + 5
    assert after["log_loss"] < before["log_loss"]
    assert adapted.adaptation.rows == 600
    assert adapted.adaptation.name == "table"
    assert model.adaptation is None


def test_an_adapted_model_predicts_row_by_row(model, new):
    adapted = adapt(model, new)
    together = predict(adapted, new)["probability"]
    alone = [predict(adapted, new[i : i + 1])["probability"].iloc[0] for i in range(5)]
    assert together[:5].tolist() == pytest.approx(alone, abs=2e-6)


def test_a_target_column_is_ignored_and_that_is_said(model, new, tmp_path):
    adapted = adapt(model, new)
    wrong = new.assign(outcome="never seen")
    assert (
        "the target column 'outcome' was not used for adapting."
        in adapted.adaptation.notes
    )
    without = adapt(model, new.drop(columns="outcome"))
    assert without.adaptation.notes == ()
    for other in (adapt(model, wrong), replace(without, adaptation=adapted.adaptation)):
        assert read_file(other, tmp_path / "b") == read_file(adapted, tmp_path / "a")


def test_the_same_rows_in_any_order_give_the_same_file(model, new, tmp_path):
    shuffled = new.sample(frac=1, random_state=0)
    first, *others = (
        read_file(adapt(model, rows), tmp_path / "m.cirm")
        for rows in (new, new, shuffled, new[[*new.columns][::-1]])
    )
    assert all(other == first for other in others)


def test_adapting_again_starts_from_the_model_before(model, new, tmp_path):
    other = place(300, 0.2, 5)
    twice = adapt(adapt(model, other), new)
    once = adapt(model, new)
    assert read_file(twice, tmp_path / "a") == read_file(once, tmp_path / "b")


def test_the_training_environment_itself_changes_little(model):
    table = place(400, 0.5, 0)
    before, after = (
        predict(one, table, probabilities=True)["probability of ill"]
        for one in (model, adapt(model, table))
    )
    assert (before - after).abs().max() < 0.1


def test_a_few_rows_are_refused_with_the_reason(model, new):
    adapted = adapt(model, new[:3])
    found = describe_model(adapted)["adaptation"]
    assert found["rows"] == 3
    assert found["refusals"] == ["There are too few rows to weigh classes"]
    same = predict(adapted, new)["probability"] - predict(model, new)["probability"]
    assert same.abs().max() < 1e-5


def test_one_row_and_a_constant_column_are_no_obstacle(model, new):
    assert adapt(model, new[:1]).adaptation.rows == 1
    adapted = adapt(model, new.assign(age=50.0, colour="red"))
    assert predict(adapted, new)["probability"].notna().all()


def test_another_unit_is_refused_unless_it_is_accepted(model, new):
    days = new.assign(age=365.25 * new["age"])
    with pytest.raises(ValueError, match="'age' seems to be in a different unit"):
        adapt(model, days)
    notes = adapt(model, days, accept_units=True).adaptation.notes
    assert any("different unit" in note for note in notes)


def test_a_missing_column_is_refused_unless_it_is_filled(model, new):
    with pytest.raises(ValueError, match="no column 'age'"):
        adapt(model, new.drop(columns="age"))
    adapted = adapt(model, new.drop(columns="age"), fill_missing=True)
    assert any("these columns are absent" in note for note in adapted.adaptation.notes)


def test_no_rows_are_refused(model, new):
    with pytest.raises(ValueError, match="the data have no rows"):
        adapt(model, new[:0])


def test_rows_of_several_environments_are_refused(reweigh, new):
    sites = [place(80, 0.5, 0).assign(site="a"), place(80, 0.5, 1).assign(site="b")]
    model = fit(
        pd.concat(sites), "outcome", environment="site", learner=reweigh, settings=QUICK
    )
    mixed = new.assign(site=["c", "d"] * 300)
    with pytest.raises(ValueError, match=r"2 places \('c', 'd'\)"):
        adapt(model, mixed)
    assert adapt(model, new.assign(site="c")).adaptation.name == "c"


def test_a_learner_that_cannot_adapt_names_one_that_can(new):
    model = fit(new, "outcome", learner="erm", settings=QUICK)
    with pytest.raises(
        ValueError, match=r"learner erm, which cannot adapt.*steady, which"
    ):
        adapt(model, new)


def test_a_file_keeps_the_adaptation(model, new, tmp_path):
    adapted = adapt(model, new)
    save(adapted, tmp_path / "m.cirm")
    loaded = load(tmp_path / "m.cirm")
    assert loaded.adaptation == adapted.adaptation
    for part in ("adaptation", "explanation", "memory"):
        assert describe_model(loaded)[part] == describe_model(adapted)[part]
    assert predict(loaded, new).equals(predict(adapted, new))


def test_a_model_that_was_not_adapted_has_a_file_as_before(model, tmp_path):
    save(model, tmp_path / "m.cirm")
    content = (tmp_path / "m.cirm").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    assert "adaptation" not in json.loads(header["model"])
    assert load(tmp_path / "m.cirm").adaptation is None


def test_an_update_continues_from_the_model_before(model, new):
    later = place(200, 0.4, 7)
    after = update(adapt(model, new), later)
    plain = update(model, later)
    assert after.adaptation is None
    assert describe_model(after)["adaptation"] is None
    assert torch.equal(after.state.params, plain.state.params)
    assert predict(after, new).equals(predict(plain, new))
    assert any("adapted to 'table'" in note for note in after.history[-1].notes)


def list_scores_on_arrival(model):
    """What an update has stored of the model before it learned."""
    last = model.history[-1]
    return last.metrics_before, last.arrival, last.nonconformity


@pytest.mark.parametrize("key", ["steady", "t3a", "tent", "label-shift", "sfb"])
def test_scores_on_arrival_are_those_of_the_model_that_was_not_adapted(key, new):
    data = pd.concat([place(80, 0.3, 0).assign(s="a"), place(80, 0.6, 1).assign(s="b")])
    settings = {} if key == "steady" else {**QUICK, "epochs": 3}
    model = fit(data, "outcome", environment="s", learner=key, settings=settings)
    later = place(60, 0.1, 3)
    plain, after = (update(one, later) for one in (model, adapt(model, new)))
    assert list_scores_on_arrival(after) == list_scores_on_arrival(plain)
    assert plain.history[-1].metrics_before == evaluate_as_metrics(model, later)


def evaluate_as_metrics(model, rows):
    known = model.history[-1].metrics_after
    return {name: evaluate(model, rows)["overall"][name] for name in known}


def test_a_learner_that_cannot_undo_an_adaptation_is_not_updated(
    model, new, monkeypatch
):
    adapted = adapt(model, new)
    monkeypatch.delattr(type(model.learner), "forget_adaptation")
    with pytest.raises(ValueError, match=r"Reweigh supports adaptation but does not"):
        update(adapted, place(200, 0.4, 7))


def test_progress_is_reported(model, new):
    steps = []
    adapt(model, new, progress=lambda what, part: steps.append(what))
    assert list(dict.fromkeys(steps)) == ["encoding", "adapting"]


def test_more_rows_than_fit_into_memory_are_drawn(model, new, monkeypatch):
    module = importlib.import_module("cirm.model.adapt")
    monkeypatch.setattr(module, "MEMORY_BYTES", 100 * 4 * 5)
    adapted = adapt(model, new)
    assert adapted.adaptation.rows == 100
    assert any("100 of the 600 rows" in note for note in adapted.adaptation.notes)


def test_of_many_rows_the_same_ones_are_drawn_in_whatever_order(
    model, new, monkeypatch
):
    monkeypatch.setattr(importlib.import_module("cirm.model.adapt"), "MOST_ROWS", 100)
    adapted, other = adapt(model, new), adapt(model, new[::-1])
    assert adapted.adaptation.rows == other.adaptation.rows == 100
    assert any("100 of the 600 rows" in note for note in adapted.adaptation.notes)
    pd.testing.assert_frame_equal(predict(adapted, new), predict(other, new))
    first = adapt(model, new[:100])  # not simply the first rows
    assert not predict(adapted, new).equals(predict(first, new))


def test_arrays_and_images_adapt_alike(reweigh, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 80)
    X = rng.normal(size=(80, 2, 3, 3)) + y[:, None, None, None]
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.savez(tmp_path / "b.npz", X=X[y == 1])
    model = fit(tmp_path / "a.npz", learner=reweigh, settings=QUICK)
    adapted = adapt(model, tmp_path / "b.npz")
    assert (adapted.adaptation.name, adapted.adaptation.notes) == ("b", ())
    known = adapt(model, tmp_path / "a.npz").adaptation.notes
    assert "the target column 'target' was not used for adapting." in known

    for folder in ("a/dark", "a/light", "b"):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for number in range(12):
            level = (200 if "light" in folder else 20) + int(rng.integers(40))
            image = Image.fromarray(np.full((8, 8, 3), level, np.uint8))
            image.save(tmp_path / "images" / folder / f"{number}.png")
    model = fit(tmp_path / "images" / "a", learner=reweigh, settings=QUICK, side=8)
    adapted = adapt(model, tmp_path / "images" / "b")
    assert (adapted.adaptation.name, adapted.adaptation.rows) == ("b", 12)
    assert (predict(adapted, tmp_path / "images" / "b")["prediction"] == "dark").all()


def test_columns_that_the_user_names_reach_the_learner(reweigh, new):
    model = fit(
        new, "outcome", learner=reweigh, settings=QUICK,
        unstable=["colour"], stable=["marker"],
    )  # fmt: skip
    settings = model.plan.settings
    assert settings["widths"] == (1, 3, 1)  # age, colour, marker
    assert (settings["unstable"], settings["stable"]) == ((1,), (2,))
    assert model.learner.unstable == (1,)
    found = describe_model(model)
    assert found["explanation"]["unstable"][0]["feature"] == "colour"
    uses = {column["name"]: column["treatment"] for column in found["columns"]}
    assert uses["colour"].endswith("; unstable, as requested")
    assert uses["marker"].endswith("; stable, as requested")


def test_columns_without_features_do_not_shift_the_others(reweigh, new):
    table = new.assign(about=1.0, id=range(1, 601))
    model = fit(table, "outcome", learner=reweigh, settings=QUICK, unstable=["colour"])
    assert model.plan.settings["widths"] == (1, 3, 1)
    explanation = model.explain()
    assert explanation["unstable"][0]["feature"] == "colour"
    with pytest.raises(ValueError, match="does not use the column about: ignored"):
        fit(table, "outcome", learner=reweigh, settings=QUICK, unstable=["about"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unstable": ["color"]}, "no input column 'color'. The inputs are 'age'"),
        ({"stable": ["outcome"]}, "no input column 'outcome'"),
        ({"unstable": ["age"], "stable": ["age"]}, "both --unstable and --stable"),
        ({"unstable": ["age"], "learner": "erm"}, "erm treats all columns alike"),
    ],
)
def test_columns_that_cannot_be_meant_are_refused(reweigh, new, options, message):
    with pytest.raises(ValueError, match=message):
        fit(new, "outcome", **{"learner": reweigh, "settings": QUICK, **options})


def test_arrays_have_no_columns_to_name(reweigh, tmp_path):
    X, y = np.zeros((20, 1, 2, 2)), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", X=X, y=y)
    with pytest.raises(ValueError, match="only a table has columns"):
        fit(tmp_path / "a.npz", learner=reweigh, unstable=["x"], settings=QUICK)


@pytest.mark.filterwarnings("ignore:before the model learned from")
def test_the_estimator_adapts_to_a_copy(reweigh, new, tmp_path):
    table = place(400, 0.5, 0)
    names = ["age", "colour", "marker"]
    plain = InvariantClassifier(reweigh, settings=QUICK, unstable=["colour"])
    plain.fit(table[names], table["outcome"])
    adapted = plain.adapt(new[names], "clinic-c")
    assert plain.model_.adaptation is None
    assert adapted.model_.adaptation.name == "clinic-c"
    assert adapted.score(new[names], new["outcome"]) > plain.score(
        new[names], new["outcome"]
    )
    assert clone(adapted).get_params()["unstable"] == ["colour"]
    assert not hasattr(clone(adapted), "model_")
    adapted.save(tmp_path / "m.cirm")
    loaded = InvariantClassifier.load(tmp_path / "m.cirm")
    assert loaded.model_.adaptation == adapted.model_.adaptation
    assert np.array_equal(
        loaded.predict_proba(new[names]), adapted.predict_proba(new[names])
    )
    later = place(100, 0.3, 9)
    with pytest.warns(UserWarning, match="adapted to 'clinic-c'"):
        adapted.partial_fit(later[names], later["outcome"])
    assert adapted.model_.adaptation is None
    assert plain.model_.history != adapted.model_.history


@pytest.mark.filterwarnings("ignore:the model predicts")
def test_the_estimator_adapts_to_arrays_of_any_shape(reweigh):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    for shape in ((3,), (1, 4, 4)):
        X = rng.normal(size=(40, *shape)).astype(np.float32)
        model = InvariantClassifier(reweigh, settings=QUICK).fit(X, y)
        adapted = model.adapt(torch.from_numpy(X))
        assert adapted.model_.adaptation.name == "new environment"
        assert adapted.predict(X).shape == (40,)
    with pytest.raises(ValueError, match="cannot adapt"):
        InvariantClassifier("erm", settings=QUICK).fit(X, y).adapt(X)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_a_removed_learner_says_what_to_do(version):
    path = Path(__file__).parent / f"files/removed/version-{version}-cirm.cirm"
    with pytest.raises(ValueError, match=r"learner 'cirm', which cirm no long"):
        load(path)


@pytest.mark.parametrize("key", ["t3a", "tent", "label-shift", "sfb"])
def test_learners_of_the_field_adapt_and_their_adapted_models_can_be_saved(
    tmp_path, key
):
    data = pd.concat(
        [place(80, 0.3, 0).assign(site="a"), place(80, 0.6, 1).assign(site="b")]
    )
    settings = {**QUICK, "epochs": 3}
    model = fit(data, "outcome", environment="site", learner=key, settings=settings)
    rows = place(80, 0.9, 2).drop(columns="outcome")
    adapted = adapt(model, rows)
    assert adapted.adaptation.rows == 80
    save(adapted, tmp_path / "m.cirm")
    again = load(tmp_path / "m.cirm")
    assert predict(again, rows).equals(predict(adapted, rows))
    assert not predict(model, rows).equals(predict(adapted, rows))
    later = update(adapted, place(80, 0.5, 3))
    plain = update(model, place(80, 0.5, 3))
    assert predict(later, rows).equals(predict(plain, rows))
