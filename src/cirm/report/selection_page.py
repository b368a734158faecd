"""The table and the page of a search for settings, made from its summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cirm.report.markup import Markup
from cirm.report.page import (
    Section,
    render_command,
    render_list,
    render_page,
    render_panels,
)
from cirm.report.plots import plot_trials
from cirm.report.table import Cell, Column, Table, number_columns, statistic_cell
from cirm.report.text import describe_metric, join_words

Search = Mapping[str, Any]
ORACLE = "oracle (sees the test environment)"


def build_selection_page(search: Search, command: str = "") -> str:
    """Build the page of a search as one HTML document."""
    if not search["picks"]:
        raise ValueError(
            f"the search for settings of {search['learner']} has no finished trial, so "
            "no rule could choose. Run more trials, or a smaller search space."
        )
    content = [
        _build_picks_section(search),
        *(_build_scores_section(search, rule) for rule in search["picks"]),
        _build_trials_section(search),
        _build_commands_section(search, command),
    ]
    return render_page(f"Settings of {search['learner']}", _write_lead(search), content)


def build_picks_table(search: Search) -> Table:
    """Build the table of what each rule chooses, with the scores of a later run."""
    has_later = any("revealed" in pick for pick in search["picks"].values())
    later = ("training", "unseen") if has_later else ()
    rows = []
    for rule, pick in search["picks"].items():
        row = [
            Cell(get_rule_name(rule)),
            statistic_cell(pick["score"], search["metric"]),
            Cell(str(pick["trial"])),
        ]
        if has_later:
            scores = pick.get("revealed") or {}
            row += [
                statistic_cell(scores.get(split), search["metric"])
                for split in ("train", "test")
            ]
        rows.append([*row, Cell(format_settings(pick["settings"]))])
    columns = [Column("rule"), *number_columns("score by the rule", "trial", *later)]
    unit = describe_metric(search["metric"])
    if search["metric"] != "accuracy":
        unit = "negative mean squared error"
    notes = [f"Scores: {unit}; higher is better. Trial 0 has the default settings."]
    if has_later:
        notes.append(
            "The training and unseen scores were not used for the choice; they were "
            "measured after it."
        )
    title = f"{search['learner']}: settings chosen by each rule"
    return Table(title, [*columns, Column("settings")], rows, notes)


def get_rule_name(rule: str) -> str:
    """Return a rule's name, with a warning if it uses the test environment."""
    return ORACLE if rule == "oracle" else rule


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format settings as name=value; "defaults" if there are none."""
    return (
        ", ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"
    )


def draw_trials(search: Search, rule: str, name: str, log: bool) -> Markup | None:
    """Draw a rule's score over a setting; None if the setting is not a number."""
    trials = [
        (trial["trial"], trial["settings"][name], trial["scores"][rule]["mean"])
        for trial in search["trials"]
        if rule in trial["scores"] and name in trial["settings"]
    ]
    if not trials or not all(isinstance(x, int | float) for _, x, _ in trials):
        return None
    defaults = [
        trial["scores"][rule]["mean"]
        for trial in search["trials"]
        if trial["trial"] == 0 and rule in trial["scores"]
    ]
    return plot_trials(
        name,
        f"Score by the rule {get_rule_name(rule)} over {name}",
        trials,
        picked=search["picks"][rule]["trial"],
        reference=defaults[0] if defaults else None,
        log=log,
    )


def _write_lead(search: Search) -> str:
    trials, seeds = len(search["trials"]), len(search["seeds"])
    text = (
        f"{trials} combinations of settings were tried on {search['dataset']['name']}, "
        f"with {seeds} seed{'s' if seeds > 1 else ''} each. "
    )
    if "oracle" not in search["picks"]:
        return text + "The choice did not use any test environment."
    text += (
        "The oracle chose by the test environment: it is an upper bound, not a result."
    )
    return text + (
        " The other rules did not use it." if len(search["picks"]) > 1 else ""
    )


def _build_picks_section(search: Search) -> Section:
    notes = [
        f"{get_rule_name(rule)}: {search['rules'][rule]}." for rule in search["picks"]
    ]
    table = build_picks_table(search)
    return Section("Settings chosen by each rule", [table, render_list(notes)])


def _build_scores_section(search: Search, rule: str) -> Section | None:
    """A figure of a rule's score over each setting that is a number."""
    drawings = [
        figure
        for name, space in search["space"].items()
        if (figure := draw_trials(search, rule, name, space.endswith(":log")))
    ]
    if not drawings:
        return None
    caption = (
        "Each dot is a trial, and the square is the chosen one. The dotted line is the "
        "score of trial 0, which has the default settings."
    )
    heading = f"Scores by the rule {get_rule_name(rule)}"
    return Section(heading, [render_panels(caption, drawings)])


def _build_trials_section(search: Search) -> Section:
    rules = list(search["picks"])
    columns = [Column("trial"), *number_columns(*map(get_rule_name, rules))]
    rows = []
    for trial in search["trials"]:
        row = [Cell(str(trial["trial"]))]
        for rule in rules:
            score = trial["scores"].get(rule)
            is_done = score or trial["state"] == "done"
            row.append(
                statistic_cell(score, search["metric"])
                if is_done
                else Cell(trial["state"])
            )
        rows.append([*row, Cell(format_settings(trial["settings"]))])
    table = Table("All trials", [*columns, Column("settings")], rows)
    space = ", ".join(f"{name}={text}" for name, text in search["space"].items())
    text = (
        f"Settings were drawn from {space}; {search['held']:.0%} of each environment "
        "was held out."
    )
    return Section("All trials", [text, table])


def _build_commands_section(search: Search, command: str) -> Section:
    content: list[str] = []
    if command:
        content += ["Repeat the search:", render_command(command)]
    rules: dict[str, list[str]] = {}
    for rule, pick in search["picks"].items():
        rules.setdefault(str(pick.get("command", "")), []).append(get_rule_name(rule))
    for text, names in rules.items():
        if text:
            content.append(f"Use the settings chosen by {join_words(names)}:")
            content.append(render_command(text))
    return Section("Commands", content)
