"""`cirm predict`: predictions for new rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.options import (
    Abstain,
    AcceptUnits,
    Device,
    FillMissing,
    Json,
    KeyFile,
    Level,
    ModelEncoder,
    ModelFile,
    ModelLearner,
    Overwrite,
    PredictionSets,
    ReportFile,
    ThresholdRuleText,
)
from cirm.cli.output_files import check_output_paths_before_work

if TYPE_CHECKING:
    import pandas as pd

    from cirm.model.facts import ModelMetadata

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
EXAMPLES = options.format_examples_for_command_help(
    "cirm predict clinic-c.csv --model triage.cirm --out predictions.csv",
    "cirm predict clinic-c.csv --model triage.cirm --probabilities --keep age",
    "cirm predict clinic-c.csv --model triage.cirm --adapt --out adapted.csv",
    "cirm predict clinic-c.csv --model triage.cirm --sets --abstain 0.1",
)


def predict_target_of_file_rows(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, TSV, Parquet or NPZ file, a folder of images, or - for CSV from "
            "standard input.",
            show_default=False,
        ),
    ],
    model: ModelFile,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write the predictions to: .csv, .tsv or .parquet; - for "
            "standard output.",
            show_default="standard output",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of the data to copy to the predictions; can be given "
            "several times. Columns that identify rows are always copied.",
            show_default=False,
        ),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option("--probabilities", help="Add the probability of every class."),
    ] = False,
    sets: PredictionSets = False,
    level: Level = 0.9,
    abstain: Abstain = None,
    threshold: ThresholdRuleText = "",
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="First adapt the model to these rows, as `cirm adapt` does. The model "
            "file is not changed.",
        ),
    ] = False,
    accept_units: AcceptUnits = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw",
            help="Write text unchanged. Otherwise CSV and TSV files get an "
            "apostrophe before text that a spreadsheet would run as a formula.",
        ),
    ] = False,
    fill_missing: FillMissing = False,
    device: Device = "cpu",
    learner: ModelLearner = None,
    encoder: ModelEncoder = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
    overwrite: Overwrite = False,
) -> None:
    """Predict the target of new rows, in the order of the data.

    Classification gives the columns prediction, probability and uncertainty;
    regression gives prediction, the bounds low and high of an interval for a new place,
    and uncertainty. The uncertainty is the standard deviation over the learner's
    networks: samples of a posterior, or ensemble members. It is empty for learners with
    a single network.
    """
    from cirm.cli.output import (
        format_command_line_as_typed,
        print_lines_to_stderr,
        print_notes_once,
        print_result_json_and_page_path,
    )
    from cirm.cli.progress import show_progress_of_steps
    from cirm.records import add_file_name_to_errors, open_temporary_files_to_replace

    out = None if out == options.STANDARD else out
    check_prediction_file_format(out)
    check_output_paths_before_work(
        {"--out": out, "--report": report}, [data, model], overwrite
    )
    if as_json and out is None:
        raise ValueError(
            "--json: the summary and the predictions cannot both go to standard "
            "output. Add --out FILE for the predictions."
        )
    summary = PredictionCounts()
    notes: list[str] = []
    secret = options.read_signing_key(key)
    with show_progress_of_steps("no predictions were written") as progress:
        from cirm.data.encoded_chunks import prefetch_items_in_thread
        from cirm.data.open_sources import open_sources_for_model
        from cirm.model.coverage import describe_prediction_uncertainty
        from cirm.model.csv_writer import escape_spreadsheet_table_cells
        from cirm.model.facts import (
            describe_adaptation_of_model,
            describe_decision_threshold,
            set_decision_threshold,
        )
        from cirm.model.predict import predict_source_in_chunks

        loaded = load_model_for_prediction(
            model, device, learner, encoder, secret, adapt
        )
        (rows,) = open_sources_for_model(
            options.open_standard_input_for_dash([data]), loaded.schema
        )
        if adapt:
            from cirm.model.adapt import adapt as adapt_model
            from cirm.model.model import Model

            assert isinstance(loaded, Model)

            loaded = adapt_model(
                loaded,
                rows,
                fill_missing=fill_missing,
                accept_units=accept_units,
                progress=progress,
            )
        loaded = set_decision_threshold(loaded, threshold)
        frames = predict_source_in_chunks(
            loaded,
            rows,
            keep or [],
            probabilities,
            fill_missing,
            progress,
            notes,
            sets=sets,
            level=level,
            abstain=abstain,
        )
        tables = (
            summary.add_predictions(frame) for frame in prefetch_items_in_thread(frames)
        )
        if not (raw or (out and out.suffix.lower() == ".parquet")):
            tables = (escape_spreadsheet_table_cells(table) for table in tables)
        files = [path for path in (out, report) if path is not None]
        closed: BrokenPipeError | None = None
        with open_temporary_files_to_replace(*files) as temporaries:
            try:
                write_predictions(tables, out, temporaries[0] if out else None)
            except BrokenPipeError as error:
                if report is None:
                    raise
                closed = error
                for _ in tables:  # the page counts all rows
                    pass
            adaptation = describe_adaptation_of_model(loaded)
            notes += adaptation["notes"] if adaptation and adapt else []
            content = {"model": str(model), "data": str(data), **summary.as_dict()}
            content |= describe_prediction_uncertainty(
                loaded, sets, level, abstain, summary.rows, summary.abstained
            )
            content["threshold"] = describe_decision_threshold(loaded)
            content |= {"adaptation": adaptation, "notes": list(dict.fromkeys(notes))}
            if report is not None:
                from cirm.report.model_page import build_prediction_page

                page = build_prediction_page(content, format_command_line_as_typed())
                with add_file_name_to_errors(report):
                    temporaries[-1].write_text(page, "utf-8")
        if closed:
            raise closed
    if adaptation:
        from cirm.report.model_tables import summarise_adaptation

        text = "Before predicting: " if adapt else ""
        print_lines_to_stderr(f"{text}{summarise_adaptation(adaptation)}")
    if content["threshold"]:
        print_lines_to_stderr(content["threshold"]["sentence"])
    print_notes_once(content["notes"])
    print_lines_to_stderr(*content["uncertainty"])
    if out is not None:
        print_lines_to_stderr(f"Wrote {summary.rows:,} predictions to {out}")
    print_result_json_and_page_path(content, as_json, report)


def load_model_for_prediction(
    path: Path,
    device: str,
    learner: str | None,
    encoder: str | None,
    key: bytes,
    will_adapt: bool,
) -> ModelMetadata:
    """Load a model to predict with, by NumPy alone where the model allows."""
    if device == "cpu" and learner is None and encoder is None and not will_adapt:
        from cirm.model.numpy_model import load_numpy_model

        if (found := load_numpy_model(path, key)) is not None:
            return found
    return options.load_model(path, device, learner, key, encoder)


class PredictionCounts:
    """Counts and means over the predictions."""

    def __init__(self) -> None:
        self.rows = self.abstained = 0
        self.sums: dict[str, float] = {}
        self.labels: dict[str, int] = {}

    def add_predictions(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Count the rows of a table, and return it."""
        self.rows += len(frame)
        self.abstained += int(frame["prediction"].isna().sum())
        numbers = ["probability", "uncertainty", "low", "high"]
        if "probability" in frame:
            for label, count in frame["prediction"].value_counts().items():
                self.labels[str(label)] = self.labels.get(str(label), 0) + int(count)
        else:
            numbers.append("prediction")
        for name in numbers:
            if name in frame and frame[name].notna().all():
                total = self.sums.get(name, 0.0)
                self.sums[name] = total + float(frame[name].sum())
        return frame

    def as_dict(self) -> dict[str, Any]:
        """Return the number of rows, the count of each class, and the means."""
        means = {name: total / self.rows for name, total in self.sums.items()}
        return {"rows": self.rows, "predictions": self.labels, "means": means}


def check_prediction_file_format(path: Path | None) -> None:
    """Raise an error before any work if the format of the predictions is unknown."""
    endings = [*SEPARATORS, ".parquet"]
    if path is not None and path.suffix.lower() not in endings:
        raise ValueError(
            f"--out: {str(path)!r} does not have a known file extension. Use a name "
            f"that ends in one of {', '.join(endings)}."
        )


def write_predictions(
    frames: Iterator[pd.DataFrame], path: Path | None, temporary: Path | None
) -> None:
    """Write tables one after another, for the file `path` or to standard output."""
    import pandas as pd

    from cirm.records import add_file_name_to_errors

    if path is None or temporary is None:
        _write_frames_as_csv(frames, sys.stdout, ",")
    elif path.suffix.lower() == ".parquet":
        table = pd.concat(list(frames), ignore_index=True)
        with add_file_name_to_errors(path):
            table.to_parquet(temporary)
    else:
        file = temporary.open("w", encoding="utf-8", newline="")
        try:
            _write_frames_as_csv(frames, file, SEPARATORS[path.suffix.lower()], path)
        finally:
            with add_file_name_to_errors(
                path
            ):  # what could not be written is tried once more
                file.close()


def _write_frames_as_csv(
    frames: Iterator[pd.DataFrame],
    file: IO[str],
    separator: str,
    path: Path | None = None,
) -> None:
    from cirm.model.csv_writer import format_table_as_csv
    from cirm.records import add_file_name_to_errors

    for index, frame in enumerate(frames):
        text = format_table_as_csv(frame, separator, with_header=index == 0)
        # Errors of reading the next rows must not be taken for errors of writing.
        with add_file_name_to_errors(path) if path else nullcontext():
            file.write(text)
            file.flush()
