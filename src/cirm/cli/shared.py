"""What the commands on a model have in common: options, progress, and endings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cirm.data.rows import Progress

Data = Annotated[
    list[Path],
    typer.Argument(
        help="CSV, TSV, Parquet or NPZ files, or a folder of images.",
        show_default=False,
    ),
]
ModelFile = Annotated[
    Path, typer.Option("--model", help="The model's file.", show_default=False)
]
Environment = Annotated[
    str,
    typer.Option(
        help="Column that names environments; without, each file is one.",
    ),
]
Device = Annotated[str, typer.Option(help="Where to compute, such as cuda.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON on the standard output.")
]
Report = Annotated[
    Path | None, typer.Option(help="Also write it as an HTML page.", show_default=False)
]
Order = Annotated[
    str,
    typer.Option(
        help="Environments of this call: joint, sequential, or such as 2+1.",
    ),
]
FillMissing = Annotated[
    bool,
    typer.Option(
        "--fill-missing", help="Take a column that is lacking for missing values."
    ),
]
PAUSE = 10.0  # seconds between two lines where there is no terminal


@contextmanager
def watching(quiet: str = "") -> Iterator[Progress]:
    """Show what is being done on the standard error; gives the function to tell.

    `quiet` is said when the user interrupts.
    """
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    last = time.monotonic()
    try:
        with bars:
            task = bars.add_task("starting", total=None, amount="")

            def tell(what: str, part: float) -> None:
                nonlocal last
                amount = f"{part:.0%}" if part <= 1 else f"{part:,.0f} rows"
                total = 1.0 if part <= 1 else None
                done = part if part <= 1 else 0
                bars.update(
                    task, description=what, total=total, completed=done, amount=amount
                )
                if not console.is_terminal and time.monotonic() - last > PAUSE:
                    console.out(f"{what}: {amount}", highlight=False)
                    last = time.monotonic()

            yield tell
    except KeyboardInterrupt:
        typer.echo(f"cirm: interrupted; {quiet}", err=True)
        raise typer.Exit(130) from None


def one_thread() -> None:
    """Compute on one thread, so that digits do not depend on the number of cores.

    Small networks are slower on several, on a busy machine many times so; reading,
    predicting and writing have a thread each.
    """
    import torch

    torch.set_num_threads(1)


def say(*lines: str) -> None:
    """Print lines for the reader on the standard error."""
    for line in lines:
        typer.echo(line, err=True)


def finish(
    content: Mapping[str, Any], as_json: bool, report: Path | None, page: str = ""
) -> None:
    """Print the content as JSON if it is wanted so, and write the page."""
    from cirm.records import write_text

    if as_json:
        typer.echo(json.dumps(content, indent=2))
    if report is not None:
        write_text(report, page)
        say(f"Report: {report.resolve()}")


def command() -> str:
    """The command as it was given."""
    import shlex
    import sys

    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def check_report(path: Path | None) -> None:
    """Refuse early a page that could not be written."""
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--report: it must end in .html; got {str(path)!r}")
    if path is not None and path.is_dir():
        raise ValueError(f"--report: it must be a file; got folder {str(path)!r}")


def check_folder(path: Path, option: str) -> None:
    """Refuse early a file that could not be written."""
    if path.is_dir():
        raise ValueError(f"{option}: it must be a file; got folder {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(
            f"{option}: its folder must exist; got {str(path.parent)!r}, which does not"
        )


def open_folder(path: Path) -> None:
    """Make the folder of results, before any work goes into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ValueError(
            f"--out: it must be a folder or become one; got {str(path)!r}: {why}"
        ) from None
