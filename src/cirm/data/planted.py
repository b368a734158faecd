"""Tables with a planted column whose meaning changes from place to place.

The rows are those of the user's files, one file for each place, or synthetic ones with
a known truth. The planted column comes last:

- `binary`: it shows the label, replaced by another one with the probability `flip` of
  the place (with more than two classes, one column for each; in a regression the label
  is whether the target is above the median of the first place);
- `numeric`: for two classes a normal variable with variance 1, whose sign agrees with
  the label with probability 1 - `flip`; in a regression a variable whose correlation
  with the target is 1 - 2 `flip`, at places where the target varies as at the first.

Synthetic rows have standard normal columns, shifted a little at each place. The log
odds of the label, or the target but for its noise, are a linear function of them that
is the same everywhere. The planted column is independent of the others given the label,
as it is for real tables.

With `shortcut=False` the same rows come without the planted column.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

from cirm.data.base import Dataset, list_evenly_spaced_numbers
from cirm.data.schema import TaskName
from cirm.data.shortcuts import flip_labels_with_probability
from cirm.data.user_data import Table
from cirm.environments import Environment, Examples, Problem, Task
from cirm.randomness import Randomness

PLACE = "place (file)"  # the column of the file names, which no table should have
SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
SHIFT = 0.3  # standard deviations by which the columns of synthetic places differ
LOGIT_SPREAD = 2.0  # of the synthetic log odds: the other columns predict 79 %
MOST_UNSEEN = 2000  # rows of the unseen place; more would only take longer


@dataclass(frozen=True)
class PlantedShortcutTable(Dataset):
    """Tables with a planted column that means something different at each place.

    Each seed draws its own places, rows and planted column. Columns and the target of
    a regression are standardised by the rows of the first training place.

    Args:
        path: A folder with one CSV, TSV or Parquet file for each place, of which at
            least one more than `environments` have `examples` rows; empty for
            synthetic rows.
        target: The column to predict; not for synthetic rows.
        task: "classification", "regression", or "auto", which means classification for
            synthetic rows.
        plant: The kind of column: "binary" or "numeric".
        shortcut: Whether the column is there. Without it the rows are the same.
        environments: The number of training places.
        examples: Rows of each training place.
        flips: How often the column contradicts the label at each training place; empty
            for evenly spaced values from 0.1 to 0.2.
        test_flip: The same at the unseen place.
        columns: Number of other columns of synthetic rows.

    Example:
        >>> table = PlantedShortcutTable(examples=100, columns=3)
        >>> problem = table.draw_problem(seeds=(0, 1))
        >>> problem.train[0].inputs.shape
        torch.Size([2, 100, 4])
    """

    path: str = ""
    target: str = ""
    task: TaskName = "auto"
    plant: Literal["binary", "numeric"] = "binary"
    shortcut: bool = True
    environments: int = 2
    examples: int = 1000
    flips: tuple[float, ...] = ()
    test_flip: float = 0.9
    columns: int = 8

    def __post_init__(self) -> None:
        if self.plant not in ("binary", "numeric"):
            self._raise_invalid_setting_error("plant", "Use binary or numeric")
        for name, least in (("environments", 1), ("examples", 2), ("columns", 1)):
            if getattr(self, name) < least:
                self._raise_invalid_setting_error(name, f"Use {least} or more")
        self._check_number_of_flip_probabilities(self.flips, self.environments)
        for flip in (*self.flips, self.test_flip):
            if not 0 < flip < 1:
                name = "flips" if flip in self.flips else "test_flip"
                self._raise_invalid_setting_error(
                    name, "Use probabilities between 0 and 1"
                )
        if self.path and not self.target:
            self._raise_invalid_setting_error(
                "target", "Give the name of the column to predict"
            )

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return places [replica, n, columns], drawn anew for each seed."""
        if self.path:
            drawn, task = self._draw_rows_of_files(seeds)
        else:
            drawn, task = self._draw_synthetic_rows(seeds)
        drawn = _standardise_by_first_environment(
            drawn, has_real_target=not task.classes
        )
        cut = drawn[0].y.median(1, keepdim=True).values
        names = [f"train-{i + 1}" for i in range(self.environments)] + ["test"]
        flips = (*self.list_flip_probabilities(), self.test_flip)
        places = []
        for name, flip, (x, y) in zip(names, flips, drawn, strict=True):
            if self.shortcut:
                at = Randomness(tuple(seeds)).at("planted", name, self.plant)
                x = torch.cat(
                    [x, self._draw_shortcut_columns(y, cut, flip, task, at)], -1
                )
            places.append(Environment(name, x, y, task, replicated=True))
        return Problem(tuple(places[:-1]), test=(places[-1],))

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the files of the folder."""
        return (
            list_table_files_in_folder(Path(self.path).expanduser())
            if self.path
            else ()
        )

    def list_flip_probabilities(self) -> tuple[float, ...]:
        """Return the flip of each training place, in order of arrival."""
        return self.flips or list_evenly_spaced_numbers(0.1, 0.2, self.environments)

    def _draw_rows_of_files(
        self, seeds: tuple[int, ...]
    ) -> tuple[list[Examples], Task]:
        """Draw places and rows of the files."""
        places = [
            place
            for place in _read_rows_of_place_files(
                self.list_local_input_files(), self.target, self.task
            )
            if len(place) >= self.examples
        ]
        if len(places) <= self.environments:
            raise ValueError(
                f"planted: {self.environments + 1} files with {self.examples} rows or "
                f"more are needed, but the folder {self.path!r} has only "
                f"{len(places)} such files. Use a smaller setting of examples or "
                "environments, or add files."
            )
        unseen = min(MOST_UNSEEN, *map(len, places))
        drawn = []
        for seed in seeds:
            at = Randomness((seed,)).at("planted")
            chosen = at.at("places").permutation(len(places))[0]
            sizes = [self.examples] * self.environments + [unseen]
            drawn.append(
                [
                    places[place].take(
                        at.at("rows", i).permutation(len(places[place]))[:, :size]
                    )
                    for i, (place, size) in enumerate(zip(chosen, sizes, strict=False))
                ]
            )
        together = [
            Examples(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]))
            for parts in zip(*drawn, strict=True)
        ]
        return together, places[0].task

    def _draw_synthetic_rows(
        self, seeds: tuple[int, ...]
    ) -> tuple[list[Examples], Task]:
        """Draw places of synthetic rows."""
        is_regression = self.task == "regression"
        at = Randomness(tuple(seeds)).at("planted", "synthetic")
        weights = at.at("weights").normal(self.columns, 1)
        weights = weights / weights.norm(dim=1, keepdim=True)
        drawn = []
        for i in range(self.environments + 1):
            own = at.at(i)
            count = self.examples if i < self.environments else MOST_UNSEEN
            shift = SHIFT * own.at("shift").normal(1, self.columns)
            x = own.at("rows").normal(count, self.columns) + shift
            score = (x @ weights)[..., 0]
            if is_regression:
                y = score + own.at("noise").normal(count)  # R² is 0.5 without plant
            else:
                chance = torch.sigmoid(LOGIT_SPREAD * score)
                y = (own.at("label").uniform(count) < chance).long()
            drawn.append(Examples(x, y))
        task = Task.regression() if is_regression else Task.classification(2)
        return drawn, task

    def _draw_shortcut_columns(
        self,
        targets: Tensor,
        cut: Tensor,
        flip_probability: float,
        task: Task,
        randomness: Randomness,
    ) -> Tensor:
        """Return the planted column or columns, [replica, n, 1] or [replica, n, k]."""
        count, classes = targets.shape[1], max(2, len(task.classes))
        if self.plant == "binary":
            labels = targets if task.classes else (targets > cut).long()
            shown = flip_labels_with_probability(
                labels, flip_probability, classes, randomness
            )
            one_hot = torch.nn.functional.one_hot(shown, classes).float()
            return one_hot if classes > 2 else one_hot[..., 1:]
        noise = randomness.normal(count)
        if not task.classes:
            slope = 1 - 2 * flip_probability
            return (slope * targets + (1 - slope**2) ** 0.5 * noise)[..., None]
        if classes > 2:
            self._raise_invalid_setting_error(
                "plant",
                "A numeric shortcut needs a target with two classes; use binary",
            )
        distance = torch.special.ndtri(torch.tensor(1 - flip_probability))
        return ((2 * targets - 1) * distance + noise)[..., None]


def parse_folder_target_and_files(text: str) -> tuple[str, str, tuple[Path, ...]]:
    """Return the folder, the target and the files of a table given as FOLDER:TARGET."""
    folder, colon, target = text.rpartition(":")
    if not (colon and folder and target):
        raise ValueError(
            f"--table: {text!r} is not of the form FOLDER:COLUMN. Write "
            "FOLDER:COLUMN, where FOLDER holds one table file for each place and "
            "COLUMN is the column to predict, such as tables/hospitals:outcome."
        )
    return folder, target, list_table_files_in_folder(Path(folder).expanduser())


def list_table_files_in_folder(folder: Path) -> tuple[Path, ...]:
    """Return the tables in a folder, by name."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no folder {str(folder)!r}. Give the path of a folder that holds "
            "one table file for each place."
        )
    files = [file for file in folder.iterdir() if file.name.endswith(SUFFIXES)]
    return tuple(sorted(files))


def _standardise_by_first_environment(
    environments: list[Examples], has_real_target: bool
) -> list[Examples]:
    """Standardise columns, and real targets, by the first place of each replica."""
    first = environments[0]
    centre, scale = _compute_column_mean_and_std(first.x)
    result = [Examples((p.x - centre) / scale, p.y) for p in environments]
    if not has_real_target:
        return result
    centre, scale = _compute_column_mean_and_std(first.y)
    return [Examples(p.x, (p.y - centre) / scale) for p in result]


def _compute_column_mean_and_std(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over rows; 1 if a column is constant."""
    scale = values.std(1, keepdim=True)
    is_constant = scale < 1e-6
    return values.mean(1, keepdim=True), torch.where(is_constant, 1.0, scale)


@lru_cache(maxsize=4)
def _read_rows_of_place_files(
    files: tuple[Path, ...], target: str, task: TaskName
) -> tuple[Environment, ...]:
    """Return the encoded rows of each file."""
    frames = []
    for file in files:
        if file.suffix == ".parquet":
            frame = pd.read_parquet(file)
        else:
            frame = pd.read_csv(file, sep="\t" if ".tsv" in file.name else ",")
        name = pd.Series(file.name.partition(".")[0], frame.index, name=PLACE)
        frames.append(pd.concat([frame, name], axis=1))
    table = Table(target=target, environment=PLACE, task=task, test="none")
    return table.prepare_data(pd.concat(frames, ignore_index=True)).problem.train
