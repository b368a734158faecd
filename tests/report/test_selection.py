import re

import pytest

from cirm.report.selection import dots_figure, markdown, selection_report


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
    text = selection_report(found(), "cirm select erm")
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "What each rule picks",
        "Score by worst-group",
        "Score by oracle (sees the test environment)",
        "All trials",
        "How to run it again, and how to use it",
    ]
    assert "diverged" in text
    assert "what worst-group means" in text
    assert "&lt;1&gt;" in text
    assert "61.5" not in text


def test_what_was_revealed_is_labelled_as_no_part_of_the_choice():
    text = selection_report(found(revealed=True))
    assert "61.5" in text
    assert "run after the choice, and no part of it" in text


def test_the_oracle_is_said_to_be_a_bound_and_others_not_to_have_seen_the_test():
    assert "a bound, not a result" in selection_report(found())
    honest = selection_report(found(("worst-group",)))
    assert "No test environment took part in the choice" in honest
    assert "oracle" not in honest


def test_a_figure_has_a_dot_for_each_trial_that_has_a_score_and_the_setting():
    figure = dots_figure(found(), "worst-group", "rate", log=True)
    assert len(re.findall("trial [0-9]:", figure)) == 2
    assert dots_figure(found(), "worst-group", "hidden", log=False) is None


def test_a_search_without_a_pick_has_no_page():
    nothing = {**found(), "picks": {}}
    with pytest.raises(ValueError, match="a rule must have picked"):
        selection_report(nothing)


def test_the_picks_are_a_markdown_table_too():
    lines = markdown(found(revealed=True)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| erm | worst-group | 55.0 ± 1.0 | 61.5 | 61.5 | rate=")
    assert "oracle (sees the test environment)" in lines[3]
    assert "| \N{EN DASH} | \N{EN DASH} |" in markdown(found())
