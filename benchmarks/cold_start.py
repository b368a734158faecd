"""The time that a new process takes until it has done something."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
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
PREDICT = ["predict", "{rows}", "--model", "{model}"]
STARTS = {
    "python alone": "pass",
    "import cirm": "import cirm",
    "import torch": "import torch",
    "cirm --help": COMMAND.format(["--help"]),
    "cirm predict, 10 rows": COMMAND.format(PREDICT),
    "first result of cirm run": COMMAND.format(list(FIRST)),
}


def measure_start_times(rounds: int, report: Report) -> list[dict[str, Any]]:
    """Time each start in a new process and an empty folder."""
    times: dict[str, list[float]] = {name: [] for name in STARTS}
    busy: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_model_and_rows(Path(folder))
        for number in range(rounds + 1):
            for name, code in STARTS.items():
                if not number:
                    report(f"start, {name}")
                seconds, processor = time_python_code(fill_paths(code, paths))
                if number:
                    times[name].append(seconds)
                    busy[name].append(processor)
    return [
        {
            "what": name,
            **compute_quartiles(values),
            "processor": compute_quartiles(busy[name])["median"],
        }
        for name, values in times.items()
    ]


def write_model_and_rows(folder: Path) -> dict[str, str]:
    """Write a model of the default learner and ten rows; return their paths."""
    from benchmarks.table_speed import make_table
    from cirm import fit, save

    table, classes = make_table(1_000, 0)
    paths = {"model": str(folder / "m.cirm"), "rows": str(folder / "rows.csv")}
    save(fit(table.assign(y=classes), "y"), paths["model"])
    table[:10].to_csv(paths["rows"], index=False)
    return paths


def fill_paths(code: str, paths: Mapping[str, str]) -> str:
    """Return code with paths in place of their names in braces."""
    for name, path in paths.items():
        code = code.replace(f"{{{name}}}", path)
    return code


def time_python_code(code: str) -> tuple[float, float]:
    """Return the seconds, and the processor time, of a new interpreter for code."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = os.times(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        seconds, after = time.perf_counter() - began, os.times()
        processor = after.children_user - before.children_user
        processor += after.children_system - before.children_system
    if done.returncode:
        raise ValueError(f"bench: a new process failed: {done.stderr.strip()[-300:]}")
    return seconds, processor
