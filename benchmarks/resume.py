"""Write the record of each run at once, and measure only what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def measure_missing(
    path: Path, runs: Iterable[Record], measure: Callable[[Record], Record]
) -> list[Record]:
    """Return the records of runs, and append those that are not yet in the file.

    Args:
        path: A file with one record in each line, which may not exist yet.
        runs: What identifies each run; the first entries of its record.
        measure: Returns the other entries; if there are none, nothing is recorded.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    known = [json.loads(line) for line in lines]
    records = []
    for run in runs:
        found = [record for record in known if run.items() <= record.items()]
        if not found and (measured := measure(run)):
            found = [run | measured]
            with path.open("a") as file:
                file.write(json.dumps(found[0]) + "\n")
            print(json.dumps(found[0]), flush=True)
        records += found[:1]
    return records
