"""`cirm bench`: how fast the learners are, and beside what."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from cirm.cli.shared import open_folder


def bench(
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="learners, growth, start or peers; repeat for more.",
            show_default="all",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each work takes its turn.")
    ] = 5,
    peers: Annotated[
        Path | None,
        typer.Option(
            metavar="PYTHON",
            help="An interpreter with avalanche-lib, quadprog and causalicp: what to "
            "compare with.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny sizes: only to see that it works.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("bench"),
) -> None:
    """Time the learners: beside bare products, usual code and other packages.

    Everything runs on one thread, works take turns, and what is compared was measured
    in the same round. Takes about fifteen minutes; writes bench.json, bench.md and
    bench.html, after each part.
    """
    import json

    _find_benchmarks()
    from benchmarks.report import bench_report, markdown
    from benchmarks.suite import PARTS, check, measured
    from cirm.records import write_text

    command = shlex.join(["cirm", *sys.argv[1:]])
    usual = [name for name in PARTS if name != "peers" or peers is not None]
    parts = part or usual
    check(parts, peers)
    open_folder(out)
    for found in measured(parts, rounds, quick, peers, _tell):
        text = json.dumps({"command": command, **found}, indent=1)
        write_text(out / "bench.json", text + "\n")
        write_text(out / "bench.md", markdown(found))
        write_text(out / "bench.html", bench_report(found, command))
    typer.echo(markdown(found))
    typer.echo(f"Wrote {(out / 'bench.html').resolve()}")


def _find_benchmarks() -> None:
    """Make the package `benchmarks` importable; it is in the source tree only."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "suite.py").exists():
        raise ImportError(
            "bench: the benchmarks are not part of the installed package; clone the "
            "repository and run `make bench` there"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def _tell(what: str) -> None:
    typer.echo(f"measuring {what}", err=True)
