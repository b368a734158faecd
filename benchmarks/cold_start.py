"""The time that a new process takes until it has done something."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.timing import Report, compute_quartiles

COMMAND = "import sys; from cirm.cli import main; sys.argv = ['cirm', *{}]; main()"
FIRST = (
    "run",
    "--seeds",
    "1",
    "--examples",
    "100",
    "--set",
    "epochs=1",
    "--workers",
    "1",
)
STARTS = {
    "python alone": "pass",
    "import cirm": "import cirm",
    "import torch": "import torch",
    "cirm --help": COMMAND.format(["--help"]),
    "first result of cirm run": COMMAND.format(list(FIRST)),
}


def measure_start_times(rounds: int, report: Report) -> list[dict[str, Any]]:
    """Time each start in a new process and an empty folder."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for number in range(rounds + 1):
        for name, code in STARTS.items():
            if not number:
                report(f"start, {name}")
            seconds = time_python_code(code)
            if number:
                times[name].append(seconds)
    return [
        {"what": name, **compute_quartiles(values)} for name, values in times.items()
    ]


def time_python_code(code: str) -> float:
    """Return the seconds that a new interpreter takes to run some code."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        seconds = time.perf_counter() - began
    if done.returncode:
        raise ValueError(f"bench: a new process failed: {done.stderr.strip()[-300:]}")
    return seconds
