"""`cirm select`: choose settings of a learner without the test environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.options import (
    Address,
    BudgetText,
    EngineName,
    LearnerSettings,
    Preset,
    RunOrder,
    Workers,
)
from cirm.cli.output import format_command_line_as_typed, print_table
from cirm.wording import format_count, join_words

if TYPE_CHECKING:
    from cirm.runs.engines import JobEngine
    from cirm.runs.job_queue import WallClockBudget
    from cirm.runs.jobs import TrainingJob
    from cirm.runs.machine_speed import MachineSpeed
    from cirm.runs.search import SettingsRandomSearch

EXAMPLES = options.format_examples_for_command_help(
    "cirm select irmv1 colored --rule worst-group --trials 20",
    "cirm select erm --space 'rate=1e-4..1e-2:log,dropout=0|0.5' --rule all --reveal",
)

Summary = dict[str, Any]


def select_learner_settings_command(
    context: typer.Context,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Selection rule: held-out, next, worst-group, leave-one-out, "
            "oracle, or all; can be given several times. `cirm list rules` "
            "describes them.",
            show_default="worst-group",
        ),
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of settings to try.")
    ] = 20,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try: a range such as rate=1e-4..1e-2:log, or "
            "alternatives such as dropout=0.5|0.75; separate several settings "
            "by commas, or give the option several times.",
            show_default="the learner's usual ranges",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help=(
                "Setting of the data set; can be given several times. --NAME VALUE "
                "works as well."
            ),
            show_default=False,
        ),
    ] = None,
    order: RunOrder = "sequential",
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help=("Number of seeds to run each trial with.")
        ),
    ] = 3,
    preset: Preset = "",
    settings: LearnerSettings = None,
    hold_out: Annotated[
        float,
        typer.Option(
            help="Fraction of each training environment that is held out, between 0 "
            "and 1."
        ),
    ] = 0.2,
    draw: Annotated[
        int, typer.Option(help="Seed of the random search over settings.")
    ] = 0,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal",
            help="After the choice, train with the selected settings and score them "
            "on the test environments.",
        ),
    ] = False,
    reveal_seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of seeds for --reveal; 0 means as many as --seeds.",
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write the results to.",
            show_default="runs/select-LEARNER-HASH",
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    budget: BudgetText = "",
) -> None:
    """Choose settings of a learner by random search, without the test environment.

    LEARNER and DATASET (colored, if not given) are names that `cirm list` shows, or
    package.module:Class. The first trial uses the settings without changes. All other
    options are settings of the data set, as for `cirm run`. If a search is interrupted,
    the same command continues it; with more trials or rules, it reuses the trials that
    have finished.
    """
    from cirm.cli.jobs import parse_and_start_time_budget
    from cirm.cli.progress import show_progress_of_single_step
    from cirm.cli.run import exit_if_jobs_failed

    limit = parse_and_start_time_budget(budget)
    learner, dataset, texts = parse_learner_and_dataset(context.args, data or [])
    with show_progress_of_single_step("preparing the data set"):
        from cirm.runs.engines import JobEngine
        from cirm.runs.plans import create_and_draw_dataset
        from cirm.runs.search import (
            plan_jobs_of_selected_trials,
            plan_random_search,
            summarise_random_search,
        )

        chosen = JobEngine(engine, workers, address)
        prepared = create_and_draw_dataset(dataset, texts)
        search, unused = plan_random_search(
            prepared, learner, rule or ["worst-group"], space or [], settings or [],
            order=order, seeds=tuple(range(seeds)), trials=trials, preset=preset,
            held=hold_out, draw=draw,
        )  # fmt: skip
    for key, reason in unused.items():
        typer.echo(f"The selection rule {key} is not used: {reason}.")
    name = options.make_file_name_from_key(learner)
    folder = out or Path("runs") / f"select-{name}-{search.key}"
    jobs: list[TrainingJob] = [*search.plan_jobs()]
    failures = run_missing_search_trials(search, jobs, folder, chosen, limit)
    summary = summarise_random_search(search, folder, failures)
    if reveal:
        reveal_range = tuple(range(reveal_seeds or seeds))
        picked = plan_jobs_of_selected_trials(
            search, prepared, reveal_range, summary["picks"].values()
        )
        jobs += [job for some in picked.values() for job in some]
        failures |= add_test_scores_of_selected_settings(
            picked, summary, folder, chosen, limit
        )
    write_and_print_selected_settings(search, summary, folder)
    exit_if_jobs_failed(jobs, failures)


def parse_learner_and_dataset(
    arguments: Sequence[str], assignments: Sequence[str]
) -> tuple[str, str, dict[str, str]]:
    """Return the learner, the data set, and settings of the data set."""
    from cirm.settings import parse_name_value_assignments

    names: list[str] = []
    rest: list[str] = []
    is_value = False
    for word in arguments:
        if word.startswith("--") or is_value:
            is_value = not is_value and "=" not in word
            rest.append(word)
        else:
            names.append(word)
    texts = parse_name_value_assignments(list(assignments), "--data")
    texts |= options.parse_dataset_options(rest, "select")
    if not 1 <= len(names) <= 2:
        raise ValueError(
            "select: give a learner and, optionally, a data set, for example `cirm "
            f"select erm colored`; got {' '.join(names) or 'neither'}."
        )
    return names[0], names[1] if len(names) > 1 else "colored", texts


def run_missing_search_trials(
    search: SettingsRandomSearch,
    jobs: Sequence[TrainingJob],
    folder: Path,
    engine: JobEngine,
    budget: WallClockBudget | None = None,
) -> dict[str, str]:
    """Run the trials that have no scores yet; return reasons of failures by job."""
    from cirm.runs.local import list_unfinished_jobs

    options.create_result_folder(folder)
    left = len(list_unfinished_jobs(jobs, folder))
    trials = f"{search.trials} trial{'s' if search.trials > 1 else ''}"
    typer.echo(
        f"Searching for settings of {search.learner_key} in {trials}: {len(jobs)} "
        f"training jobs, {left} of them left to run."
    )
    return run_unfinished_jobs(
        jobs, folder, engine, f"cirm select {search.learner_key}", budget
    )


def add_test_scores_of_selected_settings(
    jobs: dict[int, list[TrainingJob]],
    summary: Summary,
    folder: Path,
    engine: JobEngine,
    budget: WallClockBudget | None = None,
) -> dict[str, str]:
    """Train with the selected settings and add their test scores to the summary.

    This comes after the choice and does not change it. Returns reasons of failures.
    """
    from cirm.report.summary import summarise_records
    from cirm.runs.local import read_records_of_finished_jobs

    typer.echo(
        "The settings are selected. Scoring them on the test environments: "
        f"{format_count(len(jobs), 'job')}."
    )
    every = [job for some in jobs.values() for job in some]
    failures = run_unfinished_jobs(
        every, folder, engine, "scoring the selected settings", budget
    )
    for pick in summary["picks"].values():
        records = read_records_of_finished_jobs(jobs[pick["trial"]], folder)
        if records:
            (entry,) = summarise_records(records)["learners"].values()
            pick["revealed"] = {split: entry[split] for split in ("train", "test")}
    return failures


def run_unfinished_jobs(
    jobs: Sequence[TrainingJob],
    folder: Path,
    engine: JobEngine,
    title: str,
    budget: WallClockBudget | None,
    others: Sequence[TrainingJob] = (),
    speed: MachineSpeed | None = None,
) -> dict[str, str]:
    """Run the jobs that have not finished; return reasons of failures by job.

    How long jobs take is estimated from those that have finished, also of `others`, and
    without timing any if the `speed` of the machine is given.
    """
    from cirm.cli.jobs import run_jobs_with_progress
    from cirm.runs.local import list_job_times, list_unfinished_jobs

    if not list_unfinished_jobs(jobs, folder):
        return {}
    return run_jobs_with_progress(
        jobs,
        lambda: list_unfinished_jobs(jobs, folder),
        folder,
        engine,
        title,
        list_job_times([*jobs, *others], folder),
        budget,
        speed=speed,
    )


def describe_trials_without_scores(summary: Summary) -> str:
    """Say what became of the trials, none of which has scores, and what to do."""
    counts = Counter(trial["state"] for trial in summary["trials"])
    what_happened = {
        "done": "gave scores that are NaN or infinite",
        "diverged": "diverged",
        "failed": "failed",
        "not run": "did not run before the time was over",
    }
    happened = [
        f"{format_count(counts[state], 'trial')} {words}"
        for state, words in what_happened.items()
        if counts[state]
    ]
    remedies = []
    if counts["done"] + counts["diverged"]:
        remedies.append("Try smaller values, for example --space rate=1e-5..1e-3:log.")
    if counts["failed"]:
        remedies.append("The reasons of the failures are listed below.")
    if counts["not run"]:
        remedies.append("Run the same command again to continue.")
    first = f"No settings can be selected: {join_words(happened)}."
    return " ".join([first, *remedies])


def write_and_print_selected_settings(
    search: SettingsRandomSearch, summary: Summary, folder: Path
) -> None:
    """Write summary and page; print what each rule selects and how to use it."""
    from cirm.cli.progress import show_progress_of_writing_report
    from cirm.records import write_text_atomically
    from cirm.report.selection_page import (
        build_selected_settings_table,
        build_selection_page,
        format_name_of_selection_rule,
    )
    from cirm.report.table import render_table_as_markdown
    from cirm.runs.search import format_cirm_run_command

    picks = summary["picks"]
    for pick in picks.values():
        pick["command"] = format_cirm_run_command(search, pick["settings"])
    write_text_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    if not picks:
        typer.echo(describe_trials_without_scores(summary))
        return
    with show_progress_of_writing_report():
        page = build_selection_page(summary, format_command_line_as_typed())
        write_text_atomically(folder / "report.html", page)
        table = build_selected_settings_table(summary)
        write_text_atomically(folder / "table.md", render_table_as_markdown(table))
    print_table(table)
    commands: dict[str, list[str]] = {}
    for rule, pick in picks.items():
        commands.setdefault(pick["command"], []).append(
            format_name_of_selection_rule(rule)
        )
    for command, rules in commands.items():
        typer.echo(f"To use the settings selected by {', '.join(rules)}:\n  {command}")
    typer.echo(f"Wrote summary.json and table.md to {folder}")
    typer.echo(f"Wrote the report to {(folder / 'report.html').resolve()}")
