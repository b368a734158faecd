"""What a published experiment consists of: trials, the numbers wanted, their layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from cirm.runs.choice import ChoiceJob
from cirm.runs.jobs import Job, identify_trial

Place = tuple[str, str, str]
"""Where a number stands: row, learner, split."""


CHANCE = "chance"
"""The learner that guesses: its number is known without a run."""


class PublishedValue(NamedTuple):
    """A published mean, and its standard deviation where it was given."""

    mean: float
    std: float | None = None


class TableCell(NamedTuple):
    """A number to measure: the paper's, and one of other published work."""

    learner: str
    split: str
    metric: str
    paper: PublishedValue | None = None
    elsewhere: PublishedValue | None = None


@dataclass(frozen=True)
class Trial:
    """A learner on a data set in an order; with seeds it becomes jobs.

    `settings` go over those of the preset; `inference` are the settings of `infer`,
    likewise over those of `infer_preset`; so many seeds as `block` share a job. With
    `values` of a `setting` each seed chooses one, in the last training environment.
    """

    label: str
    learner: str
    dataset: str
    data: dict[str, Any]
    order: str
    selection: str
    preset: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    infer: str = ""
    infer_preset: str = ""
    inference: dict[str, Any] = field(default_factory=dict)
    block: int = 1
    setting: str = ""
    values: tuple[float, ...] = ()

    @property
    def identity(self) -> str:
        """What its records have in common, whatever the settings were."""
        dataset = {"name": self.dataset, **self.data}
        return identify_trial(self.label, self.order, dataset)

    @property
    def key(self) -> str:
        """What a user calls it: with and without inference it is the same."""
        return self.label.partition(" after ")[0]

    @property
    def source(self) -> str:
        """The image source that it needs, if any."""
        return str(self.data.get("source", ""))

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        """Its jobs, with the values of the presets written out.

        A job's key thus changes when a preset does.
        """
        from cirm.inference import get_inference_class
        from cirm.learners import get_preset

        settings = {**get_preset(self.learner, self.preset), **self.settings}
        inference = dict(self.inference)
        if self.infer_preset:
            published = get_inference_class(self.infer).presets[self.infer_preset]
            inference = {**published, **inference}
        kind = partial(ChoiceJob, setting=self.setting, values=self.values)
        return [
            (kind if self.setting else Job)(
                dataset=self.dataset,
                learner=self.learner,
                order=self.order,
                seeds=tuple(seeds[start : start + self.block]),
                data=self.data,
                settings=settings,
                preset=self.preset,
                selection=self.selection,
                infer=self.infer,
                inference=inference,
                label=self.label,
            )
            for start in range(0, len(seeds), self.block)
        ]


@dataclass(frozen=True)
class Row:
    """Trials on the same data, and the numbers wanted of them."""

    name: str
    title: str
    trials: tuple[Trial, ...]
    wanted: tuple[TableCell, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The learners, in order."""
        return tuple(trial.label for trial in self.trials)


@dataclass(frozen=True)
class Line:
    """A line of a printed table: its headings, and the place of each number."""

    headings: tuple[str, ...]
    places: tuple[Place | None, ...]


@dataclass(frozen=True)
class Layout:
    """A printed table; each column has a heading of one or more parts."""

    title: str
    corner: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Experiment:
    """One table of the paper; `seeds` is the paper's number of runs.

    `chance` is the accuracy of guessing in percent, `axis` what the sweep varies.
    """

    name: str
    title: str
    seeds: int
    rows: tuple[Row, ...]
    layouts: tuple[Layout, ...]
    chance: float | None = None
    axis: str = ""

    @property
    def keys(self) -> list[str]:
        """What users call the learners of any row, each once."""
        return list(dict.fromkeys(t.key for row in self.rows for t in row.trials))

    def trials(self, keys: Iterable[str] = ()) -> list[Trial]:
        """Every trial once, though rows may share it; of these learners, or all."""
        chosen = set(keys)
        for key in chosen - set(self.keys):
            raise ValueError(
                f"{self.name}: learners are {'; '.join(self.keys)}; got {key!r}"
            )
        found = {
            trial.identity: trial
            for row in self.rows
            for trial in row.trials
            if not chosen or trial.key in chosen
        }
        return list(found.values())
