"""Work shared among the cores: a thread on each, within which torch starts no more.

Torch shares out every single operation, and waits for all cores after each: on small
networks that gains little, and on a busy machine it takes many times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 4  # more would wait for one another, and for the reading of files


def shared_out(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """What `work` makes of each item, in order, by so many threads at most."""
    with _one_thread():
        if min(workers, len(items)) < 2:
            return [work(item) for item in items]
        # Torch counts threads anew in each thread.
        threads = min(workers, len(items))
        with ThreadPoolExecutor(
            threads, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(work, items))


def cores() -> int:
    """How many threads may work: one a core or OMP_NUM_THREADS, four at most."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return min(int(asked), MOST)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST)
    return min(os.cpu_count() or 1, MOST)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within it, torch computes on the thread that calls it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
