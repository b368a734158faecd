"""A stored model predicts without torch what it predicts with torch."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from cirm import adapt, fit, load, predict, save, update
from cirm.learners import LEARNERS, NETWORK_LEARNERS, get_learner_class
from cirm.learners.base import Learner
from cirm.model.numpy_model import load_numpy_model

SETTINGS = {"epochs": 2, "hidden": (6, 5)}
CASES = [
    *((key, activation) for key in ("erm",) for activation in ("relu", "linear")),
    *((key, "elu") for key in ("erm", "irmg", "logistic", "ridge", "steady")),
]


def assert_both_predict_alike(model, rows, path):
    save(model, path)
    found, expected = load_numpy_model(path), load(path)
    shown = predict(found, rows, probabilities=True)
    wanted = predict(expected, rows, probabilities=True)
    assert list(shown.columns) == list(wanted.columns)
    for name, column in wanted.items():
        if column.dtype.kind != "f":
            # Rounding decides between classes that are equally likely.
            is_clear = abs(wanted.get("probability", 1.0) - 0.5) > 1e-5
            assert shown[name][is_clear].tolist() == column[is_clear].tolist()
        else:
            assert np.allclose(
                shown[name], column, rtol=3e-5, atol=3e-6, equal_nan=True
            )


def fit_on(key, table, target, activation="elu"):
    settings = {} if key in ("steady", "logistic", "ridge") else SETTINGS
    if settings:
        settings = settings | {"activation": activation}
    return fit(table, target, learner=key, settings=settings)


@pytest.mark.parametrize(("key", "activation"), CASES)
def test_numpy_and_torch_predict_the_same(key, activation, clinic, values, tmp_path):
    tasks = get_learner_class(key).tasks
    if "classification" in tasks:
        model = fit_on(key, clinic(200, 0.9, 0), "outcome", activation)
        assert_both_predict_alike(model, clinic(50, 0.5, 1), tmp_path / "classes.cirm")
    if "regression" in tasks:
        model = fit_on(key, values(200, 0), "y", activation)
        assert_both_predict_alike(model, values(50, 1), tmp_path / "values.cirm")


@pytest.mark.integration
@pytest.mark.parametrize("key", sorted(NETWORK_LEARNERS))
def test_every_learner_with_one_network_predicts_the_same(
    key, clinic, values, tmp_path
):
    is_classifier = "classification" in get_learner_class(key).tasks
    table, rows = (clinic(120, 0.9, 0), clinic(40, 0.5, 1))
    if not is_classifier:
        table, rows = values(120, 0), values(40, 1)
    model = fit_on(key, table, "outcome" if is_classifier else "y")
    assert_both_predict_alike(model, rows, tmp_path / "m.cirm")


def test_the_average_of_several_networks_is_predicted_alike(clinic, tmp_path):
    table = clinic(200, 0.9, 0).assign(site=["a", "b"] * 100)
    model = fit(table, "outcome", environment="site", learner="irmg", settings=SETTINGS)
    model = update(model, clinic(100, 0.7, 1).assign(site="c"))
    assert (model.state.players.shape[1], model.state.past.shape[1]) == (1, 2)
    assert_both_predict_alike(model, table, tmp_path / "m.cirm")


def test_more_than_two_classes_are_predicted_alike(clinic, tmp_path):
    table = clinic(300, 0.9, 0)
    table["outcome"] = [f"class {row % 3}" for row in range(len(table))]
    for key in ("steady", "erm"):
        model = fit_on(key, table, "outcome")
        assert_both_predict_alike(model, table[:60], tmp_path / f"{key}.cirm")


@pytest.mark.parametrize("key", ["erm", "irmg", "steady"])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_many_rows_are_predicted_as_few(key, threads, clinic, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    model = fit_on(key, clinic(200, 0.9, 0), "outcome")
    rows = clinic(5000, 0.5, 1)
    shown = predict(model, rows)
    few = [predict(model, rows[start : start + 250]) for start in range(0, 5000, 250)]
    expected = pd.concat(few, ignore_index=True)
    assert shown["patient"].tolist() == expected["patient"].tolist()
    assert np.allclose(shown["probability"], expected["probability"], atol=3e-6)


def test_the_learners_with_one_network_are_those_that_predict_by_it():
    by_network = {
        key for key in LEARNERS if get_learner_class(key).outputs is Learner.outputs
    }
    assert by_network == NETWORK_LEARNERS


def test_what_takes_torch_is_left_to_it(clinic, tmp_path):
    table, path = clinic(200, 0.9, 0), tmp_path / "m.cirm"
    for model in (
        fit(table, "outcome", learner="virmv1", settings=SETTINGS),
        fit(
            table, "outcome", learner="erm", settings=SETTINGS, class_weight="balanced"
        ),
        adapt(fit(table, "outcome"), clinic(100, 0.5, 1).drop(columns="outcome")),
    ):
        save(model, path)
        assert load_numpy_model(path) is None


def test_a_damaged_file_is_refused_without_torch_too(clinic, tmp_path):
    path = tmp_path / "m.cirm"
    save(fit(clinic(100, 0.9, 0), "outcome"), path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged: its checksum does not match"):
        load_numpy_model(path)


def test_the_command_predicts_without_importing_torch_or_scipy(clinic, tmp_path):
    model, rows = tmp_path / "m.cirm", tmp_path / "rows.csv"
    save(fit(clinic(100, 0.9, 0), "outcome"), model)
    clinic(10, 0.5, 1).to_csv(rows, index=False)
    code = (
        "import json, sys; from cirm.cli import app;"
        f"app(['predict', {str(rows)!r}, '--model', {str(model)!r}],"
        " standalone_mode=False);"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == 11
    roots = {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert not roots & {"torch", "scipy", "sklearn", "matplotlib", "PIL"}
