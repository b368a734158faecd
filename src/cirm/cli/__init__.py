"""The command line: one file per command; nothing heavy is imported early."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cirm.cli import (
    adapt,
    bench,
    data,
    demo,
    diff,
    evaluate,
    fit,
    inspect,
    predict,
    report,
    reproduce,
    rollback,
    run,
    select,
    stress,
)
from cirm.cli import list as listing
from cirm.cli.options import add_cli_command

START, MODELS = "Start here", "Models of your own data"
EXPERIMENTS, REFERENCE = "Experiments", "Data sets and choices"
DATASET_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXTRA: dict[str, dict[str, Any]] = {
    "run": {"context_settings": DATASET_OPTIONS},
    "select": {"context_settings": DATASET_OPTIONS, "options_metavar": select.USAGE},
}
"""Lets these commands pass options that they do not know on to the data set."""

app = typer.Typer(
    name="cirm",
    help="Train predictors that stay accurate at new sites, from data that arrive one "
    "site at a time.",
    epilog="`cirm COMMAND --help` describes a command and shows examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[Callable[..., None], str, str]] = {
    "demo": (demo.run_demo, START, demo.EXAMPLES),
    "fit": (fit.fit_model, MODELS, fit.FIT_EXAMPLES),
    "update": (fit.update_model, MODELS, fit.UPDATE_EXAMPLES),
    "adapt": (adapt.adapt_model, MODELS, adapt.EXAMPLES),
    "predict": (predict.predict_rows_of_files, MODELS, predict.EXAMPLES),
    "evaluate": (evaluate.evaluate_model, MODELS, evaluate.EXAMPLES),
    "inspect": (inspect.inspect_model, MODELS, inspect.EXAMPLES),
    "diff": (diff.diff_models, MODELS, diff.EXAMPLES),
    "rollback": (rollback.rollback_model, MODELS, rollback.EXAMPLES),
    "run": (run.run_learners, EXPERIMENTS, run.EXAMPLES),
    "select": (select.select_settings, EXPERIMENTS, select.EXAMPLES),
    "stress": (stress.stress, EXPERIMENTS, stress.EXAMPLES),
    "reproduce": (reproduce.reproduce_paper, EXPERIMENTS, reproduce.EXAMPLES),
    "report": (report.write_paper_report, EXPERIMENTS, report.EXAMPLES),
    "bench": (bench.measure_learner_speed, EXPERIMENTS, bench.EXAMPLES),
    "list": (listing.list_choices, REFERENCE, listing.EXAMPLES),
}
for command, (function, panel, examples) in COMMANDS.items():
    add_cli_command(
        app,
        function,
        examples,
        name=command,
        rich_help_panel=panel,
        **EXTRA.get(command, {}),
    )
app.add_typer(data.app, name="data", rich_help_panel=REFERENCE)


@app.callback(invoke_without_command=True)
def set_global_options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the full traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle options that come before the command."""
    context.obj = debug
    if version:
        from cirm import __version__

        typer.echo(f"cirm {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an expected error is one line and exit status 2."""
    try:
        app()
    except (ValueError, ArithmeticError, OSError, ImportError) as error:
        if "--debug" in sys.argv:
            raise
        from cirm.cli.output import print_to_stderr

        print_to_stderr(f"cirm: {error}")
        sys.exit(2)
