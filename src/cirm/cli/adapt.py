"""`cirm adapt`: a model for a new place, from rows without targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cirm.cli import options
from cirm.cli.options import (
    AcceptUnits,
    Device,
    FillMissing,
    Json,
    KeyFile,
    ModelEncoder,
    ModelFile,
    ModelLearner,
    Overwrite,
    ReportFile,
)
from cirm.cli.output_files import (
    check_output_paths_before_work,
    write_model_file_and_page,
)

EXAMPLES = options.format_examples_for_command_help(
    "cirm adapt clinic-c.csv --model triage.cirm --out triage-at-c.cirm",
    "cirm adapt clinic-c.csv --model triage.cirm --out triage-at-c.cirm --overwrite "
    "--report page.html",
)


def adapt_model_command(
    data: Annotated[
        Path,
        typer.Argument(
            help="Rows of the new place: a CSV, TSV, Parquet or NPZ file, a folder of "
            "images, or - for CSV from standard input. Targets are not needed, "
            "and are not used.",
            show_default=False,
        ),
    ],
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Option(help="File to write the adapted model to.", show_default=False),
    ],
    overwrite: Overwrite = False,
    fill_missing: FillMissing = False,
    accept_units: AcceptUnits = False,
    device: Device = "cpu",
    learner: ModelLearner = None,
    encoder: ModelEncoder = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Adapt a model to a new place, using rows whose targets are unknown.

    What the model found to differ between places is estimated anew from these
    rows. Prints what changed, with intervals, and what was not adapted and why. The
    adapted model is written to a new file; `cirm update` on it continues from the
    unadapted model.
    """
    from cirm.cli.model_output import print_model_adaptation
    from cirm.cli.output import print_lines_to_stderr, print_result_json_and_page_path
    from cirm.cli.progress import show_progress_of_steps

    check_output_paths_before_work(
        {"--out": out, "--report": report}, [data, model], overwrite
    )
    secret = options.read_signing_key(key)
    with show_progress_of_steps(f"no model was written to {out}") as progress:
        from cirm.model.adapt import adapt as adapt_model

        adapted = adapt_model(
            options.load_model(model, device, learner, secret, encoder),
            options.open_standard_input_for_dash([data]),
            fill_missing=fill_missing,
            accept_units=accept_units,
            progress=progress,
        )
        content = write_model_file_and_page(
            adapted, out, report, secret, source=str(model)
        )
    if not as_json:
        print_model_adaptation(content["adaptation"])
    print_result_json_and_page_path(content, as_json, report)
    print_lines_to_stderr(
        f"Wrote the adapted model to {out}",
        f"Next: `cirm predict {data} --model {out}` predicts the targets of these "
        "rows.",
    )
