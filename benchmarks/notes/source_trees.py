"""Ask the same module of two source trees in turn, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


class TreeWorkers:
    """Two processes that answer a line with the time that something took.

    Args:
        module: The module that runs, which reads lines from standard input.
        trees: The folders of the two versions of the package.
    """

    def __init__(self, module: str, trees: list[str]) -> None:
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": tree},
            )
            for tree in trees
        ]

    def ask_both(self, line: str, turn: int = 0) -> list[float]:
        """Return the answers of both trees; who is asked first changes with turns."""
        times = [0.0, 0.0]
        for index in ((0, 1), (1, 0))[turn % 2]:  # the second has a colder cache
            worker = self._workers[index]
            assert worker.stdin and worker.stdout
            worker.stdin.write(f"{line}\n")
            worker.stdin.flush()
            times[index] = float(worker.stdout.readline())
        return times

    def close(self) -> None:
        """End both processes."""
        for worker in self._workers:
            worker.communicate()
