"""`cirm bench`: how fast the learners are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cirm.cli import options

EXAMPLES = options.format_examples_for_command_help(
    "cirm bench --part tables --part adapt --rounds 3",
    "cirm bench --part growth --rounds 9",
)


def measure_learner_speed(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Part of the benchmark: tables, adapt, start, learners, growth or "
                "peers; can be given several times."
            ),
            show_default="all parts; peers only if --peers is given",
        ),
    ] = None,
    rounds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of times to repeat each measurement."
        ),
    ] = 5,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="Python interpreter of a virtual environment that has avalanche-lib, "
            "quadprog and causalicp installed, to compare cirm with these "
            "packages.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Use tiny sizes, only to check that the benchmark works."
        ),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder to write the results to.")] = Path(
        "bench"
    ),
) -> None:
    """Measure the speed of the learners.

    Compares them with scikit-learn (and LightGBM, if it is installed) on tables, with
    bare matrix products, with usual PyTorch code and, given --peers, with other
    packages. Everything runs on one thread, and contenders take
    turns. Takes about fifteen minutes. Writes bench.json, bench.md and bench.html
    after each part.
    """
    add_benchmarks_to_import_path()
    from benchmarks.suite import run_benchmarks

    run_benchmarks(part or [], rounds, quick, peers, out)


def add_benchmarks_to_import_path() -> None:
    """Make the package `benchmarks` importable; only the source tree has it."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "suite.py").exists():
        raise ImportError(
            "bench: the benchmarks are not part of the installed package. Clone the "
            "repository and run `make bench` there."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
