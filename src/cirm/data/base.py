"""What every data set offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

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
