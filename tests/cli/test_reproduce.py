import json
import shutil
import sys
from dataclasses import replace

import pytest

from cirm.cli.reproduce import NAMES
from cirm.paper import EXPERIMENTS
from cirm.paper.experiment import (
    ExperimentRow,
    ExperimentTrial,
    PaperExperiment,
    PaperTableCell,
    PaperTableLayout,
    PaperTableLineLayout,
    PublishedValue,
)

DATA = {"source": "digits", "environments": 2, "examples": 60, "sweep": (0.1, 0.9)}
KEYS = {
    *("row", "learner", "split", "metric", "seeds", "mean", "std", "paper"),
    *("verdict", "selection", "seconds"),
}


def trial(label, learner="erm", data=DATA, **settings):
    quick = {"epochs": 2, "hidden": (8,), **settings}
    order = "joint" if "kept" in label else "sequential"
    return ExperimentTrial(
        label, learner, "colored", data, order, "by hand", settings=quick
    )


def small(name, rows):
    """An experiment of the built-in digits that takes a second."""
    made = []
    for row, trials in rows.items():
        labels = [t.label for t in trials]
        wanted = [
            PaperTableCell(n, "test", "accuracy", PublishedValue(50.0, 50.0))
            for n in labels
        ]
        made.append(ExperimentRow(row, f"Digits, {row}", tuple(trials), tuple(wanted)))
    lines = [
        PaperTableLineLayout(
            (r.name,), tuple((r.name, t.label, "test") for t in made[0].trials)
        )
        for r in made
    ]
    columns = tuple((t.label,) for t in made[0].trials)
    layout = PaperTableLayout("Test accuracy, %", ("",), columns, tuple(lines))
    return PaperExperiment(
        name, f"{name}, small", 2, tuple(made), (layout,), 50.0, "flip"
    )


@pytest.fixture
def paper(monkeypatch):
    """The paper's experiments in small: two tables that share a row."""
    same = [trial("erm"), trial("irmv1", "irmv1")]
    more = [trial("erm", data={**DATA, "environments": 3}), *same[1:]]
    tables = {
        "table1": small("table1", {"digits": same}),
        "table2": small("table2", {"n=2": same, "n=3": more}),
    }
    for name in list(EXPERIMENTS):
        if name in tables:
            monkeypatch.setitem(EXPERIMENTS, name, tables[name])
        else:
            monkeypatch.delitem(EXPERIMENTS, name)
    return tables


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def numbers(folder):
    return [(c["row"], c["learner"], c["mean"]) for c in summary(folder)["cells"]]


@pytest.mark.integration
def test_a_reproduction_leaves_a_summary_tables_and_a_page_and_continues(
    cirm, tmp_path, paper
):
    out = tmp_path / "r"
    words = ["reproduce", "table1", "--workers", 1, "--out", out]
    status, printed, _ = cirm(*words, "--seeds", 1)
    assert status == 0
    assert "table1: 2 jobs, 1 seed." in printed
    made = summary(out)
    assert made["experiment"] == "table1"
    assert len(made["claims"]) == 4
    assert [c["seeds"] for c in made["cells"]] == [1, 1]
    assert all(set(cell) == KEYS for cell in made["cells"])
    for name in ("tables.md", "tables.tex", "report.html", "records.json"):
        assert (out / name).stat().st_size > 200
    assert (out / "sweep-digits-digits.svg").exists()
    page = (out / "report.html").read_text()
    assert "data:image/png;base64" in page

    status, printed, _ = cirm(*words)
    assert "table1: continuing; 2 of 4 jobs have finished." in printed
    assert [c["seeds"] for c in summary(out)["cells"]] == [2, 2]

    before = numbers(out)
    shutil.rmtree(out / "jobs")  # as in a clone, where only records.json is kept
    status, printed, _ = cirm(*words)
    assert "all 4 jobs have finished already; nothing to run" in printed
    assert numbers(out) == before
    assert not (out / "jobs").exists()


@pytest.mark.integration
def test_learners_may_be_run_one_after_another(cirm, tmp_path, paper):
    words = ["reproduce", "table1", "--workers", 1, "--seeds", 1, "--out", tmp_path]
    cirm(*words, "--learner", "irmv1")
    assert [c["learner"] for c in summary(tmp_path)["cells"]] == ["irmv1"]
    cirm(*words, "--learner", "erm")
    assert [c["learner"] for c in summary(tmp_path)["cells"]] == ["erm", "irmv1"]


@pytest.mark.integration
def test_tables_take_turns_within_a_budget_and_end_with_the_same_numbers(
    cirm, tmp_path, paper
):
    words = ["reproduce", "all", "--workers", 1, "--seeds", 2, "--out"]
    status, printed, error = cirm(*words, tmp_path / "turns", "--budget", "1h")
    assert status == 0
    assert printed.index("table1: 4 jobs") < printed.index("table2: continuing; 2 of 6")
    assert "is spent" not in error
    assert cirm(*words, tmp_path / "whole")[0] == 0
    for name in ("table1", "table2"):
        assert numbers(tmp_path / "turns" / name) == numbers(tmp_path / "whole" / name)


def test_the_same_command_continues_if_the_budget_ended_before_any_job(
    cirm, tmp_path, paper
):
    words = ("reproduce", "table1", "--workers", 1, "--seeds", 1, "--out", tmp_path)
    for _ in range(2):
        status, _, errors = cirm(*words, "--budget", "0.001s")
        assert status == 0
        assert "budget" in errors and "have not run" in errors
    assert cirm(*words)[0] == 0


@pytest.mark.integration
def test_all_tables_share_their_jobs_and_have_a_page_together(cirm, tmp_path, paper):
    status, printed, _ = cirm(
        "reproduce", "all", "--workers", 1, "--seeds", 1, "--out", tmp_path
    )
    assert status == 0
    assert "table2: continuing; 2 of 3 jobs have finished." in printed
    assert len(list((tmp_path / "table2" / "jobs").iterdir())) == 1
    first = [n for n in numbers(tmp_path / "table2") if n[0] == "n=2"]
    assert [n[1:] for n in first] == [n[1:] for n in numbers(tmp_path / "table1")]
    together = summary(tmp_path)
    assert [c["experiment"] for c in together["cells"]] == ["table1"] * 2 + [
        "table2"
    ] * 4
    page = (tmp_path / "report.html").read_text()
    assert "<h2>table1, small</h2>" in page
    assert (tmp_path / "figures" / "report.html").exists()
    again = ("reproduce", "all", "--learner", "irmv1", "--workers", 1, "--seeds", 1)
    assert cirm(*again, "--out", tmp_path)[0] == 0


def test_a_failed_job_is_listed_and_the_others_are_kept(
    cirm, monkeypatch, tmp_path, paper
):
    bad = trial("irmv1", "irmv1", rate=1e30, optimiser="sgd")
    row = replace(paper["table1"].rows[0], trials=(trial("erm"), bad))
    broken = replace(paper["table1"], rows=(row,))
    monkeypatch.setitem(EXPERIMENTS, "table1", broken)
    status, _, errors = cirm(
        "reproduce", "table1", "--workers", 1, "--seeds", 1, "--out", tmp_path
    )
    assert status == 1
    assert "failed: irmv1 (digits n=2, seed 0): learner irmv1, stage 0" in errors
    good, lost = summary(tmp_path)["cells"]
    assert good["verdict"] == "match"
    assert lost["verdict"] == "no-data"
    assert "training diverged" in lost["note"]


def test_a_data_set_that_is_not_there_leaves_its_cells_without_data(cirm, tmp_path):
    status, _, errors = cirm("reproduce", "table1", "--out", tmp_path)
    assert status == 0
    assert errors.count("cirm data import mnist FOLDER") == 1
    cells = [c for c in summary(tmp_path)["cells"] if c["learner"] != "chance"]
    assert {c["verdict"] for c in cells} == {"no-data"}
    assert all("cirm data fetch mnist" in c["note"] for c in cells)
    assert "None of the paper" in (tmp_path / "report.html").read_text()


def test_figures_are_files_and_a_page(cirm, tmp_path, paper):
    status, _, _ = cirm("reproduce", "figures", "--out", tmp_path)
    assert status == 0
    assert (tmp_path / "samples-digits.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "data:image/png;base64" in page
    assert "9 projections in turn onto the sets P1, P2, P3" in page
    assert len(list(tmp_path.glob("projection-*.svg"))) == 3
    assert (tmp_path / "samples-digits-irmg.png").read_bytes().startswith(b"\x89PNG")
    graph = (tmp_path / "causal-graph.svg").read_text()
    assert all(word in graph for word in ("digit", "colour", "image", "environment"))


@pytest.mark.integration
def test_theory_is_measured_drawn_and_recorded(cirm, tmp_path):
    status, _, error = cirm("reproduce", "theory", "--out", tmp_path)
    assert status == 0, error
    found = json.loads((tmp_path / "theory.json").read_text())
    assert [curve["label"] for curve in found["admm"]] == ["convex", "strongly convex"]
    counts = found["environments"]["birm"]
    assert counts[0]["violations"] and not counts[-1]["violations"]
    for name in ("admm-rate.svg", "environments.svg", "report.html"):
        assert (tmp_path / name).is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table6"], "there is no experiment 'table6'. Use one of table1"),
        (
            ["table1", "--engine", "cloud"],
            "no engine 'cloud'. Choose one of local, ray",
        ),
        (
            ["table1", "--address", "h:1"],
            "--address is 'h:1', but the engine local runs",
        ),
        (
            ["table1", "--learner", "nope"],
            "table1 has no learner 'nope'. Choose one of c-bvirm; c-virmg",
        ),
        (["all", "--learner", "nope"], "uses the learner 'nope'. Use one of birm; "),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(refused, words, message):
    refused(["reproduce", *words], message)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_reproduction_continues(
    cirm, monkeypatch, tmp_path, paper, interrupt
):
    """A real interrupt, after the first learner is done."""
    long = trial("irmv1", "irmv1", epochs=500)
    row = replace(paper["table1"].rows[0], trials=(trial("erm"), long))
    monkeypatch.setitem(EXPERIMENTS, "table1", replace(paper["table1"], rows=(row,)))
    words = ["reproduce", "table1", "--workers", 1, "--seeds", 1, "--out", tmp_path]
    interrupt(lambda: list(tmp_path.glob("jobs/*.jsonl")))
    status, _, error = cirm(*words)
    assert status == 130
    assert (
        f"interrupted. 1 of 2 jobs are finished and kept in {tmp_path}. Run the same"
        in error
    )
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "table1: continuing; 1 of 2 jobs have finished." in printed


@pytest.fixture
def recorded(cirm, tmp_path, paper):
    """A folder with the results of a small table."""
    folder = tmp_path / "results" / "table1"
    words = ["reproduce", "table1", "--workers", 1, "--seeds", 1, "--out", folder]
    cirm(*words)
    return folder


def test_a_report_is_written_from_records_alone(cirm, tmp_path, recorded):
    mean = summary(recorded)["cells"][0]["mean"]
    shutil.rmtree(recorded / "jobs")
    for name in ("md", "tex", "html"):
        out = tmp_path / f"results.{name}"
        status, _, _ = cirm("report", recorded, "--out", out)
        assert status == 0
        assert f"{mean:.1f}" in out.read_text()
    text = (tmp_path / "results.md").read_text()
    assert "    cirm reproduce table1 --seeds 1\n" in text
    assert "](results/table1/sweep-digits-digits.svg)" in text
    assert "Made by `cirm report " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: there is no file records.json in this folder"),
        (
            ["x", "--out", "r.pdf"],
            "--out: 'r.pdf' does not have a known file extension",
        ),
    ],
)
def test_a_report_of_nothing_is_refused(refused, words, message):
    refused(["report", *words], message)


def test_every_experiment_can_be_asked_for_by_name():
    assert {*NAMES} - {"figures", "theory", "all"} == {*EXPERIMENTS}
