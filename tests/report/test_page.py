import re
from html.parser import HTMLParser

import pytest

from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord
from cirm.report import (
    PageSection,
    PngPicture,
    ReportCell,
    ReportTable,
    build_run_page,
    render_html_page,
    summarise_records,
)
from cirm.report.page import render_html_paragraph, render_notes_as_list
from cirm.report.text import write_headline_of_run

HEADINGS = [
    "Results",
    "Example images",
    "Scores across unseen environments",
    "Scores after each stage",
    "Training scores and unseen scores",
    "Further measures",
    "Training curves",
    "Data kept from earlier environments",
    "Settings, and the command that repeats this run",
]


class Reader(HTMLParser):
    """The tags, the text and the addresses of a page; tags must be balanced."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.addresses, self.unclosed = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("img", "meta"):
            self.unclosed.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def scores(learner, train, test, metric="accuracy", seeds=2):
    return [
        ScoreRecord(learner, "joint", seed, 0, split, split, metric, value + seed)
        for split, value in (("train", train), ("test", test))
        if value is not None
        for seed in range(seeds)
    ]


def write(*rows, chance=50.0):
    text = write_headline_of_run(
        summarise_records([score for row in rows for score in row]), chance
    )
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_of_a_run_has_all_sections_and_needs_nothing_else(records, png):
    text = build_run_page(
        records,
        "A run",
        "cirm run",
        ["A note."],
        [PngPicture(png, "Dots.")],
        chance=50.0,
    )
    reader = Reader(text)
    assert not reader.unclosed
    assert re.findall("<h2>(.*?)</h2>", text) == HEADINGS
    assert {address.split(",")[0] for address in reader.addresses} == {
        "data:image/png;base64"
    }
    assert "url(" not in text
    assert "@import" not in text
    assert reader.tags.count("script") == 1  # which sorts the table of 13 learners
    assert {"A note.", "Dots."} <= set(reader.texts)


def test_sections_without_records_are_left_out():
    rows = scores("erm", 80.0, None, seeds=1)
    text = build_run_page(rows, "A run", chance=50.0)
    assert re.findall("<h2>(.*?)</h2>", text) == [HEADINGS[0], HEADINGS[-1]]
    assert "No unseen environment was scored" in text
    assert "unseen accuracy" not in text


def test_a_report_of_nothing_is_refused():
    with pytest.raises(ValueError, match="records of 'A run' contain no scores"):
        build_run_page([], "A run")


def test_everything_from_outside_stays_text():
    bad = "<script>alert(1)</script>"
    rows = [
        ScoreRecord(bad, bad, seed, stage, bad + split, split, "accuracy", 50.0, place)
        for seed in (0, 1)
        for stage in (0, 1)
        for split, place in (("train", None), ("test", None), ("sweep", 0.5))
    ]
    memory = {bad: {"examples": 1, "parameters": 1, "bytes": 1}}
    rows.append(RunRecord(bad, bad, (0, 1), {bad: bad}, {bad: bad}, bad, memory))
    reader = Reader(build_run_page(rows, bad, bad, [bad], chance=50.0, axis=bad))
    assert "script" not in reader.tags
    assert reader.texts.count(bad) > 5


def test_plain_text_in_a_section_is_escaped_and_markup_is_not():
    rows = [["a", ReportCell("<i>", verdict="match", marked=False)]]
    table = ReportTable("", ["name", "value"], rows)
    text = render_html_page("T", "<lead>", [PageSection("H & H", ["<plain>", table])])
    assert "<p>&lt;plain&gt;</p>" in text
    assert "&lt;lead&gt;" in text
    assert "<h2>H &amp; H</h2>" in text
    assert '<td class="match number" title="match">&lt;i&gt;</td>' in text


def test_text_between_backticks_is_code_and_stays_escaped():
    assert (
        render_html_paragraph("Run `a <b>` now.")
        == "<p>Run <code>a &lt;b&gt;</code> now.</p>"
    )
    assert render_notes_as_list(["`a` and `b`"]) == (
        "<ul><li><code>a</code> and <code>b</code></li></ul>"
    )
    assert render_html_paragraph("a ` stray one") == "<p>a ` stray one</p>"


def test_a_picture_that_is_no_png_is_refused():
    with pytest.raises(
        ValueError, match=r"figure 'x' is not a PNG file: its first bytes"
    ):
        PngPicture(b"GIF89a", "x")


def test_the_headline_tells_of_a_learner_worse_than_guessing():
    text = write(scores("erm", 86.0, 12.0), scores("c-bvirm", 70.0, 29.0))
    assert text == (
        "erm has an accuracy of 86.5 % in the training environments and 12.5 % in the "
        "unseen environment, which is worse than chance (50 %). All 2 learners do "
        "worse than chance there; the best learner, c-bvirm, reaches 29.5 %."
    )


def test_the_headline_tells_of_one_who_only_guesses_and_of_the_ceiling():
    text = write(
        scores("irmv1", 85.0, 9.0),
        scores("c-virmv1", 51.0, 49.5),
        scores("erm on gray", 68.0, 65.5),
    )
    assert "One of 2 learners does worse than chance there; the best" in text
    assert "the best learner, c-virmv1, reaches 50.0 %, no better than chance." in text
    assert text.endswith("cannot see colour (erm on gray) reaches 66.0 %.")


def test_the_headline_does_not_find_failure_where_there_is_none():
    text = write(scores("erm", 86.0, 80.0), scores("irmv1", 85.0, 84.0))
    assert "which is worse than chance" not in text
    assert (
        "No learner does worse than chance there; the best learner, irmv1, reaches "
        "84.5 %" in text
    )
    assert write(scores("erm", 86.0, 80.0), scores("irmv1", 85.0, 70.0)).endswith(
        "No other learner does better there."
    )


def test_the_headline_of_a_regression_compares_errors():
    text = write(
        scores("erm", 0.5, 3.5, "error", seeds=1),
        scores("icp", 0.6, 0.7, "error", seeds=1),
        chance=None,
    )
    assert text == (
        "erm has a mean squared error of 0.500 in the training environments and 3.50 "
        "in the unseen environment. The best learner, icp, reaches 0.700."
    )


@pytest.mark.integration
def test_training_curves_are_named_in_words(records):
    names = {
        "kl": "KL divergence from the prior",
        "kl north": "KL divergence from the prior, north",
        "opposed": "conflicts with past gradients",
        "consensus": "consensus residual",
        "worst": "worst",
    }
    first = next(record for record in records if isinstance(record, ScoreRecord))
    where = first.learner, first.order, first.seed, 0
    curves = [
        TrainingCurveRecord(*where, step, name, step + 1.0)
        for name in names
        for step in range(3)
    ]
    text = build_run_page([*records, *curves], "A run", "cirm run")
    for name in names.values():
        assert f"{name} against training steps" in text
