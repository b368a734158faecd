"""`cirm report`: tables and pages from the records of reproductions."""

from __future__ import annotations

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
    from cirm.paper.reproduction import read_experiment
    from cirm.records import write_text

    if out.suffix not in KINDS:
        raise ValueError(
            f"{out}: the name must end with one of {', '.join(KINDS)}; "
            f"got {out.suffix!r}"
        )
    parts = {folder: read_experiment(folder) for folder in folders}
    write_text(out, document(parts, out))
    typer.echo(f"Wrote {out.resolve()}")


def document(parts: dict[Path, Part], out: Path) -> str:
    """The parts as Markdown, LaTeX or HTML, as the file's name says."""
    from cirm.paper.pages import name_sweep_file
    from cirm.paper.reproduction import combine_summaries
    from cirm.report.latex import latex
    from cirm.report.reproduction import reproduction_page
    from cirm.report.results import results

    found = list(parts.values())
    if out.suffix == ".tex":
        return "\n".join(latex(part.summary) for part in found)
    claims = combine_summaries(found)["claims"]
    if out.suffix == ".html":
        return reproduction_page("Results", found, claims)
    images = {
        str(part.summary["experiment"]): [
            (data.title, os.path.relpath(path, out.parent))
            for data in part.data
            if (path := folder / name_sweep_file(data.title)).exists()
        ]
        for folder, part in parts.items()
    }
    names = " ".join(map(str, parts))
    return results(found, claims, images, f"cirm report {names} --out {out}")
