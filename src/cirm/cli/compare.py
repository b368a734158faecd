"""`cirm compare`: what differs between two tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.fit import check_task_option
from cirm.cli.options import (
    CategoryColumns,
    IgnoredColumns,
    Json,
    KeyFile,
    ModelLearner,
    Overwrite,
    ReportFile,
    TaskKind,
)
from cirm.cli.output_files import check_output_paths_before_work

EXAMPLES = options.format_examples_for_command_help(
    "cirm compare clinic-a.csv clinic-b.csv --target outcome",
    "cirm compare clinic-a.csv clinic-c.csv --model triage.cirm --report page.html",
)


def compare_tables(
    first: Annotated[
        Path,
        typer.Argument(
            help="CSV, TSV, Parquet or NPZ file with columns, or - for CSV from "
            "standard input.",
            show_default=False,
        ),
    ],
    second: Annotated[
        Path,
        typer.Argument(help="File to compare with the first one.", show_default=False),
    ],
    target: Annotated[
        str,
        typer.Option(
            help=(
                "Column to predict. If both files have it, its base rate and the "
                "relation of each column to it are compared as well."
            ),
            show_default="the target of --model, if given; otherwise none",
        ),
    ] = "",
    model: Annotated[
        Path | None,
        typer.Option(
            help="Model file. Columns are read as the model reads them, and its "
            "predictions for both files are compared.",
            show_default=False,
        ),
    ] = None,
    task: TaskKind = "auto",
    category: CategoryColumns = None,
    ignore: IgnoredColumns = None,
    level: Annotated[
        float,
        typer.Option(
            help=(
                "Significance level: the probability that a change is reported "
                "although nothing has changed."
            )
        ),
    ] = 0.05,
    learner: ModelLearner = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Show how two tables differ: their inputs, base rates and relations to the target.

    Compares the distribution of each input, the base rate of the target, and how each
    column relates to the target. The answer comes first, in one or two
    sentences. Every test is adjusted for the number of tests, and sizes of changes are
    given beside p-values. Whether the relation of a column to the target differs, given
    the other columns, is decided by the test that the learner steady uses between
    places.
    """
    from cirm.cli.output import (
        format_command_line_as_typed,
        print_result_json_and_page_path,
        write_page,
    )
    from cirm.cli.progress import show_progress_of_steps

    inputs = [first, second, *([model] if model else [])]
    check_output_paths_before_work({"--report": report}, inputs, overwrite)
    secret = options.read_signing_key(key)
    with show_progress_of_steps() as progress:
        from cirm.model.compare import compare
        from cirm.model.file import load

        options.limit_torch_to_one_thread()
        found = compare(
            *options.open_standard_input_for_dash([first, second]),
            target=target,
            model=load(model, learner=learner, key=secret) if model else None,
            task=check_task_option(task),
            categories=category or [],
            ignore=ignore or [],
            level=level,
            progress=progress,
        )
    content = {"data": [str(first), str(second)], "model": str(model or ""), **found}
    if report:
        from cirm.report.compare_page import build_table_comparison_page

        write_page(
            report, build_table_comparison_page(content, format_command_line_as_typed())
        )
    if not as_json:
        print_table_comparison(content)
    print_result_json_and_page_path(content, as_json, report)


def print_table_comparison(content: dict[str, Any]) -> None:
    """Print the answer, the tables behind it, and notes."""
    from cirm.cli.output import (
        print_notes_once,
        print_table,
        remove_control_characters_in_values,
    )
    from cirm.report.compare_page import (
        build_table_comparison_tables,
        list_table_comparison_sentences,
    )

    content = remove_control_characters_in_values(content)
    typer.echo(content["answer"])
    for sentence in list_table_comparison_sentences(content):
        typer.echo(f"  {sentence}")
    typer.echo("")
    for table in build_table_comparison_tables(content):
        print_table(table)
    print_notes_once(content["notes"])
