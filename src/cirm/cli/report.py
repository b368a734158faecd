"""`cirm report`: tables and pages from the records of `cirm reproduce`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.output_files import check_output_paths_before_work

if TYPE_CHECKING:
    from cirm.report.paper_page import ExperimentReport

KINDS = (".md", ".tex", ".html")


EXAMPLES = options.format_examples_for_command_help(
    "cirm report reproduction/table1 --out table1.md",
    "cirm report reproduction/table1 reproduction/table2 --out results.tex",
)


def write_paper_report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders written by `cirm reproduce`; each contains records.json.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="File to write: .md, .tex or .html.")
    ] = Path("results.md"),
    overwrite: options.Overwrite = False,
) -> None:
    """Write tables or a page from the records of `cirm reproduce`.

    Nothing is trained, and no data set is needed.
    """
    from cirm.cli.progress import show_progress_of_single_step

    if out.suffix not in KINDS:
        raise ValueError(
            f"--out: {str(out)!r} does not have a known file extension. Use a name "
            f"that ends in one of {', '.join(KINDS)}."
        )
    check_output_paths_before_work({"--out": out}, overwrite=overwrite)
    with show_progress_of_single_step("writing the report"):
        from cirm.paper.reproduction import read_experiment_summary
        from cirm.records import write_text_atomically

        parts = {folder: read_experiment_summary(folder) for folder in folders}
        write_text_atomically(out, render_experiments_by_file_extension(parts, out))
    typer.echo(f"Wrote {out.resolve()}")


def render_experiments_by_file_extension(
    report_by_folder: dict[Path, ExperimentReport], out: Path
) -> str:
    """Return the parts as Markdown, LaTeX or HTML, according to the file's name."""
    from cirm.paper.pages import get_file_name_of_sweep_figure
    from cirm.paper.reproduction import combine_experiment_summaries
    from cirm.report.paper_page import (
        build_paper_page,
        render_paper_tables_as_latex,
        render_results_document,
    )

    results = list(report_by_folder.values())
    if out.suffix == ".tex":
        return "\n".join(render_paper_tables_as_latex(part.summary) for part in results)
    claims = combine_experiment_summaries(results)["claims"]
    if out.suffix == ".html":
        return build_paper_page("Results", results, claims)
    images = {
        str(part.summary["experiment"]): [
            (data.title, os.path.relpath(path, out.parent))
            for data in part.data
            if (path := folder / get_file_name_of_sweep_figure(data.title)).exists()
        ]
        for folder, part in report_by_folder.items()
    }
    names = " ".join(map(str, report_by_folder))
    command = f"cirm report {names} --out {out}"
    return render_results_document(results, claims, images, command)
