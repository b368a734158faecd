"""`cirm adapt`, `cirm predict --adapt` and the columns that the user names."""

import json
from pathlib import Path

import pandas as pd
import pytest

from cirm import load, predict

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
    assert "Adapted to clinic-c by 200 rows without targets." in printed
    assert "The class frequencies changed." in printed
    assert "Learned anew for clinic-c" in printed
    assert "95 % interval" in printed
    assert "The first class is weighed anew." in printed
    assert "What adapting gained when labelled environments arrived:" in printed
    assert "At clinic-b, adapting would have gained 2 points." in printed
    assert "note: the target 'outcome' was not used to adapt." in error
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
    assert page.index("Adapted to clinic-c") < page.index("<h2>Environments</h2>")
    assert "class frequency" in page
    assert "The model relies on what holds everywhere. A classification model" in page


def test_inspect_gives_the_answer_first(cirm, fitted):
    cirm(*ADAPT)
    status, printed, _ = cirm("inspect", "c.cirm")
    assert status == 0
    lines = printed.splitlines()
    assert lines[1].startswith("The model relies on what holds everywhere. The meaning")
    assert lines[2].startswith("Adapted to clinic-c by 200 rows without targets.")
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
    assert "The learner erm cannot adapt to rows without targets." in error
    assert not Path("c.cirm").exists()


def test_predict_adapts_in_one_go_and_says_so(cirm, fitted):
    cirm(*ADAPT)
    words = ["predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"]
    status, _, error = cirm(*words, "--adapt")
    assert status == 0
    assert "Before predicting: Adapted to clinic-c by 200 rows" in error
    wanted = predict(load("c.cirm"), "clinic-c.csv")
    found = pd.read_csv("p.csv")
    assert found["probability"].tolist() == wanted["probability"].tolist()


def test_predict_says_that_a_model_was_adapted_before(cirm, fitted):
    cirm(*ADAPT)
    words = ["predict", "clinic-c.csv", "--model", "c.cirm", "--out", "p.csv"]
    status, printed, error = cirm(*words, "--json", "--report", "page.html")
    assert status == 0
    assert "\nAdapted to clinic-c by 200 rows" in f"\n{error}"
    assert json.loads(printed)["adaptation"]["name"] == "clinic-c"
    assert "<h2>Adapted to clinic-c</h2>" in Path("page.html").read_text()


def test_trust_is_a_setting_that_predict_can_change(cirm, fitted):
    assert load("m.cirm").plan.settings["trust"] == "average"
    words = ["predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"]
    assert cirm(*words, "--trust", "invariant")[0] == 0


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
