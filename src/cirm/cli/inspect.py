"""`cirm inspect`: everything that a model file says."""

from __future__ import annotations

from typing import Annotated

import typer

from cirm.cli import options
from cirm.cli.options import Json, KeyFile, ModelLearner, Overwrite, ReportFile
from cirm.cli.output_files import check_output_paths_before_work

EXAMPLES = options.format_examples_for_command_help(
    "cirm inspect triage.cirm",
    "cirm inspect triage.cirm --history",
    "cirm inspect triage.cirm --report triage.html",
)


def inspect_model(
    model: options.ModelArgument,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Show only the history: places with their scores and files, and the "
            "earlier versions that `cirm rollback` can return to.",
        ),
    ] = False,
    learner: ModelLearner = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Show a model's places, scores, stored data and important columns."""
    from cirm.cli.model_output import print_model_description, print_model_history
    from cirm.cli.output import (
        format_command_line_as_typed,
        print_result_json_and_page_path,
        write_page,
    )
    from cirm.cli.progress import show_progress_of_steps

    check_output_paths_before_work({"--report": report}, [model], overwrite)
    secret = options.read_signing_key(key)
    with show_progress_of_steps():
        from cirm.model.explain import describe_model
        from cirm.model.file import load
        from cirm.report.model_page import build_model_page

        content = {
            "model": str(model),
            **describe_model(load(model, learner=learner, key=secret)),
        }
        if report:
            write_page(
                report, build_model_page(content, format_command_line_as_typed())
            )
    if not as_json and history:
        print_model_history(content)
    elif not as_json:
        print_model_description(content)
    elif history:
        names = ("model", "version", "created", "history", "earlier_versions")
        content = {name: content[name] for name in names}
    print_result_json_and_page_path(content, as_json, report)
