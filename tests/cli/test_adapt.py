"""`cirm adapt`, `cirm predict --adapt` and the columns that the user names."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cirm import fit, load, predict, save, update

pytestmark = pytest.mark.integration  # whole commands

QUICK = ["--set", "epochs=15", "--set", "hidden=8", "--set", "rate=0.02"]
ADAPT = ["adapt", "clinic-c.csv", "--model", "m.cirm", "--out", "c.cirm"]


@pytest.fixture
def fitted(cirm, files, reweigh, monkeypatch):
    monkeypatch.chdir(files)
    words = ["fit", "clinic-a.csv", "clinic-b.csv", "--target", "outcome"]
    words += ["--model", "m.cirm", "--learner", reweigh, *QUICK]
    status, _, error = cirm(*words, "--unstable", "scanner", "--trust", "average")
    assert status == 0, error
    return files


def test_adapt_writes_a_model_and_says_what_changed(cirm, fitted):
    before = Path("m.cirm").read_bytes()
    status, printed, error = cirm(*ADAPT)
    assert status == 0, error
    assert "Adapted to clinic-c with 200 rows without targets." in printed
    assert "The class frequencies changed." in printed
    assert "Learned anew for clinic-c" in printed
    assert "95 % interval" in printed
    assert "The first class is weighed anew." in printed
    assert "What adapting would have gained at places with known targets:" in printed
    assert "At clinic-b, adapting would have gained 2 points." in printed
    assert "note: the target column 'outcome' was not used for adapting." in error
    assert "Wrote the adapted model to c.cirm" in error
    assert load("c.cirm").adaptation.rows == 200
    assert Path("m.cirm").read_bytes() == before


def test_what_was_refused_is_said(cirm, fitted):
    pd.read_csv("clinic-c.csv")[:4].to_csv("few.csv", index=False)
    status, printed, _ = cirm(
        "adapt", "few.csv", "--model", "m.cirm", "--out", "c.cirm"
    )
    assert status == 0
    assert "Not adapted:\n  There are too few rows to weigh classes." in printed


def test_adapt_as_json_and_as_a_page(cirm, fitted):
    status, printed, _ = cirm(*ADAPT, "--json", "--report", "page.html")
    assert status == 0
    content = json.loads(printed)
    assert (content["model"], content["source"]) == ("c.cirm", "m.cirm")
    adaptation = content["adaptation"]
    assert (adaptation["name"], adaptation["rows"]) == ("clinic-c", 200)
    assert adaptation["effects"][0]["feature"] == "class frequency"
    assert set(adaptation) >= {"verdict", "gains", "refusals", "notes", "time"}
    page = Path("page.html").read_text()
    assert "<h2>Adapted to clinic-c</h2>" in page
    assert page.index("Adapted to clinic-c") < page.index("<h2>Places</h2>")
    assert "class frequency" in page
    assert "without targets. The class frequencies changed." in page


def test_inspect_gives_the_answer_first(cirm, fitted):
    cirm(*ADAPT)
    status, printed, _ = cirm("inspect", "c.cirm")
    assert status == 0
    lines = printed.splitlines()
    assert lines[1] == "The model relies on what holds everywhere."
    assert lines[2] == "  The meaning of `scanner` differs."
    assert lines[4].startswith("Adapted to clinic-c with 200 rows without targets.")
    assert "scanner: category" in printed
    assert "; unstable, as requested" in printed
    content = json.loads(cirm("inspect", "c.cirm", "--json")[1])
    assert content["explanation"]["unstable"][0]["feature"] == "scanner"
    assert content["adaptation"]["rows"] == 200
    assert json.loads(cirm("inspect", "m.cirm", "--json")[1])["adaptation"] is None


def test_a_file_is_not_replaced_unless_that_is_asked_for(cirm, fitted):
    assert cirm(*ADAPT)[0] == 0
    before = Path("c.cirm").read_bytes()
    status, _, error = cirm(*ADAPT)
    assert status == 2
    assert "the file 'c.cirm' already exists. Use --overwrite" in error
    assert Path("c.cirm").read_bytes() == before
    assert cirm(*ADAPT, "--overwrite")[0] == 0


@pytest.mark.parametrize("name", ["m.cirm", "./m.cirm", "clinic-c.csv"])
def test_an_input_is_never_replaced(cirm, fitted, name):
    before = Path(name).read_bytes()
    words = ["adapt", "clinic-c.csv", "--model", "m.cirm", "--out", name]
    status, _, error = cirm(*words, "--overwrite")
    assert status == 2
    assert "is an input of this command. Choose another name." in error
    assert Path(name).read_bytes() == before


def test_a_learner_that_cannot_adapt_leaves_no_file(cirm, files, monkeypatch):
    monkeypatch.chdir(files)
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--model", "m.cirm"]
    assert cirm(*words, "--learner", "erm", *QUICK)[0] == 0
    status, _, error = cirm(*ADAPT)
    assert status == 2
    assert "with the learner erm, which cannot adapt to rows without targets." in error
    assert not Path("c.cirm").exists()


def test_predict_adapts_in_one_go_and_says_so(cirm, fitted):
    cirm(*ADAPT)
    words = ["predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"]
    status, _, error = cirm(*words, "--adapt")
    assert status == 0
    assert "Before predicting: Adapted to clinic-c with 200 rows" in error
    wanted = predict(load("c.cirm"), "clinic-c.csv")
    found = pd.read_csv("p.csv")
    assert found["probability"].tolist() == wanted["probability"].tolist()


def test_predict_says_that_a_model_was_adapted_before(cirm, fitted):
    cirm(*ADAPT)
    words = ["predict", "clinic-c.csv", "--model", "c.cirm", "--out", "p.csv"]
    status, printed, error = cirm(*words, "--json", "--report", "page.html")
    assert status == 0
    assert "\nAdapted to clinic-c with 200 rows" in f"\n{error}"
    assert json.loads(printed)["adaptation"]["name"] == "clinic-c"
    assert "<h2>Adapted to clinic-c</h2>" in Path("page.html").read_text()


def test_trust_is_a_setting(fitted):
    assert load("m.cirm").plan.settings["trust"] == "average"


def test_trust_needs_a_learner_that_has_it(cirm, files, monkeypatch):
    monkeypatch.chdir(files)
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--model", "m.cirm"]
    status, _, error = cirm(*words, "--learner", "erm", "--trust", "interval")
    assert status == 2
    assert "The learner erm has no setting 'trust'." in error


def test_an_unknown_column_is_refused(cirm, files, monkeypatch, reweigh):
    monkeypatch.chdir(files)
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--model", "m.cirm"]
    words += ["--learner", reweigh]
    status, _, error = cirm(*words, "--stable", "markers")
    assert status == 2
    assert "--stable: there is no input column 'markers'." in error


def make_clinic(rows, agreement, seed):
    """Two markers tell the outcome everywhere, the planted scanner by the place."""
    rng = np.random.default_rng(seed)
    ill = rng.random(rows) < 0.5
    planted = np.where(rng.random(rows) < agreement, ill, ~ill)
    return pd.DataFrame(
        {
            "crp": rng.normal(size=rows) + 0.8 * ill,
            "lactate": rng.normal(size=rows) + 0.8 * ill,
            "scanner": np.where(planted, "new", "old"),
            "outcome": np.where(ill, "ill", "well"),
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model of steady that has learned from two clinics."""
    folder = tmp_path_factory.mktemp("steady")
    for name, agreement, seed in (("a", 0.95, 0), ("b", 0.75, 1), ("c", 0.1, 2)):
        make_clinic(1000, agreement, seed).to_csv(
            folder / f"clinic-{name}.csv", index=False
        )
    model = fit(folder / "clinic-a.csv", "outcome", learner="steady")
    save(update(model, folder / "clinic-b.csv"), folder / "m.cirm")
    return folder


@pytest.fixture
def steady(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")


def measure_accuracy(cirm, model):
    content = json.loads(
        cirm("evaluate", "clinic-c.csv", "--model", model, "--json")[1]
    )
    return content["overall"]["accuracy"]


def test_steady_learns_anew_what_the_scanner_means(cirm, steady):
    rows = pd.read_csv("clinic-c.csv").drop(columns="outcome")
    rows.to_csv("rows.csv", index=False)
    words = ["adapt", "rows.csv", "--model", "m.cirm", "--out", "c.cirm"]
    status, printed, error = cirm(*words, "--report", "c.html")
    assert status == 0, error
    assert "`scanner` means something different here" in printed
    assert "adapting would have changed the accuracy from" in printed
    assert measure_accuracy(cirm, "c.cirm") > measure_accuracy(cirm, "m.cirm") + 2
    content = json.loads(cirm("inspect", "c.cirm", "--json")[1])
    assert [one["feature"] for one in content["explanation"]["unstable"]] == ["scanner"]
    (effect,) = content["adaptation"]["effects"]
    assert effect["low"] < effect["here"] < effect["high"]
    raises = {value > 1 for value in (effect["low"], effect["high"])}
    assert raises.isdisjoint({value > 1 for value in effect["seen"]})
    assert (
        "<code>scanner</code> means something different" in Path("c.html").read_text()
    )
    assert load("c.cirm").adaptation.notes == ()
    # Back from the adapted model, as if it had never been adapted.
    for name in ("m.cirm", "c.cirm"):
        status, _, error = cirm(
            "update", "clinic-c.csv", "--model", name, "--out", f"after-{name}"
        )
        assert status == 0, error
    predictions = [predict(load(f"after-{n}.cirm"), "clinic-c.csv") for n in "mc"]
    assert predictions[0].equals(predictions[1])


def test_steady_refuses_what_rows_cannot_show(cirm, steady):
    frame = pd.read_csv("clinic-c.csv")
    frame[:8].to_csv("few.csv", index=False)
    frame.assign(scanner="new").to_csv("constant.csv", index=False)
    for name in ("few", "constant"):
        words = ["adapt", f"{name}.csv", "--model", "m.cirm", "--out", f"{name}.cirm"]
        status, printed, _ = cirm(*words)
        assert status == 0
        assert "Not adapted:\n  `scanner` was not adapted" in printed
        plain, adapted = (
            predict(load(f"{one}.cirm"), "clinic-c.csv")["probability"]
            for one in ("m", name)
        )
        assert (plain - adapted).abs().max() < 1e-6


def test_steady_at_a_training_place_says_what_was_learned_there(cirm, steady):
    status, printed, _ = cirm(
        "adapt", "clinic-b.csv", "--model", "m.cirm", "--out", "b.cirm"
    )
    assert status == 0
    assert "`scanner` means" in printed


def test_the_user_knows_an_unstable_column_from_one_place(cirm, steady):
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--learner", "steady"]
    status, printed, error = cirm(*words, "--unstable", "scanner", "--model", "u.cirm")
    assert status == 0, error
    assert "; unstable, as requested" in printed
    assert load("u.cirm").history[0].importance["scanner"] < 1e-3
