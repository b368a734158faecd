"""`cirm evaluate`: how good a model is on rows whose targets are known."""

from __future__ import annotations

from typing import Annotated

import typer

from cirm.cli import options
from cirm.cli.options import (
    Abstain,
    DataFiles,
    Device,
    EnvironmentColumn,
    FillMissing,
    Json,
    KeyFile,
    Level,
    ModelEncoder,
    ModelFile,
    ModelLearner,
    Overwrite,
    ReportFile,
    ThresholdRuleText,
    WeightColumn,
)
from cirm.cli.output_files import check_output_paths_before_work

EXAMPLES = options.format_examples_for_command_help(
    "cirm evaluate clinic-c.csv --model triage.cirm",
    "cirm evaluate clinic-c.csv --model triage.cirm --group smoker --report page.html",
)


def evaluate_model(
    data: DataFiles,
    model: ModelFile,
    environment: EnvironmentColumn = "",
    group: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Also show the scores for each value of this column; can be given "
                "several times."
            ),
            show_default=False,
        ),
    ] = None,
    level: Level = 0.9,
    abstain: Abstain = None,
    threshold: ThresholdRuleText = "",
    weight: WeightColumn = "",
    fill_missing: FillMissing = False,
    device: Device = "cpu",
    learner: ModelLearner = None,
    encoder: ModelEncoder = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Score a model on data with known targets.

    Prints the scores of all rows and of each place, class and group, compares them with
    the scores on arrival at earlier places, and says how many targets lie in the
    prediction sets or intervals.
    """
    from cirm.cli.model_output import print_evaluation_scores
    from cirm.cli.output import (
        format_command_line_as_typed,
        print_result_json_and_page_path,
        write_page,
    )
    from cirm.cli.progress import show_progress_of_steps

    check_output_paths_before_work({"--report": report}, [*data, model], overwrite)
    secret = options.read_signing_key(key)
    with show_progress_of_steps() as progress:
        from cirm.model.evaluate import evaluate as evaluate_model

        scores = evaluate_model(
            options.load_model(model, device, learner, secret, encoder),
            options.open_standard_input_for_dash(data),
            environment=environment,
            groups=group or [],
            level=level,
            abstain=abstain,
            threshold=threshold,
            weight=weight,
            fill_missing=fill_missing,
            progress=progress,
        )
    content = {"model": str(model), "data": [str(path) for path in data], **scores}
    if report:
        from cirm.report.evaluation_page import build_evaluation_page

        page = build_evaluation_page(content, format_command_line_as_typed())
        write_page(report, page)
    if not as_json:
        print_evaluation_scores(content)
    print_result_json_and_page_path(content, as_json, report)
