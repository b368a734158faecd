import pytest

from cirm.records import RunRecord, ScoreRecord
from cirm.report import (
    build_run_results_table,
    render_table_as_markdown,
    summarise_records,
)
from cirm.report.text import (
    describe_settings_choices,
    format_bytes,
    format_mean_of_metric,
    format_seconds,
)
from cirm.wording import join_words

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def summary(learner="erm", selection="preset", metric="accuracy", values=(10.0, 12.0)):
    scores = [
        ScoreRecord(learner, "joint", seed, 0, "a", "train", metric, number)
        for seed, number in enumerate(values)
    ]
    run = RunRecord(learner, "joint", (0, 1), {}, {}, selection)
    return summarise_records([*scores, run])


def test_the_results_table_has_a_row_per_learner_with_its_spread_and_costs():
    lines = render_table_as_markdown(build_run_results_table(summary())).splitlines()[
        2:
    ]
    assert lines[0] == (
        "| learner | training accuracy, % | seconds | examples kept "
        "| size of the state |"
    )
    assert lines[1] == "| :-- | --: | --: | --: | --: |"
    assert lines[2] == "| erm | 11.0 ± 1.4 | 0.0 | 0 | 0 bytes |"
    assert lines[4] == "Mean ± standard deviation over 2 seeds, after the last stage."
    assert lines[6] == "Settings: preset."


def test_a_results_table_of_no_learner_has_only_headings():
    table = build_run_results_table({"learners": {}})
    assert table.columns[0].heading == "learner"
    assert table.rows == table.notes == ()


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
    assert format_mean_of_metric(number, "error") == text


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


def test_learners_with_settings_chosen_alike_are_named_together():
    choices = [("erm", "defaults"), ("gem", "paper"), ("ewc", "defaults")]
    assert (
        describe_settings_choices(choices)
        == "Settings: defaults (erm and ewc); paper (gem)."
    )
