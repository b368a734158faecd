import re

import pytest

from cirm.report.selection_page import (
    build_selected_settings_table,
    build_selection_page,
    render_scores_over_setting,
)
from cirm.report.table import render_table_as_markdown


def found(rules=("worst-group", "oracle"), revealed=False):
    """A search of four trials, one of which diverged."""
    trials = []
    for trial in range(4):
        score = {"mean": 40.0 + 5 * trial, "std": 1.0, "seeds": 2}
        state = "diverged" if trial == 2 else "done"
        settings = {"rate": 10.0 ** (trial - 5), "hidden": [8, 8]} if trial else {}
        scores = {rule: score for rule in rules} if state == "done" else {}
        made = {"trial": trial, "settings": settings, "state": state, "scores": scores}
        trials.append(made)
    pick = {
        "trial": 3,
        "settings": trials[3]["settings"],
        "command": "cirm run --x <1>",
    }
    pick["score"] = {"mean": 55.0, "std": 1.0, "seeds": 2}
    if revealed:
        statistic = {"mean": 61.5, "std": None, "seeds": 1}
        pick["revealed"] = {"train": statistic, "test": statistic}
    return {
        "learner": "erm",
        "dataset": {"name": "colored"},
        "order": "sequential",
        "seeds": [0, 1],
        "preset": "",
        "held": 0.2,
        "metric": "accuracy",
        "rules": {rule: f"what {rule} means" for rule in rules},
        "space": {"rate": "1e-4..1e-2:log", "hidden": "8,8|4"},
        "trials": trials,
        "picks": {rule: dict(pick) for rule in rules},
    }


def test_the_page_shows_picks_trials_and_commands():
    text = build_selection_page(found(), "cirm select erm")
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "Settings chosen by each rule",
        "Scores of the trials under the rule worst-group",
        "Scores of the trials under the rule oracle (sees the test environment)",
        "All trials",
        "Commands",
    ]
    assert "diverged" in text
    assert "what worst-group means" in text
    assert "&lt;1&gt;" in text
    assert "61.5" not in text


def test_what_was_revealed_is_labelled_as_no_part_of_the_choice():
    text = build_selection_page(found(revealed=True))
    assert "61.5" in text
    assert "were not used for the choice" in text


def test_the_oracle_is_said_to_be_a_bound_and_others_not_to_have_seen_the_test():
    assert "an upper bound and not a fair result" in build_selection_page(found())
    honest = build_selection_page(found(("worst-group",)))
    assert "No rule used a test environment to choose" in honest
    assert "oracle" not in honest


def test_a_figure_has_a_dot_for_each_trial_that_has_a_score_and_the_setting():
    figure = render_scores_over_setting(found(), "worst-group", "rate", log=True)
    assert len(re.findall("trial [0-9]:", figure)) == 2
    assert (
        render_scores_over_setting(found(), "worst-group", "hidden", log=False) is None
    )


def test_a_search_without_a_pick_has_no_page():
    nothing = {**found(), "picks": {}}
    with pytest.raises(ValueError, match="settings of erm has no finished trial"):
        build_selection_page(nothing)


def test_the_picks_are_a_markdown_table_too():
    text = render_table_as_markdown(build_selected_settings_table(found(revealed=True)))
    lines = text.splitlines()[2:6]
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| worst-group | 55.0 ± 1.0 | 3 | 61.5 | 61.5 | rate=")
    assert "oracle (sees the test environment)" in lines[3]
    assert "| training |" in lines[0]
    assert "training |" not in render_table_as_markdown(
        build_selected_settings_table(found())
    )
