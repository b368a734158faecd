"""Learners of other packages train models, and their files say what is missing."""

import json
import struct
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from cirm import InvariantClassifier, fit, load, predict, registry, save, update
from cirm.learners.base import Learner, PointState
from cirm.learners.erm import ERM
from cirm.model.explain import describe_model
from cirm.networks import MLP
from cirm.training import Descent

QUICK = {"hidden": (4,), "epochs": 3}
PATH = f"{__name__}:Calm"


@dataclass(frozen=True)
class Calm(ERM):
    """A learner of another package."""

    calm: float = 0.5


@dataclass(frozen=True)
class Untyped(Learner):
    """A learner that does not name the type of its state."""

    def init(self, randomness):
        return PointState(self.network.init(randomness.at("params")))

    def observe(self, state, stage, randomness, watch=None):
        return state

    def outputs(self, state, inputs):
        return self.network(state.params, inputs).unsqueeze(1)


@dataclass(frozen=True)
class Odd(ERM):
    """A learner with a setting that JSON cannot hold."""

    numbers: set = field(default_factory=set)


@pytest.fixture
def offered(monkeypatch):
    """Another package offers the learner `calm`."""
    offers = [EntryPoint("calm", PATH, "cirm.learners")]
    found = {"cirm.learners": offers}
    monkeypatch.setattr(
        registry, "list_entry_points", lambda group: found.get(group, [])
    )


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    return pd.DataFrame(
        {"a": rng.normal(size=60) + y, "b": rng.normal(size=60), "y": y}
    )


def same(first, second, table):
    return predict(first, table).equals(predict(second, table))


@pytest.mark.parametrize("learner", [PATH, Calm], ids=["import path", "class"])
def test_a_learner_that_is_not_registered_trains_as_one_that_is(table, learner):
    own = fit(table, "y", learner=learner, settings=QUICK)
    assert own.plan.learner == PATH
    assert own.plan.settings["calm"] == 0.5
    assert describe_model(own)["method"] == "A learner of another package."
    assert same(own, fit(table, "y", learner="erm", settings=QUICK), table)


def test_an_instance_keeps_its_settings_epochs_and_network(table):
    learner = Calm(network=MLP((2, 6, 2)), descent=Descent(epochs=4), calm=0.1)
    model = fit(table, "y", learner=learner)
    assert model.plan.learner == PATH
    assert model.plan.settings["calm"] == 0.1
    assert model.plan.network["sizes"] == [2, 6, 2]
    assert model.history[0].epochs == 4
    assert update(model, table[:40]).history[1].epochs == 4


def test_an_instance_whose_network_does_not_fit_the_data_is_refused(table):
    with pytest.raises(ValueError, match=r"cannot process inputs of shape \[2\]"):
        fit(table, "y", learner=Calm(network=MLP((3, 2))))


def test_a_class_that_is_not_registered_must_be_given_to_load(table, tmp_path):
    path = tmp_path / "m.cirm"
    model = fit(table, "y", learner=Calm(calm=0.1), settings=QUICK)
    save(model, path)
    message = rf"m\.cirm': the learner '{PATH}', .* not installed\. Install the"
    with pytest.raises(ValueError, match=message):
        load(path)
    for learner in (Calm, Calm(), PATH):
        loaded = load(path, learner=learner)
        assert loaded.learner == model.learner
        assert same(loaded, model, table)
    assert same(update(loaded, table[:40]), update(model, table[:40]), table)
    with pytest.raises(ValueError, match=r"another one may have trained it .*'calm'"):
        load(path, learner="erm")


def test_an_offered_learner_is_stored_by_its_name(table, tmp_path, offered):
    path = tmp_path / "m.cirm"
    save(fit(table, "y", learner="calm", settings=QUICK), path)
    loaded = load(path)
    assert loaded.plan.learner == "calm"
    assert type(loaded.learner).__name__ == "Calm"


def test_an_offer_that_is_gone_is_named(table, tmp_path, offered, monkeypatch):
    path = tmp_path / "m.cirm"
    save(fit(table, "y", learner="calm", settings=QUICK), path)
    monkeypatch.setattr(registry, "list_entry_points", lambda group: [])
    with pytest.raises(ValueError, match=r"the learner 'calm', .* is not installed"):
        load(path)
    assert load(path, learner=Calm).plan.learner == "calm"


def test_a_file_never_decides_what_is_imported(table, tmp_path, monkeypatch):
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from tests.model.test_file import reseal

    path = tmp_path / "m.cirm"
    save(fit(table, "y", learner="erm", settings=QUICK), path)
    reseal(path, lambda d: d["plan"].update(learner="harmful:Class"))
    with pytest.raises(ValueError, match=r"'harmful:Class', .* not installed"):
        load(path)
    describe_model(load(path, learner="erm"))
    assert "harmful" not in sys.modules


def test_a_learner_without_the_type_of_its_state_cannot_be_saved(table, tmp_path):
    model = fit(table, "y", learner=Untyped, settings=QUICK)
    with pytest.raises(ValueError, match=r"Derive the class from Learner\[State\]"):
        save(model, tmp_path / "m.cirm")
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_json_cannot_hold_is_reported(table, tmp_path):
    model = fit(table, "y", learner=Odd(numbers={1}), settings=QUICK)
    with pytest.raises(ValueError, match=r"cannot be saved: set is not a plain"):
        save(model, tmp_path / "m.cirm")


@pytest.mark.filterwarnings("ignore:the model predicts:UserWarning")
def test_estimators_take_classes_and_instances(table, tmp_path):
    x, y = table[["a", "b"]].to_numpy(), table["y"]
    for learner in (Calm, Calm(calm=0.1)):
        estimator = clone(InvariantClassifier(learner, settings=QUICK)).fit(x, y)
        estimator.save(tmp_path / "m.cirm")
        loaded = InvariantClassifier.load(tmp_path / "m.cirm", learner=Calm)
        assert np.array_equal(loaded.predict_proba(x), estimator.predict_proba(x))
        assert loaded.fit(x, y).model_.plan.learner == PATH


def test_the_learner_of_a_file_can_be_read_without_its_package(table, tmp_path):
    save(fit(table, "y", learner=Calm, settings=QUICK), tmp_path / "m.cirm")
    content = (tmp_path / "m.cirm").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    metadata = json.loads(content[8 : 8 + length])["__metadata__"]
    assert json.loads(metadata["model"])["plan"]["learner"] == PATH


def test_commands_take_the_learner_of_a_model_by_import_path(
    cirm, table, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    table.to_csv("a.csv", index=False)
    table[::-1][:50].to_csv("b.csv", index=False)
    model, learner = ["--model", "m.cirm"], ["--learner", PATH]
    quick = ["--set", "hidden=4", "--set", "epochs=2"]
    words = ["fit", "a.csv", "--target", "y", *model, *learner, *quick]
    assert cirm(*words)[0] == 0
    status, _, error = cirm("update", "b.csv", *model)
    assert status == 2
    assert "give its class with --learner" in error
    for command in ("update b.csv", "evaluate b.csv", "predict b.csv --out p.csv"):
        assert cirm(*command.split(), *model, *learner)[0] == 0
    assert cirm("inspect", "m.cirm", *learner)[0] == 0


@dataclass(frozen=True)
class Wide(MLP):
    """A network of another package."""

    def describe(self):
        return {**super().describe(), "kind": "wide"}


def test_networks_are_chosen_by_name_or_given(table, tmp_path):
    path = tmp_path / "m.cirm"
    linear = fit(table, "y", learner="erm", network="linear", settings={"epochs": 2})
    assert linear.plan.network["sizes"] == [2, 2]
    save(linear, path)
    assert same(load(path), linear, table)
    with pytest.raises(ValueError, match="There is no network 'nope'"):
        fit(table, "y", learner="erm", network="nope")
    wide = Wide((2, 9, 2))
    model = fit(table, "y", learner="erm", network=wide, settings={"epochs": 2})
    save(model, path)
    assert same(load(path, network=wide), model, table)
    for network in (None, Wide((2, 8, 2))):
        with pytest.raises(ValueError, match="There is no network 'wide'"):
            load(path, network=network)


def test_the_commands_choose_networks_by_name(cirm, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table.to_csv("a.csv", index=False)
    words = ["fit", "a.csv", "--target", "y", "--model", "m.cirm", "--learner", "erm"]
    assert cirm(*words, "--set", "network=linear", "--set", "epochs=2")[0] == 0
    assert load("m.cirm").learner.network.sizes == (2, 2)
    assert "Network: 2-2" in cirm("inspect", "m.cirm")[1]
