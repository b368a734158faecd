"""The table and the page of a search for settings, made from its summary.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cirm.report import page
from cirm.report.markup import EscapedHtml
from cirm.report.page import PageSection
from cirm.report.plots import plot_scores_of_trials
from cirm.report.table import ReportColumn, ReportTable, Row, build_mean_and_std_cell
from cirm.report.text import describe_metric_with_unit
from cirm.wording import format_count, join_words

Search = Mapping[str, Any]
ORACLE = "oracle (sees the test environment)"


def build_selection_page(search: Search, command: str = "") -> str:
    """Build the page of a search as one HTML document."""
    if not search["picks"]:
        raise ValueError(
            f"the search for settings of {search['learner']} has no finished trial, "
            "so no settings could be chosen. Run more trials with --trials, or "
            "narrow the ranges of --space."
        )
    rules = [
        f"{format_name_of_selection_rule(r)}: {search['rules'][r]}."
        for r in search["picks"]
    ]
    content = [
        PageSection(
            "Settings chosen by each rule",
            [build_selected_settings_table(search), page.render_notes_as_list(rules)],
        ),
        *(
            _build_scores_over_settings_section(search, rule)
            for rule in search["picks"]
        ),
        _build_search_trials_section(search),
        _build_run_commands_section(search, command),
    ]
    title = f"Settings of {search['learner']}"
    return page.render_html_page(
        title, _write_selection_lead_paragraph(search), content
    )


def build_selected_settings_table(search: Search) -> ReportTable:
    """Build the table of what each rule chooses, with the scores of a later run."""
    metric, picks = search["metric"], search["picks"]
    is_revealed = any("revealed" in pick for pick in picks.values())
    rows: list[Row] = []
    for rule, pick in picks.items():
        scores = pick.get("revealed") or {}
        rows.append(
            [
                format_name_of_selection_rule(rule),
                build_mean_and_std_cell(pick["score"], metric),
                str(pick["trial"]),
                *(
                    build_mean_and_std_cell(scores.get(split), metric)
                    for split in (("train", "test") if is_revealed else ())
                ),
                format_settings_as_assignments(pick["settings"]),
            ]
        )
    columns: list[ReportColumn | str] = ["rule", "score that the rule gives", "trial"]
    columns += [
        *(["training", "unseen"] if is_revealed else []),
        ReportColumn("settings"),
    ]
    unit = "negative mean squared error"
    if metric == "accuracy":
        unit = describe_metric_with_unit(metric)
    notes = [
        f"Scores: {unit}; higher is better. Trial 0 uses the settings that the search "
        "started from."
    ]
    if is_revealed:
        notes.append(
            "The training and unseen scores were not used for the choice; they were "
            "measured after it."
        )
    title = f"{search['learner']}: settings chosen by each rule"
    return ReportTable(title, columns, rows, notes)


def format_name_of_selection_rule(rule: str) -> str:
    """Return a rule's name, with a warning if it uses the test environment."""
    return ORACLE if rule == "oracle" else rule


def format_settings_as_assignments(settings: Mapping[str, Any]) -> str:
    """Format settings as name=value; "defaults" if there are none."""
    return (
        ", ".join(f"{name}={value}" for name, value in settings.items()) or "defaults"
    )


def render_scores_over_setting(
    search: Search, rule: str, name: str, log: bool
) -> EscapedHtml | None:
    """Draw a rule's score over a setting; None if the setting is not a number."""
    scores = {
        trial["trial"]: trial["scores"][rule]["mean"]
        for trial in search["trials"]
        if rule in trial["scores"]
    }
    trials = [
        (trial["trial"], trial["settings"][name], scores[trial["trial"]])
        for trial in search["trials"]
        if trial["trial"] in scores and name in trial["settings"]
    ]
    if not trials or not all(isinstance(x, int | float) for _, x, _ in trials):
        return None
    return plot_scores_of_trials(
        name,
        f"Score under the rule {format_name_of_selection_rule(rule)} against {name}",
        trials,
        picked_trial=search["picks"][rule]["trial"],
        reference=scores.get(0),
        log=log,
    )


def _write_selection_lead_paragraph(search: Search) -> str:
    trials, seeds = len(search["trials"]), len(search["seeds"])
    text = (
        f"{format_count(trials, 'combination')} of settings "
        f"{'was' if trials == 1 else 'were'} tried on {search['dataset']['name']}, "
        f"with {format_count(seeds, 'seed')} each. "
    )
    if "oracle" not in search["picks"]:
        return text + "No rule used a test environment to choose."
    text += (
        "The oracle used the test environment to choose, so its score is an upper "
        "bound and not a fair result."
    )
    return text + (
        " The other rules did not use the test environment."
        if len(search["picks"]) > 1
        else ""
    )


def _build_scores_over_settings_section(
    search: Search, rule: str
) -> PageSection | None:
    """A figure of a rule's score over each setting that is a number."""
    drawings = [
        figure
        for name, space in search["space"].items()
        if (
            figure := render_scores_over_setting(
                search, rule, name, space.endswith(":log")
            )
        )
    ]
    if not drawings:
        return None
    caption = (
        "Each dot is a trial, and the square is the chosen one. The dotted line is "
        "the score of trial 0, which uses the settings that the search started from."
    )
    heading = (
        f"Scores of the trials under the rule {format_name_of_selection_rule(rule)}"
    )
    return PageSection(heading, [page.render_figures_side_by_side(caption, drawings)])


def _build_search_trials_section(search: Search) -> PageSection:
    rules = list(search["picks"])
    rows: list[Row] = []
    for trial in search["trials"]:
        cells: list[Any] = [
            build_mean_and_std_cell(trial["scores"].get(rule), search["metric"])
            if rule in trial["scores"] or trial["state"] == "done"
            else trial["state"]
            for rule in rules
        ]
        settings = format_settings_as_assignments(trial["settings"])
        rows.append([str(trial["trial"]), *cells, settings])
    names = map(format_name_of_selection_rule, rules)
    columns: list[ReportColumn | str] = ["trial", *names, ReportColumn("settings")]
    space = ", ".join(f"{name}={text}" for name, text in search["space"].items())
    text = (
        f"Settings were drawn from {space}; {search['held']:.0%} of each environment "
        "was held out."
    )
    return PageSection("All trials", [text, ReportTable("All trials", columns, rows)])


def _build_run_commands_section(search: Search, command: str) -> PageSection:
    content: list[str] = []
    if command:
        content += ["Repeat the search:", page.render_shell_command(command)]
    rules: dict[str, list[str]] = {}
    for rule, pick in search["picks"].items():
        rules.setdefault(str(pick.get("command", "")), []).append(
            format_name_of_selection_rule(rule)
        )
    for text, names in rules.items():
        if text:
            content.append(f"Use the settings chosen by {join_words(names)}:")
            content.append(page.render_shell_command(text))
    return PageSection("Commands", content)
