import json

import numpy as np
import pandas as pd
import pytest

from cirm import load

FIT = ["--target", "outcome", "--learner", "erm", "--set", "epochs=2"]


def table(seed, rows=60):
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 10, rows)
    outcome = np.where(age + draw.normal(0, 5, rows) > 50, "yes", "no")
    return pd.DataFrame(
        {"age": age, "dose": draw.normal(size=rows), "outcome": outcome}
    )


@pytest.fixture
def clinics(tmp_path):
    """A folder with three files, the last of which lacks the target."""
    folder = tmp_path / "clinics"
    folder.mkdir()
    for seed, name in enumerate(("north", "south")):
        table(seed).to_csv(folder / f"{name}.csv", index=False)
    table(2).drop(columns="outcome").to_csv(folder / "west.csv", index=False)
    (folder / "notes.txt").write_text("not a table")
    return folder


def test_one_model_per_file_and_a_bad_file_does_not_stop_the_others(
    cirm, clinics, tmp_path
):
    words = ["fit", "--each", clinics, *FIT, "--model", tmp_path / "models"]
    status, printed, error = cirm(*words, "--workers", 1, "--json")
    assert status == 1
    models = json.loads(printed)["models"]
    assert [(m["name"], m["state"]) for m in models] == [
        ("north", "fitted"),
        ("south", "fitted"),
        ("west", "failed"),
    ]
    assert "failed: west: " in error
    assert "'outcome'" in models[2]["reason"]
    assert models[0]["rows"] == 60
    assert models[0]["metric"] == "accuracy"
    model = load(tmp_path / "models" / "north.cirm")
    assert [entry.name for entry in model.history] == ["north"]
    assert not (tmp_path / "models" / "west.cirm").exists()


def test_models_that_are_there_are_skipped_and_changed_ones_are_not_replaced_unasked(
    cirm, clinics, tmp_path
):
    (clinics / "west.csv").unlink()
    models = tmp_path / "models"
    words = ["fit", "--each", clinics, *FIT, "--model", models, "--workers", 1]
    assert cirm(*words)[0] == 0
    before = (models / "north.cirm").read_bytes()

    status, printed, error = cirm(*words)
    assert status == 0
    assert "Skipped 2 of 2 models, because they were already fitted to" in error
    assert "skipped" in printed
    assert (models / "north.cirm").read_bytes() == before

    (models / "south.cirm").unlink()
    status, _, error = cirm(*words)
    assert (status, "Skipped 1 of 2 models" in error) == (0, True)
    assert (models / "south.cirm").exists()

    table(9).to_csv(clinics / "north.csv", index=False)
    status, _, error = cirm(*words)
    assert status == 1
    assert "failed: north: the file " in error
    assert "Use --overwrite to replace it" in error
    assert (models / "north.cirm").read_bytes() == before
    assert cirm(*words, "--overwrite")[0] == 0
    assert (models / "north.cirm").read_bytes() != before


def test_one_model_per_value_of_a_setting(cirm, clinics, tmp_path):
    words = ["fit", clinics / "north.csv", *FIT, "--each-set", "epochs=1,3"]
    words += ["--model", tmp_path / "models", "--workers", 1]
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "model-epochs-1" in printed
    for epochs in (1, 3):
        model = load(tmp_path / "models" / f"model-epochs-{epochs}.cirm")
        assert model.learner.descent.epochs == epochs


def test_a_model_of_many_is_the_model_that_fit_alone_writes(cirm, clinics, tmp_path):
    many, alone = tmp_path / "many", tmp_path / "alone.cirm"
    cirm("fit", "--each", clinics, *FIT, "--model", many, "--workers", 1)
    cirm("fit", clinics / "south.csv", *FIT, "--model", alone)
    one, other = load(many / "south.cirm"), load(alone)
    assert one.state.params.equal(other.state.params)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--each", "nowhere"],
            "--each: there is no folder 'nowhere'. Check the path.",
        ),
        (["--each", "."], "--each: the folder '.' has no data: no file in it ends in"),
        (["a.csv", "--each", "."], "so no other data can be given. Leave out either"),
        (["--each-set", "epochs=1,2"], "--each-set: every model reads the data"),
        (
            ["a.csv", "--each-set", "epochs"],
            "cannot be read. Write the name of a setting",
        ),
        (
            ["--each", ".", "--report", "p.html"],
            "no page can be written together with --each",
        ),
        ([], "fit: no data are given. Give one or more files"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    cirm, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    status, _, error = cirm("fit", *words, "--target", "outcome", "--model", "models")
    assert status == 2
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_several_workers_fit_the_models_of_one(cirm, clinics, tmp_path):
    words = ["fit", "--each", clinics, *FIT]
    for workers in (1, 2):
        model = tmp_path / str(workers)
        assert cirm(*words, "--model", model, "--workers", workers)[0] == 1
    one, other = (load(tmp_path / str(n) / "north.cirm") for n in (1, 2))
    assert one.state.params.equal(other.state.params)
