import json
import shlex

import pytest

from cirm.cli.select import describe_trials_without_scores

QUICK = ["--source", "digits", "--examples", "100", "--sweep=", "--seeds", "1"]
QUICK += ["--set", "epochs=1", "--set", "hidden=4", "--workers", "1"]


@pytest.mark.integration
def test_a_search_leaves_a_summary_a_page_and_the_command_to_use(cirm, tmp_path):
    words = ["select", "irmv1", "colored", *QUICK, "--rule", "all", "--trials", 2]
    status, printed, _ = cirm(*words, "--out", tmp_path)
    assert status == 0
    found = json.loads((tmp_path / "summary.json").read_text())
    rules = ["held-out", "next", "worst-group", "leave-one-out", "oracle"]
    assert list(found["picks"]) == rules
    assert len(found["trials"]) == 2
    assert not any("revealed" in pick for pick in found["picks"].values())
    assert "oracle (sees the test environment)" in printed.replace("\n", " ")
    assert (
        "settings of irmv1 in 2 trials: 6 training jobs, 6 of them left to run."
        in printed
    )
    page = (tmp_path / "report.html").read_text()
    assert "oracle (sees the test environment)" in page
    assert "<script" not in page

    command = found["picks"]["next"]["command"]
    assert command in printed
    status, _, _ = cirm(
        *shlex.split(command)[1:], "--out", tmp_path / "used", "--workers", 1
    )
    assert status == 0

    status, printed, _ = cirm(*words, "--out", tmp_path)
    assert status == 0
    assert "6 training jobs, 0 of them left to run." in printed


@pytest.mark.integration
def test_revealed_scores_do_not_change_the_choice(cirm, tmp_path):
    words = ["select", "erm", *QUICK, "--rule", "held-out", "--trials", 2]
    words += ["--space", "rate=1e-4..1e-2:log", "--out", tmp_path]
    assert cirm(*words)[0] == 0
    before = json.loads((tmp_path / "summary.json").read_text())
    status, printed, _ = cirm(*words, "--reveal")
    assert status == 0
    assert "The settings are selected" in printed
    assert "unseen scores were not used for the choice" in printed
    after = json.loads((tmp_path / "summary.json").read_text())
    revealed = after["picks"]["held-out"].pop("revealed")
    assert after == before
    assert set(revealed) == {"train", "test"}
    assert 0 <= revealed["test"]["mean"] <= 100
    assert "not used for the choice" in (tmp_path / "report.html").read_text()


def test_arguments_may_come_in_any_order(cirm, tmp_path):
    words = ["--data", "dimension=4", "--trials", 1, "icp", "--seeds", 1, "scm"]
    words += ["--examples", 40, "--order", "joint", "--workers", 1, "--rule", "all"]
    status, printed, _ = cirm("select", *words, "--out", tmp_path)
    assert status == 0
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["dataset"] == {"name": "scm", "dimension": 4, "examples": 40}
    assert found["metric"] == "error"
    reason = "this rule needs two or more stages, but there is only 1"
    assert f"The selection rule next is not used: {reason}." in printed
    assert "next" not in found["picks"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["select"], "select: give a learner and, optionally, a data set"),
        (["select", "a", "b", "c"], "got a b c"),
        (["select", "nope"], "no learner 'nope'. Choose one of steady"),
        (["select", "erm", "nope"], "no dataset 'nope'. Choose one of colored, scm"),
        (
            ["select", "erm", "--rule", "best"],
            "There is no selection rule 'best'. Choose one of held-out",
        ),
        (
            ["select", "erm", "--space", "rate"],
            "--space: 'rate' cannot be read. Write the name",
        ),
        (
            ["select", "erm", "--hold-out", "1.5"],
            "--hold-out: 1.5 is not between 0 and 1. Give",
        ),
        (["select", "erm", "--colour"], "select: --colour has no value."),
        (
            ["select", "erm", "--colour", "x"],
            "data set colored: there is no setting 'colour'",
        ),
        (["select", "erm", "--set", "nope=1"], "learner erm has no setting 'nope'"),
        (
            ["select", "erm", "--preset", "nope"],
            "learner erm has no preset 'nope'. Choose one of paper",
        ),
        (
            ["select", "erm", "--order", "joint", "--rule", "next"],
            "--rule next: this rule needs two or more stages, but there is only 1. "
            "Choose",
        ),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(refused, words, message):
    refused(words, message)


def test_a_search_in_which_all_diverge_says_so(cirm, tmp_path):
    words = ["select", "erm", *QUICK, "--set", "rate=1e30", "--set", "optimiser=sgd"]
    words += ["--set", "epochs=40", "--space", "dropout=0|0.5", "--trials", 1]
    status, printed, _ = cirm(*words, "--out", tmp_path)
    assert status == 0
    assert "No settings can be selected: 1 trial diverged. Try" in printed
    assert json.loads((tmp_path / "summary.json").read_text())["picks"] == {}


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        (
            ["diverged", "diverged", "failed"],
            "No settings can be selected: 2 trials diverged and 1 trial failed. Try "
            "smaller values, for example --space rate=1e-5..1e-3:log. The reasons of "
            "the failures are listed below.",
        ),
        (
            ["not run"],
            "No settings can be selected: 1 trial did not run before the time was "
            "over. Run the same command again to continue.",
        ),
        (
            ["done"],
            "No settings can be selected: 1 trial gave scores that are NaN or "
            "infinite. Try smaller values, for example --space rate=1e-5..1e-3:log.",
        ),
    ],
)
def test_a_search_without_a_choice_says_what_became_of_the_trials(states, sentence):
    summary = {"trials": [{"state": state} for state in states]}
    assert describe_trials_without_scores(summary) == sentence


@pytest.mark.integration
def test_a_run_prints_diagnostics_unless_they_are_switched_off(cirm, tmp_path):
    words = ["run", *QUICK, "--learner", "erm", "--out", tmp_path]
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "Diagnostics, without the unseen environments" in printed
    assert "Measured on new examples" in printed
    found = json.loads((tmp_path / "summary.json").read_text())["diagnostics"]
    assert found["erm"]["seeds"] == 1
    assert "Can the models be trusted?" in (tmp_path / "report.html").read_text()

    status, printed, _ = cirm(*words, "--no-diagnostics")
    assert status == 0
    assert "Diagnostics" not in printed
    assert "Can the models be trusted?" not in (tmp_path / "report.html").read_text()
