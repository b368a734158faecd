"""A published experiment: its trials, the cells of its tables, and their layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

from cirm.evaluation.adaptation import RowCount
from cirm.runs.choice import ChooseSettingValueJob
from cirm.runs.jobs import TrainingJob, format_trial_identity

CellPosition = tuple[str, str, str]
"""The place of a number in a table: row, learner, split."""

CHANCE_ACCURACY = "chance"
"""A learner that guesses; its accuracy is known without a run."""


class PublishedValue(NamedTuple):
    """A published mean, and its standard deviation if it was given."""

    mean: float
    std: float | None = None


class PaperTableCell(NamedTuple):
    """A number to measure, with that of the paper and that of other published work."""

    learner: str
    split: str
    metric: str
    paper: PublishedValue | None = None
    elsewhere: PublishedValue | None = None


@cache
def read_published_table(name: str) -> Any:  # noqa: ANN401  the tables differ in shape
    """Return a table of paper_tables.json."""
    text = files(__package__).joinpath("paper_tables.json").read_text("utf-8")
    return json.loads(text)[name]


def parse_published_mean_and_std(
    published: Mapping[str, float] | None,
) -> PublishedValue | None:
    """Return a mean and standard deviation of paper_tables.json."""
    return (
        None
        if published is None
        else PublishedValue(published["mean"], published["std"])
    )


@dataclass(frozen=True)
class ExperimentTrial:
    """A learner on a data set in an order; with seeds it becomes jobs.

    Most attributes are those of `cirm.runs.jobs.Job`.

    Attributes:
        infer_preset: Preset of the inference, below the settings in `inference`.
        block: How many seeds share a job.
        setting: A setting whose value each seed chooses, if any.
        values: The values to choose from, in the last training environment.
        adapt: Numbers of unlabelled rows of the unseen environment to adapt to.
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
    adapt: tuple[RowCount, ...] = ()

    @property
    def identity(self) -> str:
        """What its records have in common, whatever the settings were."""
        dataset = {"name": self.dataset, **self.data}
        return format_trial_identity(self.label, self.order, dataset)

    @property
    def key(self) -> str:
        """The learner's name for users, the same with and without inference."""
        return self.label.partition(" after ")[0]

    @property
    def source(self) -> str:
        """The image source that it needs, if any."""
        return str(self.data.get("source", ""))

    def plan_jobs(self, seeds: Sequence[int]) -> list[TrainingJob]:
        """Plan its jobs, with the values of presets written out.

        A job's key thus changes when a preset does.
        """
        from cirm.inference import get_inference_class
        from cirm.learners import get_preset_settings

        settings = {**get_preset_settings(self.learner, self.preset), **self.settings}
        inference = dict(self.inference)
        if self.infer_preset:
            preset = get_inference_class(self.infer).presets[self.infer_preset]
            inference = {**preset, **inference}
        choice = partial(
            ChooseSettingValueJob, setting=self.setting, values=self.values
        )
        return [
            (choice if self.setting else TrainingJob)(
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
                adapt=self.adapt,
            )
            for start in range(0, len(seeds), self.block)
        ]


@dataclass(frozen=True)
class ExperimentRow:
    """Trials on the same data, and the table cells that they fill.

    Attributes:
        pools: Names of rows whose runs, taken together, fill the cells, if any. Such a
            row has no trials of its own.
    """

    name: str
    title: str
    trials: tuple[ExperimentTrial, ...]
    cells: tuple[PaperTableCell, ...]
    pools: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the trials, in order."""
        return tuple(trial.label for trial in self.trials)


@dataclass(frozen=True)
class PaperTableLineLayout:
    """A line of a printed table: its headings, and the place of each number."""

    headings: tuple[str, ...]
    places: tuple[CellPosition | None, ...]


@dataclass(frozen=True)
class PaperTableLayout:
    """A printed table; each column has a heading of one or more parts."""

    title: str
    corner: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[PaperTableLineLayout, ...]


@dataclass(frozen=True)
class PaperExperiment:
    """One table of the paper.

    Attributes:
        seeds: The paper's number of runs.
        chance: The accuracy of guessing in percent.
        axis: What the sweep varies.
        repeats: Whether the paper's numbers in it are those of a table, run in another
            way. They are then not counted again, and decide no claim.
    """

    name: str
    title: str
    seeds: int
    rows: tuple[ExperimentRow, ...]
    layouts: tuple[PaperTableLayout, ...]
    chance: float | None = None
    axis: str = ""
    repeats: bool = False

    @property
    def keys(self) -> list[str]:
        """The names of all learners for users, each once."""
        return list(dict.fromkeys(t.key for row in self.rows for t in row.trials))

    def list_trials(self, learner_keys: Iterable[str] = ()) -> list[ExperimentTrial]:
        """List the trials of these learners or of all, each once."""
        chosen = set(learner_keys)
        for key in chosen - set(self.keys):
            raise ValueError(
                f"The experiment {self.name} has no learner {key!r}. Choose one of "
                f"{'; '.join(self.keys)}."
            )
        trials = {
            trial.identity: trial
            for row in self.rows
            for trial in row.trials
            if not chosen or trial.key in chosen
        }
        return list(trials.values())
