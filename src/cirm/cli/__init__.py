"""The command line: one file per command group; nothing heavy is loaded early."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cirm.cli import (
    bench,
    data,
    demo,
    evaluate,
    fit,
    inspect,
    listing,
    predict,
    report,
    reproduce,
    run,
    select,
)

app = typer.Typer(
    name="cirm",
    help="Predictors that hold in places never seen, learned one place at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("fit")(fit.fit)
app.command("update")(fit.update)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("inspect")(inspect.inspect)
app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("select", context_settings=select.CONTEXT, options_metavar=select.USAGE)(
    select.select
)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.listing)
app.command("bench")(bench.bench)
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the trace of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that stand before the command."""
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
        typer.echo(f"cirm: {error}", err=True)
        sys.exit(2)
