"""Public data sets by name: imported from a folder or downloaded, kept in the cache."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cirm.data.base import Dataset
from cirm.data.example_draws import draw_training_examples
from cirm.data.image_sets import get_cached_image_folder, open_temporary_cache_folder
from cirm.data.user_data import choose_test_environments
from cirm.environments import Problem
from cirm.randomness import Randomness


@dataclass(frozen=True)
class PublicDatasetOrigin:
    """Where a public data set comes from, and what is in it.

    Attributes:
        name: The key of the data set, and the name of its folder in the cache.
        authors: Who published it, and when.
        licence: Under which it may be used.
        environment: What an environment is.
        rows: The number of examples of each environment of the whole data set.
        advice: Where to get it by hand, as a sentence.
        address: A file to download: a table, or a zip archive; empty if there is none.
        members: The files to take from that archive.
    """

    name: str
    authors: str
    licence: str
    environment: str
    rows: dict[str, int]
    advice: str
    address: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublicDataset(Dataset):
    """A data set that others have published, read from the cache or from a folder."""

    origin: ClassVar[PublicDatasetOrigin]
    held_out: ClassVar[str] = ""  # unless `test` says so; the last one if empty

    path: str = ""
    train: tuple[str, ...] = ()
    test: str = ""
    examples: int | None = None
    fraction: float = 1.0

    def __post_init__(self) -> None:
        self._check_examples_and_fraction()

    @classmethod
    @abstractmethod
    def convert_original_files(cls, folder: Path, into: Path) -> dict[str, int]:
        """Check the files of a folder and write them as the cache keeps them.

        Args:
            folder: The folder with the original files, or with converted ones.
            into: A new folder to write to.

        Returns:
            The number of examples of each environment.
        """

    @abstractmethod
    def count_examples_by_environment(self) -> dict[str, int]:
        """Return how many examples of each environment the folder has."""

    def describe(self) -> str:
        """Return which part of the data set the folder has, if it is not the whole."""
        rows = self.count_examples_by_environment()
        if rows == self.origin.rows:
            return ""
        found = describe_completeness_of_dataset(self.origin, rows)
        return f"{self.origin.name}: {found}"

    @property
    def folder(self) -> Path:
        """The folder to read from: `path`, or the one in the cache."""
        if self.path:
            folder = Path(self.path).expanduser()
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"{self.origin.name}: there is no folder {self.path!r}. Check the "
                    "path."
                )
            return folder
        folder = get_cached_image_folder(self.origin.name)
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{self.origin.name}: the data set is not in the cache. "
                f"{describe_how_to_get_dataset(self.origin)}"
            )
        return folder

    def split_names_into_training_and_unseen(
        self, names: Sequence[str]
    ) -> tuple[list[str], tuple[str, ...]]:
        """Return the environments to train on in order of arrival, and unseen ones."""
        unknown = [name for name in self.train if name not in names]
        if unknown:
            self._raise_invalid_setting_error(
                "train", f"Use some of {', '.join(names)}"
            )
        left = [name for name in names if name not in self.train]
        test = self.test or (self.held_out if self.held_out in left else "")
        if not test and not left:
            test = "none"
        held_out = choose_test_environments(
            names if test else left, test, self.origin.name
        )
        if set(held_out) & set(self.train):
            self._raise_invalid_setting_error(
                "train", f"Leave out {', '.join(held_out)}"
            )
        return list(self.train) or [n for n in left if n not in held_out], held_out

    def draw_examples_for_each_seed(
        self, problem: Problem, seeds: tuple[int, ...]
    ) -> Problem:
        """Return the examples that each seed draws of each training environment."""
        draws = Randomness(tuple(seeds)).at(self.origin.name)
        return draw_training_examples(problem, self.examples, self.fraction, draws)


def get_public_dataset_class(name: str) -> type[PublicDataset]:
    """Return the class of a public data set."""
    from cirm.data import PUBLIC, get_dataset_class

    if name not in PUBLIC:
        raise ValueError(
            f"data set: {name!r} is not a public data set. Choose one of "
            f"{', '.join(PUBLIC)}."
        )
    cls = get_dataset_class(name)
    assert issubclass(cls, PublicDataset)
    return cls


def import_public_dataset(name: str, folder: Path) -> tuple[Path, dict[str, int]]:
    """Convert the files of a folder into the cache."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder. Check the path.")
    cls, home = get_public_dataset_class(name), get_cached_image_folder(name)
    if home.is_dir():
        raise ValueError(
            f"{name}: the data set has already been imported. To import it again, "
            f"first remove the folder {home}."
        )
    with open_temporary_cache_folder() as work:
        ready = work / "ready"
        ready.mkdir()
        rows = cls.convert_original_files(folder, ready)
        try:
            os.rename(ready, home)
        except OSError as error:
            raise ValueError(
                f"cache: the folder {home} cannot be written ({error.strerror}). Set "
                "the environment variable CIRM_DATA to another folder."
            ) from None
    return home, rows


def describe_completeness_of_dataset(
    origin: PublicDatasetOrigin, rows_by_environment: dict[str, int]
) -> str:
    """Return how many examples there are, and whether these are all."""
    have, all_rows = sum(rows_by_environment.values()), sum(origin.rows.values())
    text = f"{have:,} examples in {len(rows_by_environment)} environments"
    if rows_by_environment == origin.rows:
        return f"{text}, complete"
    return (
        f"{text}, of {all_rows:,} in {len(origin.rows)}: not the whole data set, so "
        "scores cannot be compared with published ones"
    )


def describe_how_to_get_dataset(origin: PublicDatasetOrigin) -> str:
    """Return sentences that say how a data set gets into the cache."""
    fetch = f"Run `cirm data fetch {origin.name}`, or get the files by hand. "
    return f"{fetch if origin.address else ''}{origin.advice}"


def sort_names_by_number(names: Sequence[str]) -> list[str]:
    """Return names in alphabetical order, with numbers in them by their value."""

    def pad_numbers_with_zeros(name: str) -> str:
        return re.sub(r"\d+", lambda digits: digits[0].zfill(9), name)

    return sorted(names, key=pad_numbers_with_zeros)


def list_names_sizes_and_times_of_files(
    files: Sequence[Path],
) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of files, which change when the files do."""
    return tuple(
        (file.name, (status := file.stat()).st_size, status.st_mtime_ns)
        for file in files
    )
