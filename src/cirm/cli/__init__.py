"""The command line: one file per command; nothing heavy is imported early."""

from __future__ import annotations

import errno
import json
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn

import click
import typer
from typer.core import TyperGroup
from typer.main import get_command_from_info, get_group

from cirm.cli.exit_codes import ExitCode

START, MODELS = "Start here", "Models of your own data"
EXPERIMENTS, REFERENCE = "Experiments", "Data sets and choices"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Lets a command pass options that it does not know on to the data set."""


@dataclass(frozen=True)
class CommandHelpEntry:
    """What `cirm --help` shows of a command, and where it is.

    Attributes:
        function: Its function in the module of `cirm.cli` that is named like it, or
            `module:function`; "" if the module has an app with commands of its own.
        panel: The heading under which it is listed.
        summary: The first paragraph of its help.
        settings: Further arguments of `Typer.command`.
    """

    function: str
    panel: str
    summary: str
    settings: dict[str, Any] | None = None


COMMANDS = {
    "demo": CommandHelpEntry(
        "run_demo",
        START,
        "Compare seven learners on coloured digits, in about a minute.",
    ),
    "fit": CommandHelpEntry(
        "fit_model",
        MODELS,
        "Train a model on data of one or more places and write it to a file.",
    ),
    "update": CommandHelpEntry(
        "fit:update_model",
        MODELS,
        "Continue training a model on new places; earlier data are not needed.",
    ),
    "adapt": CommandHelpEntry(
        "adapt_model_command",
        MODELS,
        "Adapt a model to a new place, using rows whose targets are unknown.",
    ),
    "predict": CommandHelpEntry(
        "predict_target_of_file_rows",
        MODELS,
        "Predict the target of new rows, in the order of the data.",
    ),
    "evaluate": CommandHelpEntry(
        "evaluate_model", MODELS, "Score a model on data with known targets."
    ),
    "compare": CommandHelpEntry(
        "compare_tables",
        MODELS,
        "Show how two tables differ: their inputs, base rates and relations to the "
        "target.",
    ),
    "inspect": CommandHelpEntry(
        "inspect_model",
        MODELS,
        "Show a model's places, scores, stored data and important columns.",
    ),
    "diff": CommandHelpEntry(
        "diff_models_command",
        MODELS,
        "Show what differs between two models, with a summary first.",
    ),
    "rollback": CommandHelpEntry(
        "rollback_model",
        MODELS,
        "Return to the version of a model before its last update, or to another one.",
    ),
    "serve": CommandHelpEntry(
        "serve_model", MODELS, "Serve predictions over HTTP until Ctrl-C."
    ),
    "run": CommandHelpEntry(
        "run_learners",
        EXPERIMENTS,
        "Train learners on a stream of environments and score them on unseen ones.",
        {"context_settings": PASS_ON},
    ),
    "select": CommandHelpEntry(
        "select_learner_settings_command",
        EXPERIMENTS,
        "Choose settings of a learner by random search, without the test environment.",
        {"context_settings": PASS_ON, "options_metavar": "LEARNER [DATASET] [OPTIONS]"},
    ),
    "stress": CommandHelpEntry(
        "run_stress_command",
        EXPERIMENTS,
        "Test a learner against many kinds of shortcut, under many conditions.",
    ),
    "board": CommandHelpEntry(
        "run_leaderboard_command",
        EXPERIMENTS,
        "Compare learners on data sets whose places arrive one after another.",
    ),
    "reproduce": CommandHelpEntry(
        "reproduce_paper_experiments",
        EXPERIMENTS,
        "Run the experiments of the paper and compare the results with its numbers.",
    ),
    "report": CommandHelpEntry(
        "write_paper_report",
        EXPERIMENTS,
        "Write tables or a page from the records of `cirm reproduce`.",
    ),
    "bench": CommandHelpEntry(
        "measure_learner_speed", EXPERIMENTS, "Measure the speed of the learners."
    ),
    "list": CommandHelpEntry(
        "list_registered_names_or_settings",
        REFERENCE,
        "List learners, data sets and other named choices, or the settings of one.",
    ),
    "data": CommandHelpEntry(
        "",
        REFERENCE,
        "Download and import data sets, list the cache, draw coloured images.",
    ),
}


# Click 8.4 names similar commands itself; typer would do so a second time.
SUGGESTED_BY_TYPER = not hasattr(click.exceptions, "NoSuchCommand")


def import_cli_command(name: str) -> click.Command:
    """Import a command and return it with its options."""
    from cirm.cli.options import add_cli_command

    entry = COMMANDS[name]
    module_name, _, function = entry.function.rpartition(":")
    module = import_module(f"cirm.cli.{module_name or name}")
    if not function:
        group = get_group(module.app)
        group.name = name
        group.suggest_commands = SUGGESTED_BY_TYPER
        return group
    examples = getattr(module, f"{name.upper()}_EXAMPLES", None) or module.EXAMPLES
    holder = typer.Typer()
    settings = {"name": name, **(entry.settings or {})}
    add_cli_command(holder, getattr(module, function), examples, **settings)
    return get_command_from_info(
        holder.registered_commands[0],
        pretty_exceptions_short=False,
        rich_markup_mode=holder.rich_markup_mode,
    )


class LazyCommandGroup(TyperGroup):
    """The commands; each is imported only if it is called, for a quick start."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  of TyperGroup
        """List the commands with their summaries, without importing them."""
        listed = {}
        for name, entry in COMMANDS.items():
            listed[name] = click.Command(name, help=entry.summary)
            listed[name].rich_help_panel = entry.panel  # type: ignore[attr-defined]
        super().__init__(**{**settings, "commands": listed})
        self.suggest_commands = SUGGESTED_BY_TYPER

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, import_cli_command(name) if name in COMMANDS else command, rest


EXPECTED = (ValueError, ArithmeticError, OSError, ImportError)
"""Errors that wrong input causes, with a message for the user."""
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk; of all files but the standard output, messages name them."""

app = typer.Typer(
    name="cirm",
    cls=LazyCommandGroup,
    help="Train predictors that stay accurate at new places, from data that arrive one "
    "place at a time.",
    epilog="`cirm COMMAND --help` describes a command and shows examples.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def apply_global_cli_options(
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
        print_error_and_exit(
            format_error_as_one_line(error), ExitCode.WRONG_INPUT, as_json
        )
    except Exception:
        traceback.print_exc()
        text = "This is a bug in cirm. Please report it, together with the lines above."
        print_error_and_exit(text, ExitCode.DEFECT, as_json)
    if status == ExitCode.INTERRUPTED:  # which has been said on standard error
        from cirm.cli.progress import interruption_message

        print_json_error(interruption_message.get(), status)
    sys.exit(status or ExitCode.OK)


def format_error_as_one_line(error: BaseException) -> str:
    """Return an error as one line."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, MemoryError):
        return (
            "The command ran out of memory. Run it again with fewer rows, columns "
            "or samples."
        )
    if isinstance(error, OSError) and error.errno in DISK_ERRORS and not error.filename:
        return (
            f"The standard output cannot be written: {str(error.strerror).lower()}. "
            "Free some space, or send the output elsewhere. Other files of this "
            "command may already have been written."
        )
    return str(error)


def print_error_and_exit(text: str, status: ExitCode, as_json: bool) -> NoReturn:
    """Print an error, on standard error and maybe as JSON, and exit."""
    from cirm.cli.output import print_lines_to_stderr

    print_lines_to_stderr(f"cirm: {text}")
    if as_json:
        print_json_error(text, status)
    sys.exit(status)


def print_json_error(text: str, status: int) -> None:
    """Print an error as JSON on standard output."""
    error = {"status": int(status), "message": text}
    with suppress(OSError):  # it may be the standard output that has failed
        typer.echo(json.dumps({"error": error}, indent=2))
