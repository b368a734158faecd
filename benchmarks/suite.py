"""All parts of the benchmark, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.timing import Tell

PARTS = ("learners", "growth", "start", "peers")


def check(parts: Sequence[str], peers: Path | None) -> None:
    """Refuse what cannot be measured, before anything is."""
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"bench: parts are {', '.join(PARTS)}; got {part!r}")
    if "peers" in parts and peers is None:
        raise ValueError("bench: the peers need --peers PYTHON; got none")
    if peers is not None and not peers.exists():
        raise FileNotFoundError(f"--peers: it must be an interpreter; got {peers}")


def measured(
    parts: Sequence[str], rounds: int, quick: bool, peers: Path | None, tell: Tell
) -> Iterator[dict[str, Any]]:
    """All that is known so far, after each part."""
    import torch

    from benchmarks import growth, learners, start
    from benchmarks import peers as others
    from benchmarks.timing import machine
    from cirm.runs.provenance import find_commit

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "machine": machine(),
        "commit": find_commit(),
        "rounds": rounds,
        "quick": quick,
    }
    try:
        for part in parts:
            if part == "learners":
                found[part] = learners.measured(quick, rounds, tell)
            elif part == "growth":
                found[part] = growth.measured(quick, rounds, tell)
            elif part == "start":
                found[part] = start.measured(rounds, tell)
            elif peers is not None:
                found[part] = others.measured(peers, quick, rounds, tell)
            yield dict(found)
    finally:
        torch.set_num_threads(threads)
