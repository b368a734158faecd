import pytest

from cirm.records import Run, Score
from cirm.report import markdown, rows, summarise
from cirm.report.text import (
    format_bytes,
    format_mean,
    format_seconds,
    format_statistic,
    join_words,
)

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def summary(learner="erm", selection="preset", metric="accuracy", values=(10.0, 12.0)):
    scores = [
        Score(learner, "joint", seed, 0, "a", "train", metric, number)
        for seed, number in enumerate(values)
    ]
    return summarise([*scores, Run(learner, "joint", (0, 1), {}, {}, selection)])


def test_markdown_has_a_row_per_learner_with_its_spread():
    lines = markdown(summary()).splitlines()
    assert lines[0].startswith("| learner | training (accuracy, %) |")
    assert lines[1] == "| :-- | --: | --: | --: | :-- | --: |"
    assert lines[2] == f"| erm | 11.0 ± 1.4 | {DASH} | 2 | preset | 0.0 |"


def test_markdown_cells_cannot_break_the_table_or_hold_html():
    text = markdown(summary("a|b", "<script>\nx"))
    assert "| a\\|b |" in text
    assert "| &lt;script> x |" in text
    assert len(text.splitlines()) == 3


def test_rows_of_no_learner_are_only_headings():
    headings, body = rows({"learners": {}})
    assert headings[0] == "learner"
    assert body == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.000"),
        (0.25, "0.250"),
        (-0.25, f"{MINUS}0.250"),
        (3.14159, "3.14"),
        (31.4159, "31.4"),
        (31415.9, "31416"),
        (3.2e7, "3.20e+07"),
        (0.00012, f"1.20e{MINUS}04"),
    ],
)
def test_errors_show_three_digits(number, text):
    assert format_mean(number, "error") == text


def test_a_diverged_score_is_said_to_be_so():
    assert (
        format_statistic({"mean": None, "std": None, "seeds": 3}, "error")
        == "not finite"
    )


def test_quantities_read_like_words():
    assert [format_bytes(n) for n in (36, 1500, 2_400_000, 3e9)] == [
        "36 bytes",
        "1.5 kB",
        "2.4 MB",
        "3.0 GB",
    ]
    assert [format_seconds(s) for s in (None, 2.46, 1234.5)] == [DASH, "2.5", "1,234"]
    assert [join_words(list(w)) for w in ("", "a", "ab", "abc")] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
