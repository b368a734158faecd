"""The pages of `cirm inspect`, `evaluate` and `adapt`: answer, figures, tables."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cirm import fit, save, update
from cirm.report.model_answer import describe_what_model_relies_on
from cirm.report.model_page import build_model_page
from cirm.report.model_plots import compute_percentage_interval
from cirm.report.model_tables import build_model_memory_table


def read_lead(page):
    """The first paragraph of a page, as text."""
    lead = re.search('<p class="lead">(.*?)</p>', page)[1]
    return unescape(re.sub("<[^>]*>", "", lead))


def list_headings(page):
    return re.findall("<h2>(.*?)</h2>", page)


def list_figures(page):
    """What each figure says to those who cannot see it; twice if it has two sizes."""
    labels = re.findall('<svg[^>]*role="img" aria-label="([^"]*)"', page)
    assert len(labels) == page.count("<svg")
    return [unescape(label) for label in labels]


@pytest.fixture(scope="module")
def clinics(tmp_path_factory):
    """Three clinics; what the scanner means differs between them."""
    folder = tmp_path_factory.mktemp("clinics")
    for name, agreement, seed in (("a", 0.9, 0), ("b", 0.7, 1), ("c", 0.2, 2)):
        rng = np.random.default_rng(seed)
        ill = rng.random(800) < 0.5
        agrees = rng.random(800) < agreement
        frame = pd.DataFrame(
            {
                "marker": rng.normal(size=800) + 1.2 * ill,
                "crp": rng.normal(size=800) + 1.0 * ill,
                "age": rng.normal(50, 10, 800),
                "scanner": np.where(ill == agrees, "new", "old"),
                "outcome": np.where(ill, "ill", "well"),
            }
        )
        frame.to_csv(folder / f"clinic-{name}.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def trained(clinics):
    """A model that learned from clinic a, then from clinic b."""
    model = fit(clinics / "clinic-a.csv", "outcome")
    save(update(model, clinics / "clinic-b.csv"), clinics / "triage.cirm")
    return clinics


@pytest.fixture
def model(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return "triage.cirm"


def test_inspect_says_first_what_the_model_relies_on(cirm, model):
    assert cirm("inspect", model, "--report", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert read_lead(page) == (
        "Relies on marker and crp; scanner is ignored because its meaning differs "
        "between places."
    )
    importance, again, scores, _ = list_figures(page)
    assert importance == again and importance.startswith("Importance of columns")
    assert re.search("marker [45]. %, crp [345]. %, .*scanner 0 %", importance)
    assert re.search("accuracy, % by place: clinic-a .* %, clinic-b .* %", scores)
    assert re.search(r"<title>scanner: \d\d\.\d % after clinic-a</title>", page)
    assert re.search(
        r"clinic-b, before training there: .* \(95 % interval .* 800 rows\)", page
    )


def test_figures_come_before_tables_and_internals_are_folded(cirm, model):
    assert cirm("inspect", model, "--report", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert list_headings(page) == [
        "What the predictions rely on",
        "Scores by place",
        "What differs between places",
        "Places",
        "Details",
    ]
    folded = "".join(re.findall("<details>.*?</details>", page, re.S))
    assert page.index("<svg") < page.index("<table")
    for internal in (
        "Diagnostics",
        "names of categories",
        "number (mean",
        "level",
    ):
        assert internal in folded
        assert internal not in page.replace(folded, "").partition("<h2>Details")[0]
    assert "<details open" not in page


def test_evaluate_says_the_verdict_first_and_shows_it(cirm, model):
    words = ["evaluate", "clinic-c.csv", "--model", model, "--json"]
    status, printed, _ = cirm(*words, "--report", "page.html")
    assert status == 0
    content, page = json.loads(printed), Path("page.html").read_text()
    verdict = content["verdict"].replace("`", "")
    first, _, rest = verdict.partition(". ")
    assert read_lead(page) == f"{first[0].upper()}{first[1:]}."
    text = re.sub("</?code>", "", unescape(page))
    assert text.count(rest.rstrip(".")) == 1
    scores, _, confusion, calibration, _ = list_figures(page)
    assert page.rindex("<svg") < page.index("<table", page.index("All comparisons"))
    assert scores.startswith("accuracy, % by place: clinic-c ")
    percent = content["confusion"]["percent"][0][0]
    assert f"ill predicted as ill {percent:.0f}" in confusion
    one = content["reliability"][-1]
    assert f"{one['confidence']:.0f} {one['accuracy']:.0f}" in calibration
    low, high = compute_percentage_interval(content["overall"]["accuracy"], 800)
    assert f"accuracy (95 % interval {low:.1f} to {high:.1f})" in page
    headings = list_headings(page)
    assert headings[:3] == [
        "Scores by place",
        "Which classes are confused with which",
        "Calibration",
    ]
    for line in (one["line"].replace("`", "") for one in content["comparisons"]):
        assert f"{line[0].upper()}{line[1:]}." in text
    assert "here, significantly worse" not in page  # as the verdict says


def test_the_figure_marks_a_place_as_worse_if_the_verdict_does(cirm, clinics):
    settings = {"epochs": 20, "hidden": (8,), "rate": 0.02}
    model = fit(clinics / "clinic-a.csv", "outcome", learner="erm", settings=settings)
    save(update(model, clinics / "clinic-b.csv"), clinics / "plain.cirm")
    words = ["evaluate", clinics / "clinic-c.csv", "--model", clinics / "plain.cirm"]
    assert cirm(*map(str, words), "--report", str(clinics / "plain.html"))[0] == 0
    page = (clinics / "plain.html").read_text()
    assert read_lead(page).startswith("Significantly worse than expected: accuracy")
    assert "here, significantly worse" in page


def test_the_number_beside_a_known_place_is_its_score_here(cirm, model):
    words = ["evaluate", "clinic-b.csv", "--model", model, "--json"]
    status, printed, _ = cirm(*words, "--report", "page.html")
    assert status == 0
    score = json.loads(printed)["overall"]["accuracy"]
    figure = list_figures(Path("page.html").read_text())[0]
    assert figure == f"accuracy, % by place: clinic-b {score:.3g} %"


def test_a_model_without_arrivals_is_compared_with_held_out_rows(cirm, model):
    words = ["--target", "outcome", "--model", "first.cirm"]
    assert cirm("fit", "clinic-a.csv", *words)[0] == 0
    words = ["evaluate", "clinic-b.csv", "--model", "first.cirm"]
    assert cirm(*words, "--report", "page.html")[0] == 0
    assert "held-out rows of the training places" in Path("page.html").read_text()


def test_adapt_shows_what_was_learned_anew(cirm, model):
    words = ["adapt", "clinic-c.csv", "--model", model, "--out", "c.cirm"]
    assert cirm(*words, "--report", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert read_lead(page) == (
        "Adapted to clinic-c with 800 rows without targets. Relies on marker and crp; "
        "scanner is used with the meaning learned at clinic-c."
    )
    effects, *_ = list_figures(page)
    assert re.fullmatch(
        r"Effects estimated again for this place: scanner \d\.\d+", effects
    )
    assert "factor by which the odds change" in page
    assert re.search(r"<title>scanner: [\d.]+ here \([\d.]+ to [\d.]+\)</title>", page)
    assert "% before adapting." in page and "% now" not in page


def test_pages_of_a_regression(cirm, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 1)):
        values(120, seed).to_csv(f"{name}.csv", index=False)
    assert cirm("fit", "a.csv", "--target", "y", "--model", "m.cirm")[0] == 0
    assert cirm("inspect", "m.cirm", "--report", "inspect.html")[0] == 0
    words = ["evaluate", "b.csv", "--model", "m.cirm", "--report", "evaluate.html"]
    assert cirm(*words)[0] == 0
    page = Path("evaluate.html").read_text()
    assert [label.partition(":")[0] for label in list_figures(page)] == [
        "root mean squared error by place"
    ] * 2
    assert "root mean squared error (95 % interval " in page
    assert read_lead(Path("inspect.html").read_text()).startswith("Relies on dose")


def test_many_columns_and_places_are_shown_in_part_and_can_be_sorted(
    cirm, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(360, 20))
    frame = pd.DataFrame(inputs, columns=[f"lab {n:02d}" for n in range(20)])
    frame["site"] = [f"s{n % 12:02d}" for n in range(360)]
    frame["y"] = np.where(inputs[:, 0] + rng.normal(size=360) > 0, "a", "b")
    frame.to_csv("t.csv", index=False)
    words = ["--target", "y", "--environment", "site", "--model", "m.cirm"]
    words += ["--learner", "erm", "--set", "epochs=1", "--set", "hidden=4"]
    assert cirm("fit", "t.csv", *words)[0] == 0
    assert cirm("inspect", "m.cirm", "--report", "page.html")[0] == 0
    page = Path("page.html").read_text()
    importance, _, scores, _ = list_figures(page)
    assert importance.count("lab ") == 15 and scores.count("s0") == 10
    assert "The table below also has 5 less important columns." in page
    # All places were learned together, so there is nothing from before.
    assert "after s00" not in page and "before the model was trained" not in page
    assert page.count("data-sorted") > 2  # tables, and the script that sorts them
    assert "is unknown, because the learner erm does not test it." in read_lead(page)


def test_a_model_of_arrays_has_no_columns_and_a_page(cirm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("a.npz", X=rng.normal(size=(40, 1, 4, 4)), y=np.arange(40) % 2)
    words = ["--model", "m.cirm", "--learner", "erm", "--set", "epochs=1"]
    assert cirm("fit", "a.npz", *words)[0] == 0
    assert cirm("inspect", "m.cirm", "--report", "page.html")[0] == 0
    page = Path("page.html").read_text()
    assert read_lead(page).startswith("A classification model for target, trained with")
    assert list_headings(page) == ["Scores by place", "Places", "Details"]


def describe(importance, unstable=(), effects=(), verdict=""):
    explanation = {"unstable": [{"feature": name} for name in unstable]}
    if verdict:
        explanation["verdict"] = verdict
    adaptation = {"name": "c", "effects": [{"feature": name} for name in effects]}
    return {
        "importance": importance,
        "explanation": explanation if unstable or verdict else {},
        "adaptation": adaptation if effects else None,
        "learner": "erm",
    }


ANSWERS = [
    (
        {"importance": {"a": 6, "b": 3.9, "u": 0.1}, "unstable": ["u"]},
        "Relies on `a` and `b`; `u` is ignored because its meaning differs between "
        "places.",
    ),
    (
        {"importance": {"a": 6, "u": 2, "v": 2}, "unstable": ["u", "v"]},
        "Relies on `a`, `u` and `v`; `u` and `v` are used with their mean effect "
        "although their meaning differs between places.",
    ),
    (
        {"importance": {"a": 9, "u": 0, "v": 0}, "unstable": "uv", "effects": "u"},
        "Relies on `a`; `u` is used with the meaning learned at c; `v` is ignored "
        "because its meaning differs between places.",
    ),
    (
        {"importance": dict.fromkeys("abcdef", 1), "verdict": "No column differs"},
        "Relies on `a`, `b`, `c`, `d` and 2 more. No column differs.",
    ),
    ({"importance": {}}, ""),
    ({"importance": {"a": 0.0}}, ""),
]


@pytest.mark.parametrize(("content", "answer"), ANSWERS)
def test_the_answer_is_one_sentence_on_columns(content, answer):
    assert describe_what_model_relies_on(describe(**content)) == answer


def test_names_from_outside_stay_text(cirm, model):
    content = json.loads(cirm("inspect", model, "--json")[1])
    bad = "<script>alert(1)</script>"
    text = json.dumps(content).replace("marker", bad).replace("clinic-a", bad)
    page = build_model_page(json.loads(text))
    assert "<script>alert" not in page
    assert bad in unescape(page)


def test_wilson_intervals_have_their_closed_form():
    low, high = compute_percentage_interval(0.0, 10)
    square = 1.959964**2
    assert low == 0
    assert high == pytest.approx(100 * square / (10 + square))
    assert compute_percentage_interval(100.0, 10) == pytest.approx((100 - high, 100))
    low, high = compute_percentage_interval(50.0, 400)
    assert (low + high) / 2 == pytest.approx(50)


def test_the_state_of_a_learner_is_one_row_of_the_memory():
    counts = {"examples": 3, "parameters": 10, "bytes": 40}
    memory = {
        "basis": {**counts, "examples": 0},
        "memory": counts,
        "columns": {**counts, "examples": 0, "names": 2},
    }
    table = build_model_memory_table({"memory": memory})
    assert [list(map(str, row)) for row in table.rows] == [
        ["state of the learner", "3", "20", "0", "80 bytes"],
        ["treatment of columns", "0", "10", "2", "40 bytes"],
    ]
