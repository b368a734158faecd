"""What every data set offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

from cirm.data import DATASETS

if TYPE_CHECKING:
    from cirm.environments import Problem


@dataclass(frozen=True)
class Dataset(ABC):
    """Settings of a data set, and the environments that they give.

    A data set of your own is a frozen dataclass that inherits from this class. Its
    fields are its settings, on the command line and in records.

    Attributes:
        has_images: Whether the inputs are images; records of other data may become
            outdated on their own (see `table_revision` of learners).

    Example:
        >>> import torch
        >>> from cirm import Environment, Problem, Task
        >>> @dataclass(frozen=True)
        ... class Noise(Dataset):
        ...     size: int = 10
        ...     def draw_problem(self, seeds):
        ...         x, y = torch.zeros(self.size, 2), torch.zeros(self.size)
        ...         return Problem((Environment("only", x, y, Task.regression()),))
        >>> len(Noise(size=3).draw_problem((0,)).train[0])
        3
    """

    has_images: ClassVar[bool] = False

    @abstractmethod
    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments, with random draws of their own for each seed.

        Args:
            seeds: The seed of each replica.
        """

    def describe(self) -> str:
        """Return what is in the user's data and how it is encoded, if anything."""
        return ""

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the user's files that the examples are read from.

        Their content belongs to the key of a job, so that a job runs again when a file
        has changed. Built-in and downloaded data sets, which never change, have none.
        A file that is named but does not exist is listed too.
        """
        return ()

    def list_setting_checksums(self) -> dict[str, str]:
        """Return a checksum for each setting that stands for something outside.

        An encoder's weights are an example: they belong to the key of a job, as the
        content of files does.
        """
        return {}

    def fill_feature_cache(self, progress: Callable[[str, float], None]) -> None:
        """Compute what draws read from a cache, such as the features of an encoder.

        Args:
            progress: Called with a description and the fraction that is done.
        """
        return

    def _raise_invalid_setting_error(self, name: str, remedy: str) -> NoReturn:
        value = getattr(self, name)
        value = list(value) if isinstance(value, tuple) else value
        own = type(self).__name__
        keys = [key for key, path in DATASETS.items() if path.endswith(f":{own}")]
        dataset = keys[0] if keys else own
        raise ValueError(f"{dataset}: the setting {name} is {value!r}. {remedy}.")

    def _check_examples_and_fraction(self) -> None:
        """Refuse a number and a fraction of examples that cannot be drawn."""
        examples, fraction = (getattr(self, name) for name in ("examples", "fraction"))
        if examples is not None and examples < 2:
            self._raise_invalid_setting_error("examples", "Use 2 or more")
        if not 0 < fraction <= 1:
            remedy = "Use a number above 0 and at most 1"
            self._raise_invalid_setting_error("fraction", remedy)

    def _check_number_of_flip_probabilities(
        self, flips: tuple[float, ...], n_environments: int
    ) -> None:
        """Refuse flips that are given for another number of environments."""
        if flips and len(flips) != n_environments:
            remedy = f"Give one value for each of the {n_environments} environments"
            self._raise_invalid_setting_error("flips", remedy)

    def _check_probabilities(self, *names: str) -> None:
        """Refuse settings that are not a probability, or a tuple of them."""
        for name in names:
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else (value,)
            if not all(0 <= one <= 1 for one in values):
                self._raise_invalid_setting_error(name, "Use probabilities from 0 to 1")


def list_evenly_spaced_numbers(
    first: float, last: float, count: int
) -> tuple[float, ...]:
    """Return numbers at equal distances, from the first to the last.

    Example:
        >>> list_evenly_spaced_numbers(0.2, 0.1, 3)
        (0.2, 0.15, 0.1)
    """
    step = (last - first) / max(1, count - 1)
    return tuple(round(first + step * i, 10) for i in range(count))


def check_examples_per_environment(
    dataset: str, source: str, n_environments: int, n_wanted: int, n_available: int
) -> int:
    """Return the number of examples per environment, if there are enough."""
    most = n_available // n_environments
    if not 1 <= n_wanted <= most:
        raise ValueError(
            f"{dataset}: {n_environments} environments with {max(n_wanted, 1):,} "
            f"examples each need more than the {n_available:,} training images of "
            f"{source}. Use at most examples={most}, or fewer environments."
        )
    return n_wanted


def shorten_error_message(error: BaseException) -> str:
    """Return the first line of an error's message, at most 100 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]
