import json
from html import unescape
from importlib.metadata import EntryPoint

import pytest

from cirm import cli, registry
from cirm.records import read_records

QUICK = ["--source", "digits", "--examples", "100", "--set", "epochs=2"]


@pytest.mark.integration
def test_a_run_leaves_records_a_summary_and_a_page(cirm, tmp_path):
    out = str(tmp_path / "r")
    words = ["run", *QUICK, "--learner", "erm", "--learner", "irmv1", "--seeds", "2"]
    status, printed, _ = cirm(*words, "--ceiling", "--workers", "1", "--out", out)
    assert status == 0
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert list(summary["learners"]) == ["erm", "irmv1", "erm on gray"]
    entry = summary["learners"]["erm"]
    assert entry["settings"]["epochs"] == 2
    assert "epochs=2" in entry["selection"]
    assert entry["train"]["seeds"] == 2
    rows = [
        r.value
        for r in read_records(tmp_path / "r" / "records.jsonl")
        if r.kind == "score" and (r.learner, r.split, r.stage) == ("erm", "train", 1)
    ]
    assert entry["train"]["mean"] == pytest.approx(sum(rows) / len(rows))
    assert "<script src" not in (tmp_path / "r" / "report.html").read_text()
    assert "erm on gray" in printed

    status, printed, _ = cirm(*words, "--ceiling", "--workers", "1", "--out", out)
    assert status == 0
    assert "All 3 jobs have finished already; nothing to run." in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--learner", "nope"], "no learner 'nope'. Choose one of steady"),
        (["run", "--dataset", "nope"], "no dataset 'nope'. Choose one of colored, scm"),
        (["run", "--set", "epochs"], "--set: 'epochs' has no value. Write name=value"),
        (["run", "--set", "nope=1"], "learner erm has no setting 'nope'"),
        (["run", "--set", "epochs=x"], "epochs is 'x'. Use a whole number."),
        (["run", "--colour", "red"], "data set colored: there is no setting 'colour'"),
        (
            ["run", "stray"],
            "run: unexpected argument 'stray'. Give settings of the",
        ),
        (
            ["run", "--order", "3+4"],
            "The order '3+4' does not fit",
        ),
        (
            ["run", "--preset", "nope"],
            "learner erm has no preset 'nope'. Choose one of paper",
        ),
        (["run", "--infer", "nope"], "no inference 'nope'. Choose one of eiil"),
        (["run", "--engine", "cloud"], "no engine 'cloud'. Choose one of local, ray"),
        (
            ["run", "--address", "h:1"],
            "--address is 'h:1', but the engine local runs",
        ),
        (["list", "nope"], "list: there is nothing called 'nope' to list"),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(refused, words, message):
    refused(words, message)


def test_debug_shows_the_traceback(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cirm", "--debug", "run", "--learner", "nope"])
    with pytest.raises(ValueError, match="There is no learner"):
        cli.main()


@pytest.mark.integration
def test_an_interrupted_run_continues(cirm, tmp_path, interrupt):
    """A real interrupt, after the first learner is done."""
    out = tmp_path / "r"
    words = ["run", "--source", "digits", "--examples", "50", "--seeds", "1"]
    words += ["--learner", "erm", "--learner", "irmv1", "--workers", "1"]
    words += ["--set", "epochs=300", "--set", "hidden=4", "--out", str(out)]
    interrupt(lambda: list(out.glob("jobs/*.jsonl")))
    status, _, error = cirm(*words)
    assert status == 130
    assert (
        f"interrupted. 1 of 2 jobs are finished and kept in {out}. Run the same"
        in error
    )
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "Continuing: 1 of 2 jobs have finished." in printed


def test_errors_of_known_coefficients_are_shown(cirm, tmp_path):
    words = ["run", "--dataset", "scm", "--examples", "50", "--learner", "icp"]
    words += ["--order", "joint", "--seeds", "2", "--out", str(tmp_path)]
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "Squared error of the coefficients" in printed
    assert "noncausal" in printed


def test_tensorboard_gets_the_training_curves(cirm, tmp_path):
    pytest.importorskip("tensorboard")
    words = ["run", *QUICK, "--seeds", "1", "--out", str(tmp_path / "r")]
    board = tmp_path / "board"
    status, _, _ = cirm(*words, "--tensorboard", str(board))
    assert status == 0
    (events,) = board.rglob("events*")
    assert events.stat().st_size > 200


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("learners", "c-bvirm"),
        ("datasets", "colored"),
        ("rules", "worst-group"),
        ("networks", "cnn"),
        ("inference", "eiil"),
    ],
)
def test_list_describes_the_choices(cirm, kind, name):
    status, printed, _ = cirm("list", kind)
    assert status == 0
    assert name in printed
    assert kind.capitalize() in printed


def test_list_names_the_package_that_offers_a_choice(cirm, monkeypatch):
    entry = EntryPoint("mean", "statistics:NormalDist", "cirm.learners")
    monkeypatch.setattr(registry, "list_entry_points", lambda group: [entry])
    status, printed, _ = cirm("list", "learners")
    assert status == 0
    line = next(line for line in printed.splitlines() if line.split()[:1] == ["mean"])
    assert "Normal distribution of a random variable (from statistics)" in line


def test_a_learner_can_be_given_by_its_import_path(cirm, tmp_path):
    path = "cirm.learners.vrex:VREx"
    status, printed, error = cirm(
        "run", *QUICK, "--learner", path, "--seeds", 1, "--out", tmp_path / "r",
        "--set", "network=linear", "--no-diagnostics",
    )  # fmt: skip
    assert status == 0, error
    assert path in printed


def test_list_shows_the_settings_and_presets_of_a_learner(cirm):
    status, printed, _ = cirm("list", "learners", "irmv1")
    assert status == 0
    assert "anneal" in printed
    assert "91257" in printed


@pytest.mark.integration
def test_the_demo_does_not_credit_our_learner_with_values_of_the_paper(
    cirm, tmp_path, monkeypatch
):
    monkeypatch.setattr("cirm.cli.demo.LEARNERS", ("steady", "erm"))
    monkeypatch.setitem(cli.demo.DATA, "examples", "200")
    out = tmp_path / "demo"
    words = ["demo", "--seeds", "1", "--workers", "1", "--out", str(out)]
    assert cirm(*words)[0] == 0
    learners = json.loads((out / "summary.json").read_text())["learners"]
    own = "library defaults"
    assert learners["steady"]["selection"] == own
    assert learners["erm"]["selection"].startswith("the paper's values")
    page = unescape((out / "report.html").read_text())
    assert f"Settings: {own} (steady); the paper's values" in page
