"""The page of a search for settings: what each rule picks, and all that was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cirm.report import blocks, plots
from cirm.report.blocks import Cell
from cirm.report.markup import Markup
from cirm.report.page import Section, page
from cirm.report.text import describe_metric, format_statistic, join_words

Found = Mapping[str, Any]
ORACLE = "oracle (sees the test environment)"
NOTHING = {"mean": None, "std": None, "seeds": 0}


def selection_report(found: Found, command: str = "") -> str:
    """The page of a search, made of its summary.json, as one HTML document."""
    if not found["picks"]:
        raise ValueError(
            f"selection of {found['learner']}: a rule must have picked; got no trial "
            "that ended well"
        )
    content = [
        _picked(found),
        *(_panels(found, rule) for rule in found["picks"]),
        _tried(found),
        _again(found, command),
    ]
    title = f"Settings of {found['learner']}"
    return page(title, _lead(found), [section for section in content if section])


def markdown(found: Found) -> str:
    """What each rule picks as a Markdown table, with what it turned out as if known."""
    lines = [
        "| learner | rule | its score | training | unseen | settings |",
        "| :-- | :-- | --: | --: | --: | :-- |",
    ]
    for rule, pick in found["picks"].items():
        later = pick.get("revealed") or dict.fromkeys(("train", "test"), NOTHING)
        numbers = [
            format_statistic(statistic, found["metric"])
            for statistic in (pick["score"], later["train"], later["test"])
        ]
        cells = [found["learner"], named(rule), *numbers, _spelled(pick["settings"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def named(rule: str) -> str:
    """A rule's name, with a warning where it needs one."""
    return ORACLE if rule == "oracle" else rule


def _lead(found: Found) -> str:
    trials, seeds = len(found["trials"]), len(found["seeds"])
    text = (
        f"{trials} settings were tried on {found['dataset']['name']} with "
        f"{seeds} seed{'s' if seeds > 1 else ''} each. "
    )
    if "oracle" not in found["picks"]:
        return text + "No test environment took part in the choice."
    text += "The oracle chose by the test environment: a bound, not a result."
    return text + (" No other rule saw it." if len(found["picks"]) > 1 else "")


def _picked(found: Found) -> Section:
    metric = found["metric"]
    shown = any("revealed" in pick for pick in found["picks"].values())
    after = ("training", "unseen") if shown else ()
    headings = [Cell("rule"), Cell("its score", numeric=True)]
    headings += [Cell(name, numeric=True) for name in ("trial", *after)]
    rows = []
    for rule, pick in found["picks"].items():
        row = [Cell(named(rule)), _number(pick["score"], metric)]
        row.append(Cell(str(pick["trial"]), numeric=True))
        later = pick.get("revealed", {})
        for split in ("train", "test") if shown else ():
            row.append(_number(later.get(split, NOTHING), metric))
        rows.append([*row, Cell(_spelled(pick["settings"]))])
    unit = describe_metric(metric) if metric == "accuracy" else "negative squared error"
    notes = [f"{named(rule)}: {found['rules'][rule]}." for rule in found["picks"]]
    notes.append(
        f"Scores: {unit}; the higher the better. Trial 0: settings as they are."
    )
    if shown:
        notes.append("Training and unseen: run after the choice, and no part of it.")
    table = blocks.table([*headings, Cell("settings")], rows)
    return Section("What each rule picks", (table, blocks.listing(notes)))


def _panels(found: Found, rule: str) -> Section | None:
    """A figure of a rule's score over each setting that has numbers."""
    drawn = [
        figure
        for name, space in found["space"].items()
        if (figure := dots_figure(found, rule, name, space.endswith(":log")))
    ]
    if not drawn:
        return None
    caption = (
        "A dot is a trial and the square the pick; the dotted line is trial 0, which "
        "has the settings as they are."
    )
    return Section(f"Score by {named(rule)}", (blocks.panels(caption, drawn),))


def dots_figure(found: Found, rule: str, name: str, log: bool) -> Markup | None:
    """A rule's score over a setting, a dot per trial; none if it is not a number."""
    trials = [
        (trial["trial"], trial["settings"][name], trial["scores"][rule]["mean"])
        for trial in found["trials"]
        if rule in trial["scores"] and name in trial["settings"]
    ]
    if not trials or not all(isinstance(x, int | float) for _, x, _ in trials):
        return None
    first = [
        trial["scores"][rule]["mean"]
        for trial in found["trials"]
        if trial["trial"] == 0 and rule in trial["scores"]
    ]
    return plots.plot_trials(
        name,
        f"Score by {named(rule)} over {name}",
        trials,
        picked=found["picks"][rule]["trial"],
        reference=first[0] if first else None,
        log=log,
    )


def _tried(found: Found) -> Section:
    rules = list(found["picks"])
    headings = [Cell("trial")]
    headings += [Cell(named(rule), numeric=True) for rule in rules]
    rows = []
    for trial in found["trials"]:
        row = [Cell(str(trial["trial"]))]
        for rule in rules:
            score = trial["scores"].get(rule)
            word = "\N{EN DASH}" if trial["state"] == "done" else trial["state"]
            row.append(
                _number(score, found["metric"]) if score else Cell(word, numeric=True)
            )
        rows.append([*row, Cell(_spelled(trial["settings"]))])
    table = blocks.table([*headings, Cell("settings")], rows)
    space = ", ".join(f"{name}={text}" for name, text in found["space"].items())
    text = f"Drawn from {space}; {found['held']:.0%} of each environment held out."
    return Section("All trials", (text, table))


def _again(found: Found, command: str) -> Section:
    content: list[str] = []
    if command:
        content += ["The search:", blocks.command(command)]
    uses: dict[str, list[str]] = {}
    for rule, pick in found["picks"].items():
        uses.setdefault(str(pick.get("command", "")), []).append(named(rule))
    for text, rules in uses.items():
        if text:
            content += [f"The choice by {join_words(rules)}:", blocks.command(text)]
    return Section("How to run it again, and how to use it", tuple(content))


def _number(statistic: Mapping[str, Any], metric: str) -> Cell:
    return Cell(blocks.number(format_statistic(statistic, metric)), numeric=True)


def _spelled(settings: Mapping[str, Any]) -> str:
    pairs = [f"{name}={value}" for name, value in settings.items()]
    return ", ".join(pairs) or "as they are"
