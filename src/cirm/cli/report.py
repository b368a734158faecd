"""`cirm report`: tables and pages from the records of reproductions."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cirm.report.findings import Part

KINDS = (".md", ".tex", ".html")


def report(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of tables, with records.json.")
    ],
    out: Annotated[Path, typer.Option(help="The file: .md, .tex or .html.")] = Path(
        "results.md"
    ),
) -> None:
    """Make tables or a page anew from the records of `cirm reproduce`.

    Nothing is run, and no data set is needed.
    """
    from cirm.records import write_text

    if out.suffix not in KINDS:
        raise ValueError(
            f"{out}: the name must end with one of {', '.join(KINDS)}; "
            f"got {out.suffix!r}"
        )
    parts = {folder: recorded(folder) for folder in folders}
    write_text(out, document(parts, out))
    typer.echo(f"Wrote {out.resolve()}")


def recorded(folder: Path) -> Part:
    """What the records of a folder say of the experiment it is named after."""
    from cirm.cli.published import part_of, seeds_in
    from cirm.paper import get_experiment
    from cirm.paper.reproduction import explain_supply
    from cirm.runs.archive import NAME, load_archive

    if not (folder / NAME).exists():
        raise FileNotFoundError(f"{folder}: it must hold {NAME}; got none")
    one = get_experiment(name_of(folder))
    archive = load_archive(folder)
    trials = [(row.name, trial) for row in one.rows for trial in row.trials]
    at_hand = {trial.source for _, trial in trials if archive.of(trial.identity)}
    notes = {
        (name, trial.label): not_run(
            "" if trial.source in at_hand else explain_supply(trial)
        )
        for name, trial in trials
        if not archive.of(trial.identity)
    }
    return part_of(one, archive, seeds_in(archive), notes)


def not_run(way: str) -> str:
    """Why there is no number; the same on every machine, whatever its cache holds."""
    return f"not run (the images come by {way})" if way else "not run"


def name_of(folder: Path) -> str:
    """The experiment of a folder: as its summary says, or else as it is called."""
    path = folder / "summary.json"
    if not path.exists():
        return folder.resolve().name
    return str(json.loads(path.read_text("utf-8"))["experiment"])


def document(parts: dict[Path, Part], out: Path) -> str:
    """The parts as Markdown, LaTeX or HTML, as the file's name says."""
    from cirm.cli import published
    from cirm.report.latex import latex
    from cirm.report.reproduction import reproduction_page
    from cirm.report.results import results

    found = list(parts.values())
    if out.suffix == ".tex":
        return "\n".join(latex(part.summary) for part in found)
    claims = published.together(found)["claims"]
    if out.suffix == ".html":
        return reproduction_page("Results", found, claims)
    images = {
        str(part.summary["experiment"]): [
            (data.title, os.path.relpath(path, out.parent))
            for data in part.data
            if (path := folder / published.sweep_name(data.title)).exists()
        ]
        for folder, part in parts.items()
    }
    names = " ".join(map(str, parts))
    return results(found, claims, images, f"cirm report {names} --out {out}")
