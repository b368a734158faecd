"""Work shared among the cores: a thread on each, within which torch starts no more.

Torch shares out every single operation, and waits for all cores after each: on small
networks that gains little, and on a busy machine it takes many times as long.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST = 4  # more would wait for one another, and for the reading of files


def shared_out(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> list[Result]:
    """What `work` makes of each item, in order, by so many threads at most."""
    with _one_thread_each:
        if min(workers, len(items)) < 2:
            return [work(item) for item in items]
        with ThreadPoolExecutor(min(workers, len(items))) as pool:
            return list(pool.map(work, items))


def cores() -> int:
    """How many threads may work: one a core, four at most, or OMP_NUM_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked):
        return min(int(asked), MOST)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST)
    return min(os.cpu_count() or 1, MOST)


class _OneThread:
    """While anyone is inside, torch computes on the thread that calls it.

    The setting is one for the process: the last to leave restores what the first met.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.get_num_threads()
                torch.set_num_threads(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.set_num_threads(self._before)


_one_thread_each = _OneThread()
