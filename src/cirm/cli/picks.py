"""A search run with progress; its picks shown, and, if asked, what they turn out as."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cirm.cli.shared import open_folder

if TYPE_CHECKING:
    from cirm.runs.engines import Engine
    from cirm.runs.jobs import Job
    from cirm.runs.plans import PreparedDataset
    from cirm.runs.search import Search

Found = dict[str, Any]


def run_trials(search: Search, folder: Path, engine: Engine) -> dict[str, str]:
    """Run the trials that have left no scores yet; reasons of failures by job."""
    from cirm.runs.runner import list_unfinished

    jobs = search.every()
    open_folder(folder)
    left = len(list_unfinished(jobs, folder))
    trials = f"{search.trials} trial{'s' if search.trials > 1 else ''}"
    typer.echo(f"{trials} of {search.learner}: {len(jobs)} trainings, {left} to do.")
    return _run(jobs, folder, engine, f"cirm select {search.learner}")


def revealed(
    search: Search,
    on: PreparedDataset,
    found: Found,
    seeds: tuple[int, ...],
    folder: Path,
    engine: Engine,
) -> dict[str, str]:
    """Run each pick on the whole training data, and score it where none had a look.

    The numbers are added to what was found, after the choice, and change none of it.
    """
    from cirm.report.summary import summarise
    from cirm.runs.runner import collect_records

    jobs = {p["trial"]: _jobs(search, on, seeds, p) for p in found["picks"].values()}
    every = [job for some in jobs.values() for job in some]
    typer.echo(f"The choice is made; {len(jobs)} picks are now run to be revealed.")
    failures = _run(every, folder, engine, "revealing")
    for pick in found["picks"].values():
        records = collect_records(jobs[pick["trial"]], folder)
        if records:
            (entry,) = summarise(records)["learners"].values()
            pick["revealed"] = {split: entry[split] for split in ("train", "test")}
    return failures


def show(search: Search, found: Found, folder: Path) -> None:
    """Write what was found as summary and page; show the picks and how to use them."""
    from cirm.cli.results import command
    from cirm.records import write_text
    from cirm.report.selection import markdown, selection_report
    from cirm.runs.picks import format_command

    for pick in found["picks"].values():
        pick["command"] = format_command(search, pick["settings"])
    write_text(folder / "summary.json", json.dumps(found, indent=2) + "\n")
    if not found["picks"]:
        typer.echo("No trial has ended well, so that there is nothing to choose.")
        return
    write_text(folder / "report.html", selection_report(found, command()))
    write_text(folder / "table.md", markdown(found))
    _table(found)
    for rules, text in _commands(found).items():
        typer.echo(f"To use the choice by {rules}:\n  {text}")
    typer.echo(f"Wrote summary.json and table.md to {folder}")
    typer.echo(f"Report: {(folder / 'report.html').resolve()}")


def _run(jobs: list[Any], folder: Path, engine: Engine, title: str) -> dict[str, str]:
    from cirm.cli.results import run_watched
    from cirm.runs.runner import list_unfinished

    if not list_unfinished(jobs, folder):
        return {}
    return run_watched(
        jobs, lambda: list_unfinished(jobs, folder), folder, engine, title
    )


def _jobs(
    search: Search, on: PreparedDataset, seeds: tuple[int, ...], pick: Found
) -> list[Job]:
    """The jobs of a pick, those that `cirm run` would run."""
    from cirm.runs.picks import format_setting
    from cirm.runs.plans import plan_jobs

    texts = [
        f"{name}={format_setting(value)}" for name, value in pick["settings"].items()
    ]
    label = f"{search.learner}, trial {pick['trial']}"
    made = plan_jobs(
        on, search.learner, search.order, seeds,
        preset=search.preset, texts=texts, label=label,
    )  # fmt: skip
    return [replace(job, selection="a pick of cirm select") for job in made]


def _commands(found: Found) -> dict[str, str]:
    """The commands of the picks by the rules that pick them."""
    from cirm.report.selection import named

    texts: dict[str, list[str]] = {}
    for rule, pick in found["picks"].items():
        texts.setdefault(pick["command"], []).append(named(rule))
    return {", ".join(rules): text for text, rules in texts.items()}


def _table(found: Found) -> None:
    from rich.console import Console
    from rich.table import Table

    from cirm.cli.screen import number
    from cirm.report.selection import named

    metric, picks = found["metric"], found["picks"]
    unit = "accuracy, %" if metric == "accuracy" else "negative squared error"
    table = Table(title=f"{found['learner']}: what each rule picks ({unit})")
    table.add_column("rule", style="bold")
    shown = any("revealed" in pick for pick in picks.values())
    for heading in ("its score", "trial", *(("train", "unseen") if shown else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for rule, pick in picks.items():
        later = pick.get("revealed", {})
        after = [number(later.get(s), metric) for s in ("train", "test")]
        cells = [number(pick["score"], metric), str(pick["trial"])]
        table.add_row(named(rule), *cells, *(after if shown else []))
    Console().print(table)
    if shown:
        typer.echo("train and unseen: run after the choice, and no part of it.")
