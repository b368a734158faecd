"""What every data set offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from cirm.environments import Problem


@dataclass(frozen=True)
class Dataset(ABC):
    """Settings of a data set, and the environments that they give.

    A data set of your own is a frozen dataclass that inherits from this class. Its
    fields are its settings, on the command line and in records.

    Example:
        >>> import torch
        >>> from cirm import Environment, Task
        >>> @dataclass(frozen=True)
        ... class Noise(Dataset):
        ...     size: int = 10
        ...     def draw(self, seeds):
        ...         x, y = torch.zeros(self.size, 2), torch.zeros(self.size)
        ...         return Problem((Environment("only", x, y, Task.regression()),))
        >>> len(Noise(size=3).draw((0,)).train[0])
        3
    """

    @abstractmethod
    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments, with random draws of their own for each seed.

        Args:
            seeds: The seed of each replica.
        """

    def describe(self) -> str:
        """Return what is in the user's data and how it is encoded, if anything."""
        return ""

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that the examples are read from.

        Their content belongs to the key of a job, so that a job runs again when a file
        has changed. Built-in and downloaded data sets, which never change, have none.
        A file that is named but does not exist is listed too.
        """
        return ()


def summarise_error(error: BaseException) -> str:
    """Return the first line of an error's message, at most 100 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]
