"""A ledger of all exchanges between the server and the sites, with bytes counted."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cirm.records import write_text_atomically


@dataclass
class MessageExchangeRecord:
    """One exchange: the bytes that each site received and sent, by array.

    `metrics` are numbers that sites send for monitoring, eight bytes each. Sites are
    `absent` if they were offline, `late` if they had not answered when the exchange
    ended, and `refused`, with the reason, if their answer could not be used; the bytes
    of refused answers are in `unused`.
    """

    number: int
    kind: str
    stage: int
    steps: tuple[int, int]
    down: dict[str, dict[str, int]] = field(default_factory=dict)
    up: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    unused: dict[str, dict[str, int]] = field(default_factory=dict)

    def record_offline_site(self, name: str) -> None:
        """Note that a site is offline."""
        if name not in self.absent:
            self.absent.append(name)

    def describe(self) -> str:
        """Describe the exchange in one line."""
        size = sum(size for arrays in self.up.values() for size in arrays.values())
        count = f"{len(self.up)} site{'' if len(self.up) == 1 else 's'}"
        parts = [f"stage {self.stage}, step {self.steps[1]}, {self.kind}: "]
        parts.append(f"{count} sent {size:,} bytes")
        parts += [f"; {name} is absent" for name in self.absent]
        parts += [f"; {name} is late" for name in self.late]
        parts += [f"; refused {name}: {why}" for name, why in self.refused.items()]
        return "".join(parts)


class MessageExchangeLog:
    """The exchanges of a study, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = path.read_text("utf-8").splitlines() if path.exists() else []

    def start_exchange_record(
        self, kind: str, stage: int, steps: tuple[int, int]
    ) -> MessageExchangeRecord:
        """Return a new exchange with the next number."""
        return MessageExchangeRecord(len(self.lines), kind, stage, steps)

    def append_exchange_record(self, exchange: MessageExchangeRecord) -> None:
        """Write down an exchange that has ended."""
        self.lines.append(json.dumps(vars(exchange), sort_keys=True))
        write_text_atomically(self.path, "".join(line + "\n" for line in self.lines))


def read_message_exchange_log(path: Path) -> list[dict[str, Any]]:
    """Read the exchanges of a ledger."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def count_bytes_sent_by_site(path: Path) -> dict[str, int]:
    """Count the bytes that each site has sent: arrays, and eight for each metric.

    Answers that were refused had left the site too, and count.
    """
    sums: dict[str, int] = {}
    for exchange in read_message_exchange_log(path):
        for name, arrays in [*exchange["up"].items(), *exchange["unused"].items()]:
            metrics = exchange["metrics"].get(name, {}).values()
            size = sum(arrays.values()) + 8 * sum(map(len, metrics))
            sums[name] = sums.get(name, 0) + size
    return sums
