"""`cirm predict`: a model's answers to new rows."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import shared
from cirm.cli.shared import Device, FillMissing, Json, ModelFile, Report

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}


def predict(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, TSV, Parquet or NPZ file, or a folder of images.",
            show_default=False,
        ),
    ],
    model: ModelFile,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The table of predictions, .csv, .tsv or .parquet.",
            show_default="the standard output",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Column to keep beside ids; repeat.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="A column for every class.")
    ] = False,
    fill_missing: FillMissing = False,
    device: Device = "cpu",
    as_json: Json = False,
    report: Report = None,
) -> None:
    """Predict new rows: one row each, in order, with the columns that identify it.

    For classes: prediction, probability, uncertainty. For values: prediction, the
    ends of a 90 % interval (low, high), uncertainty. The uncertainty is the standard
    deviation over the learner's networks: draws from a posterior, or the members of
    cirm; it is empty if the learner has one network.
    """
    from cirm.cli.fit import checked_device
    from cirm.data.prefetch import prefetch
    from cirm.data.sources import open_sources
    from cirm.model.file import load
    from cirm.model.predict import predict_chunks
    from cirm.report.model import prediction_page

    shared.check_report(report)
    shared.one_thread()
    if out is not None:
        check_out(out)
    if as_json and out is None:
        raise ValueError("--json: --out must name the table of predictions; got none")
    loaded = load(model, device=checked_device(device))
    (source,) = open_sources(data, loaded.schema.treatment.shape)
    tally = Tally()
    said: list[str] = []
    with shared.watching("no predictions were written") as progress:
        frames = predict_chunks(
            loaded, source, keep or [], probabilities, fill_missing, progress, said
        )
        write((tally.counted(frame) for frame in prefetch(frames)), out)
    content = {"model": str(model), "data": str(data), **tally.summary()}
    content["notes"] = list(dict.fromkeys(said))
    shared.say(*(f"note: {text}" for text in content["notes"]))
    if out is not None:
        shared.say(f"Wrote {tally.rows:,} predictions to {out}")
    page = prediction_page(content, shared.command()) if report else ""
    shared.finish(content, as_json, report, page)


class Tally:
    """Counts of what was predicted."""

    def __init__(self) -> None:
        self.rows = 0
        self.sums: dict[str, float] = {}
        self.labels: dict[str, int] = {}

    def counted(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The same table, counted."""
        self.rows += len(frame)
        for name in ("probability", "uncertainty", "low", "high"):
            if name in frame and frame[name].notna().all():
                own = float(frame[name].sum())
                self.sums[name] = self.sums.get(name, 0.0) + own
        if "probability" in frame:
            for label, count in frame["prediction"].value_counts().items():
                self.labels[str(label)] = self.labels.get(str(label), 0) + int(count)
        else:
            own = float(frame["prediction"].sum())
            self.sums["prediction"] = self.sums.get("prediction", 0.0) + own
        return frame

    def summary(self) -> dict[str, Any]:
        """Number of rows, of each label, and means."""
        means = {name: total / self.rows for name, total in self.sums.items()}
        return {"rows": self.rows, "predictions": self.labels, "means": means}


def check_out(path: Path) -> None:
    """Refuse early a table that could not be written."""
    known = [*SEPARATORS, ".parquet"]
    if path.suffix.lower() not in known:
        raise ValueError(
            f"--out: its name must end in {', '.join(known)}; got {str(path)!r}"
        )
    shared.check_folder(path, "--out")


def write(frames: Iterator[pd.DataFrame], path: Path | None) -> None:
    """Write tables one after another, at once or not at all."""
    import pandas as pd

    if path is None:
        _as_text(frames, sys.stdout, ",")
    elif path.suffix.lower() == ".parquet":
        with replaced(path) as temporary:
            pd.concat(list(frames), ignore_index=True).to_parquet(temporary)
    else:
        with (
            replaced(path) as temporary,
            temporary.open("w", encoding="utf-8", newline="") as file,
        ):
            _as_text(frames, file, SEPARATORS[path.suffix.lower()])


def _as_text(frames: Iterator[pd.DataFrame], file: IO[str], separator: str) -> None:
    from cirm.model.csv_writer import format_csv

    for place, frame in enumerate(frames):
        file.write(format_csv(frame, separator, header=place == 0))


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of another when all went well."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
