"""A model keeps earlier versions, knows its files, and says what it has forgotten."""

import hashlib

import pandas as pd
import pytest
import torch

from cirm import evaluate, fit, load, predict, rollback, save, update
from cirm.memory import list_state_tensors
from cirm.model import versions
from cirm.model.explain import describe_model
from cirm.model.file import encode_model_file


@pytest.fixture
def chain(files):
    """Models after one, two and three clinics, each of which keeps the others."""
    models = [fit(files / "clinic-a.csv", "outcome")]
    for name in ("b", "c"):
        models.append(update(models[-1], files / f"clinic-{name}.csv", keep=3))
    return models


def keys(model):
    return [version["version"] for version in describe_model(model)["earlier_versions"]]


def are_equal(one, other):
    pairs = zip(
        list_state_tensors(one.state),
        list_state_tensors(other.state),
        strict=True,
    )
    return one.history == other.history and all(torch.equal(a, b) for a, b in pairs)


def test_rolling_back_gives_the_very_model_before_the_update(chain, files):
    save(chain[2], files / "m.cirm")
    back = rollback(load(files / "m.cirm"))
    assert are_equal(back, chain[1])
    assert are_equal(rollback(back), chain[0])


def test_nothing_is_lost_by_rolling_back(chain):
    names = [describe_model(model)["version"] for model in chain]
    assert keys(chain[2]) == names[:2]
    back = rollback(chain[2], names[0])
    assert are_equal(back, chain[0])
    assert set(keys(back)) == set(names[1:])
    assert are_equal(rollback(back, names[2][:5]), chain[2])


def test_an_update_after_rolling_back_keeps_both_branches(chain, files):
    back = rollback(chain[1])
    other = update(back, files / "clinic-c.csv", keep=3)
    assert [entry.name for entry in other.history] == ["clinic-a", "clinic-c"]
    assert set(keys(other)) == {describe_model(m)["version"] for m in chain[:2]}
    assert are_equal(rollback(other), chain[0])


def test_without_a_parent_among_the_versions_the_user_must_choose(chain):
    first = rollback(rollback(chain[2]))
    with pytest.raises(ValueError, match=r"return to\. Choose a version with"):
        rollback(first)
    with pytest.raises(ValueError, match="no version begins with 'zz'"):
        rollback(first, "zz")
    with pytest.raises(ValueError, match="contains no earlier version"):
        rollback(chain[0])


def test_so_many_versions_are_kept_as_are_wanted(files):
    model = fit(files / "clinic-a.csv", "outcome")
    second = update(model, files / "clinic-b.csv", keep=1)
    third = update(second, files / "clinic-c.csv", keep=1)
    assert keys(third) == [describe_model(second)["version"]]
    (note,) = [n for n in third.history[-1].notes if "rollback" in n]
    assert describe_model(model)["version"] in note
    assert not update(second, files / "clinic-c.csv").earlier
    with pytest.raises(ValueError, match=r"--keep, .* is -1"):
        update(model, files / "clinic-b.csv", keep=-1)


def test_kept_versions_are_bounded_in_size(chain, files, monkeypatch):
    size = len(encode_model_file(chain[0]))
    monkeypatch.setattr(versions, "MOST_KEPT_BYTES", size // 2)
    model = update(chain[0], files / "clinic-b.csv", keep=3)
    assert model.earlier == ()
    assert any("keeps 0 earlier versions" in note for note in model.history[-1].notes)


def test_the_ledger_counts_what_earlier_versions_cost(chain):
    memory = describe_model(chain[2])["memory"]["earlier versions"]
    assert memory["bytes"] == sum(map(len, chain[2].earlier))
    assert memory["names"] == 2 * describe_model(chain[0])["category_names"]
    assert "earlier versions" not in describe_model(chain[0])["memory"]


def test_raw_examples_in_earlier_versions_are_counted(files, quick):
    settings = {**quick, "epochs": 2, "memory": 10}
    first = fit(files / "clinic-a.csv", "outcome", learner="replay", settings=settings)
    second = update(first, files / "clinic-b.csv", keep=3)
    assert describe_model(second)["raw_examples"] == 10 + 20


def test_each_environment_names_its_files_by_their_digest(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", learner="erm", settings=quick)
    content = (files / "clinic-a.csv").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert model.history[0].files == {"clinic-a.csv": digest}
    frame = pd.read_csv(files / "clinic-b.csv")
    assert update(model, frame).history[-1].files == {}


def test_an_environment_of_two_files_names_both(files, quick):
    for name in ("clinic-a", "clinic-b"):
        frame = pd.read_csv(files / f"{name}.csv").assign(site=["x", "y"] * 100)
        frame.to_csv(files / f"{name}.csv", index=False)
    paths = [files / "clinic-a.csv", files / "clinic-b.csv"]
    words = {"environment": "site", "learner": "erm", "settings": quick}
    model = fit(paths, "outcome", **words)
    for entry in model.history:
        assert list(entry.files) == ["clinic-a.csv", "clinic-b.csv"]


def test_what_becomes_of_earlier_places_is_estimated_without_their_rows(clinic):
    first, second = clinic(2000, 0.95, 0), clinic(2000, 0.2, 1)
    before = fit(first, "outcome", ids=["patient"])
    after = update(before, second)
    past = after.history[-1].past
    assert (past["rows"], past["stored"]) == (1800, 0)
    for model, name in ((before, "before"), (after, "after")):
        actual = evaluate(model, first)["overall"]["accuracy"]
        assert past[name] == pytest.approx(actual, abs=3)
    assert past["after"] < past["before"] - 1  # it no longer trusts the scanner
    assert before.history[0].past == {}


def test_the_error_of_a_regression_at_earlier_places_is_exact(values):
    first, second = values(400, 0), values(400, 1)
    before = fit(first, "y", held_out=0)
    after = update(before, second)
    for model, name in ((before, "before"), (after, "after")):
        frame = predict(model, first)
        error = ((frame["prediction"] - first["y"]) ** 2).mean() ** 0.5
        assert after.history[-1].past[name] == pytest.approx(error, rel=1e-3)


def test_stored_examples_tell_what_was_forgotten(files, quick):
    settings = {**quick, "memory": 30}
    first = fit(files / "clinic-a.csv", "outcome", learner="replay", settings=settings)
    past = update(first, files / "clinic-b.csv").history[-1].past
    assert (past["rows"], past["stored"]) == (30, 30)
    assert 0 <= past["after"] <= 100


def test_a_learner_that_stores_nothing_of_the_past_says_nothing(files, quick):
    first = fit(files / "clinic-a.csv", "outcome", learner="irmv1", settings=quick)
    assert update(first, files / "clinic-b.csv").history[-1].past == {}
