"""The history of a model: inspect --history, rollback and diff."""

import hashlib
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration  # whole commands or many simulations

FIT = ("fit", "clinic-a.csv", "--target", "outcome", "--model")
QUICK = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")


@pytest.fixture
def updated(cirm, files, monkeypatch):
    """A model after clinics a and b, and a copy of it after a alone."""
    monkeypatch.chdir(files)
    assert cirm(*FIT, "m.cirm")[0] == 0
    Path("a.cirm").write_bytes(Path("m.cirm").read_bytes())
    status, out, error = cirm("update", "clinic-b.csv", "--model", "m.cirm")
    assert status == 0, error
    return out


def inspect(cirm, path, *words):
    status, out, error = cirm("inspect", path, "--json", *words)
    assert status == 0, error
    return json.loads(out)


def test_update_says_how_earlier_places_would_fare_now(updated):
    (line,) = [
        text
        for text in updated.splitlines()
        if text.startswith("At the earlier places")
    ]
    assert " % before this update and is " in line
    assert ", estimated from the statistics that the model keeps of 180 rows." in line


def test_update_says_if_that_is_not_known(cirm, files, monkeypatch):
    monkeypatch.chdir(files)
    cirm(*FIT, "m.cirm", *QUICK)
    _, out, _ = cirm("update", "clinic-b.csv", "--model", "m.cirm")
    assert "The scores at earlier places after this update are not known" in out


def test_the_history_shows_environments_files_and_versions(cirm, updated):
    status, out, _ = cirm("inspect", "m.cirm", "--history")
    assert status == 0
    for name in ("clinic-a.csv", "clinic-b.csv"):
        digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        assert f"{name} {digest[:12]}" in out
    version = inspect(cirm, "a.cirm")["version"]
    assert version in out
    assert (
        "Use `cirm rollback m.cirm --to VERSION` to return to an earlier version."
        in out
    )
    content = inspect(cirm, "m.cirm", "--history")
    assert [v["version"] for v in content["earlier_versions"]] == [version]
    assert set(content) == {
        *("model", "version", "created", "history", "earlier_versions"),
    }
    assert "No earlier version is kept" in cirm("inspect", "a.cirm", "--history")[1]


def test_rollback_returns_to_the_model_before_and_back(cirm, updated):
    before, after = (inspect(cirm, name)["version"] for name in ("a.cirm", "m.cirm"))
    predict = ("predict", "clinic-c.csv", "--model")
    expected, latest = (cirm(*predict, name)[1] for name in ("a.cirm", "m.cirm"))
    status, out, _ = cirm("rollback", "m.cirm")
    assert status == 0
    assert out.startswith(f"m.cirm is at version {before}, trained on clinic-a.")
    assert f"`cirm rollback m.cirm --to {after}` returns to it." in out
    assert cirm(*predict, "m.cirm")[1] == expected
    assert cirm("rollback", "m.cirm", "--to", after)[0] == 0
    assert cirm(*predict, "m.cirm")[1] == latest
    assert inspect(cirm, "m.cirm")["version"] == after


def test_rollback_can_write_to_another_file(cirm, updated):
    content = Path("m.cirm").read_bytes()
    words = ("rollback", "m.cirm", "--out", "back.cirm")
    status, out, _ = cirm(*words, "--json")
    assert status == 0
    assert json.loads(out)["left"] == inspect(cirm, "m.cirm")["version"]
    assert Path("m.cirm").read_bytes() == content
    assert len(inspect(cirm, "back.cirm")["history"]) == 1
    assert cirm(*words)[0] == 2  # it exists
    assert cirm(*words, "--overwrite")[0] == 0
    assert cirm("rollback", "m.cirm", "--out", "m.cirm", "--overwrite")[0] == 2


def test_no_version_is_kept_if_none_is_wanted(cirm, updated):
    words = ("update", "clinic-c.csv", "--model", "m.cirm", "--keep", "0")
    assert cirm(*words)[0] == 0
    assert inspect(cirm, "m.cirm")["earlier_versions"] == []
    status, _, error = cirm("rollback", "m.cirm")
    assert status == 2
    assert "The model file contains no earlier version" in error


def test_a_signed_model_stays_signed_after_a_rollback(cirm, updated):
    Path("key").write_text("0123456789abcdef")
    key = ("--key", "key")
    assert cirm(*FIT, "s.cirm", *QUICK, *key)[0] == 0
    assert cirm("update", "clinic-b.csv", "--model", "s.cirm", *key)[0] == 0
    status, _, error = cirm("rollback", "s.cirm")
    assert status == 2
    assert "is signed, but the file that replaces it would not be" in error
    assert cirm("rollback", "s.cirm", *key)[0] == 0
    assert cirm("inspect", "s.cirm", *key)[0] == 0


def test_diff_gives_the_answer_first(cirm, updated):
    status, out, _ = cirm("diff", "a.cirm", "m.cirm")
    assert status == 0
    first = out.splitlines()[0]
    assert first.startswith("The second model continues the first with clinic-b.")
    status, out, _ = cirm("diff", "m.cirm", "a.cirm")
    assert (
        "is an earlier version of the first, without clinic-b." in out.splitlines()[0]
    )
    status, out, _ = cirm("diff", "m.cirm", "m.cirm")
    assert out == "The two models are the same.\n"


def test_diff_recognises_an_adapted_model(cirm, updated):
    words = ("adapt", "clinic-c.csv", "--model", "m.cirm", "--out", "c.cirm")
    assert cirm(*words)[0] == 0
    _, out, _ = cirm("diff", "m.cirm", "c.cirm")
    assert out.startswith("The second model is the first, adapted to clinic-c.")
    _, out, _ = cirm("diff", "c.cirm", "m.cirm")
    told = "The second model is the first model as it was before it was adapted to"
    assert out.startswith(told)


def test_diff_names_settings_columns_importance_and_scores(cirm, updated):
    cirm(*FIT, "e.cirm", *QUICK, "--ignore", "age", "--seed", "3")
    content = json.loads(cirm("diff", "a.cirm", "e.cirm", "--json")[1])
    assert content["relation"] == "unrelated to"
    assert content["settings"]["learner"] == ["steady", "erm"]
    assert content["settings"]["seed"] == [0, 3]
    assert content["columns"]["age"][1] == "ignored, as requested"
    assert content["importance"]
    # The rows without the age are not the same, so their scores are not compared.
    assert content["environments"]["second"] == ["clinic-a"]
    _, out, _ = cirm("diff", "a.cirm", "e.cirm")
    assert "trained on different data from the start" in out.splitlines()[0]
    assert "setting learner" in out
    cirm(*FIT, "f.cirm", *QUICK)
    content = json.loads(cirm("diff", "a.cirm", "f.cirm", "--json")[1])
    assert content["answer"].startswith(
        "The two models were fitted separately, each on clinic-a."
    )
    (score,) = content["scores"]
    assert (score["environment"], score["metric"]) == ("clinic-a", "accuracy")


def test_models_fitted_in_the_same_second_are_separate(cirm, updated, monkeypatch):
    now = "2026-01-01T00:00:00+00:00"
    monkeypatch.setattr("cirm.model.fit.format_current_time", lambda: now)
    for name, seed in (("g.cirm", "1"), ("h.cirm", "2")):
        cirm(*FIT, name, *QUICK, "--seed", seed)
    content = json.loads(cirm("diff", "g.cirm", "h.cirm", "--json")[1])
    assert content["relation"] == "unrelated to"
    assert json.loads(cirm("diff", "g.cirm", "g.cirm", "--json")[1])["relation"] == (
        "same"
    )


def test_inspect_lists_settings_of_training_only_where_a_network_is_trained(
    cirm, updated
):
    cirm(*FIT, "e.cirm", *QUICK)
    table, network = (cirm("inspect", name)[1] for name in ("a.cirm", "e.cirm"))
    for words in ("Network:", "epochs="):
        assert words not in table
        assert words in network


def test_diff_names_a_column_that_only_one_model_calls_unstable(cirm, files, clinic):
    for name, agreement, seed in (("x", 0.95, 0), ("y", 0.2, 1)):
        clinic(1000, agreement, seed).to_csv(files / f"{name}.csv", index=False)
    paths = [str(files / name) for name in ("x.csv", "y.csv", "m.cirm", "n.cirm")]
    assert cirm("fit", paths[0], "--target", "outcome", "--model", paths[2])[0] == 0
    words = ("update", paths[1], "--model", paths[2], "--out", paths[3])
    assert cirm(*words)[0] == 0
    _, out, _ = cirm("diff", *paths[2:])
    assert "Only the second model treats `scanner` as unstable." in out.splitlines()[0]
