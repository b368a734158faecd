"""Results as lines of JSON, which are all that reports read."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class ScoreRecord:
    """A score of a replica on an environment after a stage.

    Attributes:
        learner: Label of the learner.
        order: Order in which the environments arrived.
        seed: Seed of the replica.
        stage: Number of the stage after which the score was computed, from 0.
        environment: Name of the environment.
        split: "train", "test", "sweep", "truth", "diagnostic", "measures",
            "untrained", "unstable" or "selection".
        metric: Name of the score, such as "accuracy", which is in percent.
        value: The score.
        position: Position of a sweep environment on its axis.
    """

    kind: ClassVar[str] = "score"
    learner: str
    order: str
    seed: int
    stage: int
    environment: str
    split: str
    metric: str
    value: float
    position: float | None = None


@dataclass(frozen=True)
class AdaptedScoreRecord:
    """A score in an unseen environment after adapting to some of its unlabelled rows.

    It is no `ScoreRecord`, so that nothing that chooses settings by scores can meet it.

    Attributes:
        learner: Label of the learner.
        order: Order in which the environments arrived.
        seed: Seed of the replica.
        rows: Number of unlabelled rows that the learner adapted to, or "all".
        environment: Name of the unseen environment.
        split: "test" or "sweep".
        metric: Name of the score, such as "accuracy", which is in percent.
        value: The score on all rows of the environment.
        position: Position of a sweep environment on its axis.
    """

    kind: ClassVar[str] = "adapted"
    learner: str
    order: str
    seed: int
    rows: str
    environment: str
    split: str
    metric: str
    value: float
    position: float | None = None


@dataclass(frozen=True)
class TrainingCurveRecord:
    """A number of a replica's training, such as a loss, a penalty or a residual.

    Attributes:
        learner: Label of the learner.
        order: Order in which the environments arrived.
        seed: Seed of the replica.
        stage: Number of the stage, from 0.
        step: Number of the training step.
        metric: Name of the number.
        value: The number.
    """

    kind: ClassVar[str] = "curve"
    learner: str
    order: str
    seed: int
    stage: int
    step: int
    metric: str
    value: float


@dataclass(frozen=True)
class RunRecord:
    """The settings of a run, what it stores of the past, and how long it took.

    Attributes:
        learner: Label of the learner.
        order: Order in which the environments arrived.
        seeds: Seeds of the replicas.
        settings: Settings of the learner.
        dataset: Settings of the data set.
        selection: How the settings were chosen.
        memory: Counts of what the final state stores (`cirm.memory`).
        seconds: Duration of the run.
    """

    kind: ClassVar[str] = "run"
    learner: str
    order: str
    seeds: tuple[int, ...]
    settings: dict[str, Any]
    dataset: dict[str, Any]
    selection: str
    memory: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


Record = ScoreRecord | AdaptedScoreRecord | TrainingCurveRecord | RunRecord
KINDS: dict[str, type[Record]] = {
    kind.kind: kind
    for kind in (ScoreRecord, AdaptedScoreRecord, TrainingCurveRecord, RunRecord)
}


def format_record_as_json(record: Record) -> str:
    """Return a record as one line of JSON."""
    return json.dumps({"kind": record.kind, **asdict(record)}, sort_keys=True)


def parse_record(text: str) -> Record:
    """Return the record of a line."""
    try:
        row = json.loads(text)
        kind = KINDS[row.pop("kind")]
        if "seeds" in row:
            row["seeds"] = tuple(row["seeds"])
        return kind(**row)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"the line is not a JSON record of one of the kinds {', '.join(KINDS)}: "
            f"{text[:100]!r}. Remove the line, or restore the file from a backup."
        ) from None


def read_records(path: Path) -> list[Record]:
    """Read the records of a file; an error names the row of a damaged line."""
    records = []
    for row, text in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if text.strip():
            try:
                records.append(parse_record(text))
            except ValueError as error:
                raise ValueError(f"{path}, row {row}: {error}") from None
    return records


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records to a file, which is replaced as a whole or not at all."""
    write_text_atomically(
        path, "".join(format_record_as_json(record) + "\n" for record in records)
    )


def do_records_share_settings(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> bool:
    """Return whether settings are the same where both have a value."""
    return all(
        json.dumps(first[n]) == json.dumps(second[n]) for n in first.keys() & second
    )


def write_text_atomically(path: Path, text: str) -> None:
    """Write a text file, which is replaced as a whole or not at all."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Write a file, which is replaced as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files_atomically({path: content})


def write_files_atomically(contents: Mapping[Path, bytes]) -> None:
    """Write files; all of them are replaced, in this order, or none."""
    with open_temporary_files_to_replace(*contents) as temporaries:
        for temporary, (path, content) in zip(
            temporaries, contents.items(), strict=True
        ):
            with add_file_name_to_errors(path), temporary.open("xb") as file:
                file.write(content)


@contextmanager
def open_temporary_files_to_replace(*paths: Path) -> Iterator[list[Path]]:
    """Yield names of temporary files that replace files if no error occurs.

    A symbolic link stays one: the file that it names is replaced.
    """
    paths = tuple(Path(os.path.realpath(path)) for path in paths)
    # Not mkstemp, so that the files get the permissions of any new file.
    temporaries = [p.parent / f".{p.name}.{secrets.token_hex(8)}" for p in paths]
    try:
        yield temporaries
        for temporary, path in zip(temporaries, paths, strict=True):
            # Else a power failure could leave an empty file under the new name.
            with add_file_name_to_errors(path), temporary.open("r+b") as file:
                os.fsync(file.fileno())
        for temporary, path in zip(temporaries, paths, strict=True):
            with add_file_name_to_errors(path):
                os.replace(temporary, path)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


@contextmanager
def add_file_name_to_errors(path: Path) -> Iterator[None]:
    """Name the file in errors that occur while it is written, such as a full disk."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "Free some space" if is_full else "Check the folder's permissions"
        raise OSError(
            f"The file {str(path)!r} cannot be written: {reason}. {advice}, or choose "
            "another folder."
        ) from error
