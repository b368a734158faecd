"""Results as plain rows of JSON lines; the only thing reports read."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True)
class Score:
    """One number: how a replica does on an environment after a stage.

    `split` is train, test or sweep, truth, diagnostic or selection; `position` is a
    sweep environment's place on its axis. Accuracies are in percent.
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
class Curve:
    """One number of a replica's training: a loss, a penalty, a residual."""

    kind: ClassVar[str] = "curve"
    learner: str
    order: str
    seed: int
    stage: int
    step: int
    metric: str
    value: float


@dataclass(frozen=True)
class Run:
    """What a learner was run with, what it keeps of the past, how long it took.

    `memory` counts what the final state holds, by kind; see cirm.memory.
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


Record = Score | Curve | Run
KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in (Score, Curve, Run)}


def format_record(record: Record) -> str:
    """A record as one line of JSON."""
    return json.dumps({"kind": record.kind, **asdict(record)}, sort_keys=True)


def parse_record(text: str) -> Record:
    """The record that a line holds."""
    try:
        row = json.loads(text)
        kind = KINDS[row.pop("kind")]
        if "seeds" in row:
            row["seeds"] = tuple(row["seeds"])
        return kind(**row)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(
            f"records: a line must be a whole {', '.join(KINDS)} as JSON; got {text!r}"
        ) from None


def read_records(path: Path) -> list[Record]:
    """The records of a file; a line that holds none is named with its row."""
    records = []
    for row, text in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if text.strip():
            try:
                records.append(parse_record(text))
            except ValueError as error:
                raise ValueError(f"{path}, row {row}: {error}") from None
    return records


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replace a file by these records, at once or not at all."""
    write_text(path, "".join(format_record(record) + "\n" for record in records))


def has_same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether settings are the same; one that was not there yet had its default."""
    return all(json.dumps(one[n]) == json.dumps(other[n]) for n in one.keys() & other)


def write_text(path: Path, text: str) -> None:
    """Replace a text file at once or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file at once or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary, temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file that replaces a file if no error occurs."""
    # Opened by name, not by mkstemp, so that the file gets the user's own permissions.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
