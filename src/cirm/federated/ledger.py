"""What went between the server and the sites, in bytes, exchange by exchange."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cirm.records import write_text


@dataclass
class Entry:
    """One exchange: what each site was sent and sent back, in bytes, by array.

    `numbers` are values that sites sent to be watched, eight bytes each; `absent` were
    not there, `late` had not answered when the exchange closed, `refused` sent what
    could not be used, each with the reason; `unused` are the bytes of that.
    """

    exchange: int
    kind: str
    stage: int
    steps: tuple[int, int]
    down: dict[str, dict[str, int]] = field(default_factory=dict)
    up: dict[str, dict[str, int]] = field(default_factory=dict)
    numbers: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    unused: dict[str, dict[str, int]] = field(default_factory=dict)

    def told(self) -> str:
        """The exchange in one line."""
        up = sum(size for arrays in self.up.values() for size in arrays.values())
        words = [f"stage {self.stage}, step {self.steps[1]}, {self.kind}:"]
        words.append(f"{len(self.up)} sites sent {up:,} bytes")
        for name in self.absent:
            words.append(f"; {name} was absent")
        for name in self.late:
            words.append(f"; {name} is late")
        for name, reason in self.refused.items():
            words.append(f"; refused {name}: {reason}")
        return " ".join(words).replace(" ;", ";")


class Ledger:
    """The exchanges of a study, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text("utf-8").splitlines() if path.exists() else []

    def open(self, kind: str, stage: int, steps: tuple[int, int]) -> Entry:
        """A new exchange, the next number."""
        return Entry(len(self.lines), kind, stage, steps)

    def close(self, entry: Entry) -> None:
        """Write down an exchange that is over."""
        self.lines.append(json.dumps(vars(entry), sort_keys=True))
        write_text(self.path, "".join(line + "\n" for line in self.lines))


def read(path: Path) -> list[dict[str, Any]]:
    """The exchanges of a ledger."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def total(path: Path) -> dict[str, int]:
    """Bytes that each site sent in all: arrays, and eight for each number.

    What was refused had left the site too, and counts.
    """
    sums: dict[str, int] = {}
    for entry in read(path):
        sent = [*entry["up"].items(), *entry.get("unused", {}).items()]
        for name, arrays in sent:
            values = entry["numbers"].get(name, {}).values()
            size = sum(arrays.values()) + 8 * sum(map(len, values))
            sums[name] = sums.get(name, 0) + size
    return sums
