"""What every data set offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from cirm.environments import Problem


@dataclass(frozen=True)
class Dataset(ABC):
    """Settings, and one function: the problem that these settings give each seed."""

    @abstractmethod
    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """The environments of each replica; new draws for each seed."""

    def describe(self) -> str:
        """What was found in the user's data and how it is treated; else nothing."""
        return ""

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that the examples are read from.

        Their content belongs to the key of a job, so that a job runs again when a file
        has changed. Built-in and downloaded data sets, which never change, have none.
        A file that is named but does not exist is listed too.
        """
        return ()
