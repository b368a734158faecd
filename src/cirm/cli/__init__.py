"""The command line: one file per command; nothing heavy is imported early."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import click
import typer

from cirm.cli import (
    adapt,
    bench,
    board,
    compare,
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
    serve,
    stress,
)
from cirm.cli import list as listing
from cirm.cli.exit_codes import ExitCode
from cirm.cli.options import add_cli_command

START, MODELS = "Start here", "Models of your own data"
EXPERIMENTS, REFERENCE = "Experiments", "Data sets and choices"
DATASET_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXTRA: dict[str, dict[str, Any]] = {
    "run": {"context_settings": DATASET_OPTIONS},
    "select": {"context_settings": DATASET_OPTIONS, "options_metavar": select.USAGE},
}
"""Lets these commands pass options that they do not know on to the data set."""

EXPECTED = (ValueError, ArithmeticError, OSError, ImportError)
"""Errors that wrong input causes, with a message for the user."""

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
    "compare": (compare.compare_tables, MODELS, compare.EXAMPLES),
    "inspect": (inspect.inspect_model, MODELS, inspect.EXAMPLES),
    "diff": (diff.diff_models, MODELS, diff.EXAMPLES),
    "rollback": (rollback.rollback_model, MODELS, rollback.EXAMPLES),
    "serve": (serve.serve_model, MODELS, serve.EXAMPLES),
    "run": (run.run_learners, EXPERIMENTS, run.EXAMPLES),
    "select": (select.select_settings, EXPERIMENTS, select.EXAMPLES),
    "stress": (stress.run_stress_command, EXPERIMENTS, stress.EXAMPLES),
    "board": (board.run_board, EXPERIMENTS, board.EXAMPLES),
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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the full traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Handle options that come before the command; `main` looks for --debug."""
    if version:
        from cirm import __version__

        typer.echo(f"cirm {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; an expected error is one line and exit status 2.

    With --json, errors are JSON on standard output as well.
    """
    as_json = "--json" in sys.argv
    try:
        # Where typer does not stand alone, it hands over wrong usage and the status.
        status = app(standalone_mode=not as_json)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            sys.exit(ExitCode.CLOSED_PIPE)
        raise
    except (click.ClickException, MemoryError, *EXPECTED) as error:
        if "--debug" in sys.argv:
            raise
        end_with_error(describe_error(error), ExitCode.WRONG_INPUT, as_json)
    except Exception:
        traceback.print_exc()
        text = "This is a bug in cirm. Please report it, together with the lines above."
        end_with_error(text, ExitCode.DEFECT, as_json)
    if status == ExitCode.INTERRUPTED:  # which has been said on standard error
        print_json_error("The command was interrupted.", status)
    sys.exit(status or ExitCode.OK)


def describe_error(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, MemoryError):
        return "There is not enough memory. Use fewer rows, columns or samples."
    return str(error)


def end_with_error(text: str, status: ExitCode, as_json: bool) -> NoReturn:
    """Print an error, on standard error and maybe as JSON, and exit."""
    from cirm.cli.output import print_to_stderr

    print_to_stderr(f"cirm: {text}")
    if as_json:
        print_json_error(text, status)
    sys.exit(status)


def print_json_error(text: str, status: int) -> None:
    """Print an error as JSON on standard output."""
    error = {"status": int(status), "message": text}
    typer.echo(json.dumps({"error": error}, indent=2))
