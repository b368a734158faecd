"""Cold start: how long a new process takes until it can do something."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.timing import Tell, spread

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


def measured(rounds: int, tell: Tell) -> list[dict[str, Any]]:
    """Seconds on the clock until each is done, in a process and folder of its own."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    for number in range(rounds + 1):
        for name, code in STARTS.items():
            if not number:
                tell(f"start, {name}")
            seconds = timed(code)
            if number:
                times[name].append(seconds)
    return [{"what": name, **spread(values)} for name, values in times.items()]


def timed(code: str) -> float:
    """Seconds that a new interpreter takes for some code."""
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
        raise ValueError(
            f"bench: a cold start must end well; got {done.stderr.strip()[-300:]}"
        )
    return seconds
