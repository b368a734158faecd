"""Learners are chosen by key, entry point, import path, class or instance."""

from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint

import pytest
import torch

from cirm import registry
from cirm.environments import Environment, Task
from cirm.learners import (
    LEARNERS,
    create,
    get_learner_class,
    get_learner_key,
    get_learner_key_and_settings,
    list_learner_settings,
    train_on_tiny_data,
)
from cirm.learners.base import Learner, PointState
from cirm.learners.erm import ERM
from cirm.learners.icp import ICP
from cirm.learners.mer import MER
from cirm.learners.steady import Steady
from cirm.learners.vrex import VREx
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.objectives import average_risks_over_examples, compute_environment_risks
from cirm.training import Descent

OFFERED = EntryPoint("calm", "tests.learners.test_doors:Calm", "cirm.learners")


@dataclass(frozen=True)
class Calm(VREx):
    """A learner of another package."""

    calm: float = 0.5


@pytest.fixture
def offered(monkeypatch):
    """Another package offers the learner `calm`."""
    offers = {"cirm.learners": [OFFERED]}
    monkeypatch.setattr(
        registry, "list_entry_points", lambda group: offers.get(group, [])
    )


@pytest.fixture
def clinic():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    return Environment("a", x, torch.arange(20) % 2, Task.classification(2))


PATH = f"{__name__}:Calm"


def test_every_form_names_the_same_class(offered):
    forms = "calm", PATH, Calm, Calm(calm=0.1)
    for form in forms:
        cls = get_learner_class(form)
        assert (cls.__module__.rpartition(".")[2], cls.__name__) == (
            "test_doors",
            "Calm",
        )


@pytest.mark.parametrize("key", LEARNERS)
def test_the_key_of_a_class_is_the_one_it_is_registered_under(key):
    assert get_learner_key(get_learner_class(key)) == key
    assert get_learner_key(get_learner_class(key)()) == key


def test_a_class_outside_the_registry_is_named_by_its_import_path():
    assert get_learner_key(Calm) == PATH
    assert get_learner_key(Calm()) == PATH


def test_an_offered_class_is_named_by_its_entry_point(offered):
    cls = get_learner_class("calm")
    assert get_learner_key(cls) == get_learner_key(cls()) == "calm"


@pytest.mark.parametrize("key", ["fractions:Fraction", dict, 3])
def test_what_is_no_learner_is_refused(key):
    with pytest.raises(ValueError, match="is not a subclass of"):
        get_learner_class(key)


def test_a_key_from_a_file_may_not_be_an_import_path():
    with pytest.raises(ValueError, match="There is no learner"):
        get_learner_class(PATH, allow_import_paths=False)


def test_an_instance_is_bound_to_the_data_and_keeps_its_settings(clinic):
    learner = VREx(penalty=7.0, descent=Descent(epochs=3, rate=0.1))
    bound = create(learner, clinic, {"hidden": (5,)})
    assert bound == replace(learner, network=MLP((3, 5, 2)), likelihood=CrossEntropy(2))
    assert learner.network is None


def test_settings_and_presets_override_those_of_an_instance(clinic):
    learner = VREx(penalty=7.0, anneal=0.1, descent=Descent(epochs=3, rate=0.1))
    bound = create(learner, clinic, {"epochs": 9}, "paper")
    assert (bound.penalty, bound.anneal) == (91257.0, 0.5)
    assert bound.descent == Descent(epochs=9, rate=2.5e-4)


def test_the_network_of_an_instance_is_kept(clinic):
    network = MLP((3, 4, 2), "relu")
    assert create(ERM(network), clinic).network is network
    with pytest.raises(ValueError, match="already has a network, so the setting 'hid"):
        create(ERM(network), clinic, {"hidden": (5,)})


def test_key_and_settings_make_the_same_learner_again(clinic):
    for learner in (VREx(penalty=3.0), MER(replay=2), Steady(members=3), Calm(calm=2)):
        key, settings = get_learner_key_and_settings(learner)
        assert create(key, clinic, settings) == create(learner, clinic)


def test_a_key_or_class_has_no_settings_of_its_own():
    assert (
        get_learner_key_and_settings("erm")
        == get_learner_key_and_settings(ERM)
        == ("erm", {})
    )


def test_the_settings_of_an_instance_are_listed_with_its_values():
    values = {
        name: value for name, _, value in list_learner_settings(VREx(penalty=3.0))
    }
    assert (values["penalty"], values["epochs"], values["dropout"]) == (3.0, 100, 0.0)


def test_the_task_sets_the_likelihood_of_an_instance(clinic):
    values = replace(clinic, targets=torch.randn(20), task=Task.regression())
    assert create(ICP(), values).likelihood == SquaredError()
    with pytest.raises(ValueError, match="icp"):
        create(ICP(), clinic)


def test_the_default_learner_has_the_same_defaults_in_every_form(clinic):
    for form in ("steady", Steady, Steady()):
        assert create(form, clinic).descent.epochs == 120
    values = {name: value for name, _, value in list_learner_settings("steady")}
    assert (values["epochs"], values["dropout"]) == (120, 0.5)


@dataclass(frozen=True)
class LossOnly(Learner[PointState]):
    """A learner that defines nothing but a loss."""

    def compute_loss(self, params, past, batch):
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        return {"risk": average_risks_over_examples(risks, batch)}


def test_a_loss_is_enough_for_a_learner():
    for regression in (False, True):
        plain = train_on_tiny_data("erm", regression)
        assert torch.equal(train_on_tiny_data(LossOnly(), regression), plain)
