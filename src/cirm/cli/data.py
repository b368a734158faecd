"""`cirm data`: get real images, see what is in the cache, look at coloured samples."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cirm.data.image_catalog import Source

app = typer.Typer(
    help="Get real images, see what is in the cache, look at coloured samples.",
    no_args_is_help=True,
)


@app.command()
def fetch(
    names: Annotated[
        list[str],
        typer.Argument(help="mnist, fashion-mnist, kmnist, emnist-letters."),
    ],
) -> None:
    """Download data sets, verify them, and keep them in the cache.

    One that fails does not stop the others.
    """
    from cirm.data.image_catalog import get_image_set

    sources = [get_image_set(name) for name in names]
    failures: list[ValueError | OSError] = []
    for source in sources:
        try:
            path = _fetched(source)
        except (ValueError, OSError) as error:
            failures.append(error)
        else:
            _say_where(source, path)
    for failure in failures[:-1]:
        typer.echo(f"cirm: {failure}", err=True)
    if failures:
        raise failures[-1]  # `main` prints it like the others, and exits


@app.command(name="import")
def import_(
    name: Annotated[str, typer.Argument(help="The data set that the files are.")],
    folder: Annotated[
        Path, typer.Argument(help="A folder with its four IDX files, plain or .gz.")
    ],
) -> None:
    """Verify a data set's four IDX files and keep them in the cache."""
    from cirm.data import cache
    from cirm.data import image_catalog as sources

    source = sources.get_image_set(name)
    _say_where(source, cache.import_folder(source, folder))


@app.command(name="list")
def list_() -> None:
    """Show the data sets, their licences, and which are in the cache."""
    from rich.console import Console
    from rich.table import Table

    from cirm.data import cache
    from cirm.data.image_catalog import SOURCES

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "train", "test", "licence", "origin", "cache"):
        side: Literal["left", "right"] = "right" if title.startswith("t") else "left"
        table.add_column(title, justify=side, no_wrap=True)
    table.add_row("digits", "1,438", "359", "CC BY 4.0", "UCI", "built in")
    for source in SOURCES.values():
        train, test = (f"{count:,}" for count in source.counts)
        cached = _cached(cache.folder(source.name))
        table.add_row(source.name, train, test, source.licence, source.origin, cached)
    Console().print(table)
    typer.echo(f"\nThe cache is {cache.root()}")


@app.command()
def show(
    source: Annotated[
        str, typer.Option(help="digits, a data set's name, or a folder.")
    ] = "digits",
    scheme: Annotated[
        str | None,
        typer.Option(help="b01, b11 or gray; b01 and b11 if not given."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another setting of the data set, name=value."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Whose draw is shown.")] = 0,
    out: Annotated[Path, typer.Option(help="The figure: .png, .pdf or .svg.")] = Path(
        "samples.png"
    ),
) -> None:
    """Draw coloured samples: training environments above, the unseen one below."""
    from cirm import settings
    from cirm.data.colored import Colored
    from cirm.paper.example_images import make_panel, write_examples

    texts = settings.parse_assignments(setting or [], "--set")
    panels = []
    for each in [scheme] if scheme else ["b01", "b11"]:
        chosen = {**texts, "source": source, "scheme": each}
        dataset = settings.replace_settings(Colored(), chosen, "colored")
        panels.append(make_panel(dataset, seed))
    write_examples(panels, out)
    typer.echo(f"Wrote {out.resolve()}")


class Download:
    """A bar of a rich progress display, driven by pooch."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(name, total=None)

    @property
    def total(self) -> int:
        """Bytes in all."""
        return int(self._progress.tasks[self._task].total or 0)

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, amount: int) -> None:
        """So many bytes more have come."""
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        """Start again from nothing."""
        self._progress.reset(self._task, total=self.total or None)

    def close(self) -> None:
        """The download has ended."""
        self._progress.stop_task(self._task)


def _fetched(source: Source) -> Path:
    """The data set's folder in the cache; a terminal shows each download's bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    from cirm.data import downloads as files

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        return files.fetch(
            source,
            bars=functools.partial(Download, progress),
            say=functools.partial(console.out, highlight=False),
        )


def _say_where(source: Source, path: Path) -> None:
    train, test = source.counts
    checked = "verified by SHA-256"
    if source.unverified:
        checked = f"not verified by hash: {', '.join(source.unverified)}"
    typer.echo(f"{source.name}: {train:,} + {test:,} images in {path}; {checked}")


def _cached(path: Path) -> str:
    if not path.is_dir():
        return "no"
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return f"{size / 1e6:.0f} MB"
