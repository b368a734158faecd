"""The benchmark as a whole: run its parts and write the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from benchmarks.report import build_benchmark_page, render_benchmark_markdown
from benchmarks.timing import Report
from cirm.cli.options import create_result_folder
from cirm.cli.output import format_command_line_as_typed, print_lines_to_stderr
from cirm.records import write_text_atomically

PARTS = ("tables", "adapt", "start", "learners", "growth", "peers")


def run_benchmarks(
    parts: Sequence[str], rounds: int, quick: bool, peers: Path | None, folder: Path
) -> None:
    """Measure parts of the benchmark, or all; write and print the results."""
    parts = parts or [name for name in PARTS if name != "peers" or peers is not None]
    check_benchmark_parts(parts, peers)
    create_result_folder(folder)
    command = format_command_line_as_typed()

    def report(name: str) -> None:
        print_lines_to_stderr(f"measuring {name}")

    for results in run_benchmark_parts(parts, rounds, quick, peers, report):
        text = json.dumps({"command": command, **results}, indent=1)
        write_text_atomically(folder / "bench.json", text + "\n")
        write_text_atomically(folder / "bench.md", render_benchmark_markdown(results))
        write_text_atomically(
            folder / "bench.html", build_benchmark_page(results, command)
        )
    typer.echo(render_benchmark_markdown(results))
    typer.echo(f"Wrote the report to {(folder / 'bench.html').resolve()}")


def check_benchmark_parts(parts: Sequence[str], peers: Path | None) -> None:
    """Raise an error before any measurement if a part cannot be measured."""
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"--part: {part!r} is not one of {', '.join(PARTS)}.")
    if "peers" in parts and peers is None:
        raise ValueError(
            "--part peers: use --peers PYTHON to name an interpreter that has the "
            "other packages."
        )
    if peers is not None and not peers.exists():
        raise FileNotFoundError(f"--peers: there is no interpreter {str(peers)!r}.")


def run_benchmark_parts(
    parts: Sequence[str], rounds: int, quick: bool, peers: Path | None, report: Report
) -> Iterator[dict[str, Any]]:
    """Yield all results so far, after each part."""
    import torch

    from benchmarks import (
        adapt_speed,
        cold_start,
        growth,
        learner_speed,
        peer_comparison,
        table_speed,
    )
    from benchmarks.timing import describe_machine
    from cirm.runs.provenance import find_source_commit

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results: dict[str, Any] = {
        "machine": describe_machine(),
        "commit": find_source_commit(),
        "rounds": rounds,
        "quick": quick,
    }
    try:
        for part in parts:
            if part == "tables":
                results[part] = table_speed.measure_tables(quick, rounds, report)
            elif part == "adapt":
                results[part] = adapt_speed.measure_adapting(quick, rounds, report)
            elif part == "learners":
                results[part] = learner_speed.measure_learners(quick, rounds, report)
            elif part == "growth":
                results[part] = growth.measure_scaling(quick, rounds, report)
            elif part == "start":
                results[part] = cold_start.measure_start_times(rounds, report)
            elif peers is not None:
                results[part] = peer_comparison.compare_with_other_packages(
                    peers, quick, rounds, report
                )
            yield dict(results)
    finally:
        torch.set_num_threads(threads)
