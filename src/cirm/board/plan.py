"""The jobs of the board: for each cell a search, and runs with the settings it picks.

Settings are chosen by a rule that sees no unseen place, with the same number of trials
for every row. The oracle's choice, by the unseen score, is run beside it: it shows how
much the choice costs, and is never a result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from cirm.board.columns import (
    ACCURACY,
    EnvironmentOrderVariant,
    LeaderboardDataset,
    PreparedLeaderboardDataset,
)
from cirm.board.rows import LeaderboardLearner
from cirm.environments import Stream
from cirm.evaluation.selection import get_selection_rule
from cirm.learners import list_learner_settings
from cirm.runs.jobs import TrainingJob
from cirm.runs.plans import DrawnDataset, create_and_draw_dataset, plan_jobs_of_learner
from cirm.runs.search import (
    SearchTrialJob,
    SettingsRandomSearch,
    format_setting_value,
    remove_test_environments,
    summarise_random_search,
)
from cirm.runs.search_space import parse_search_space

ORACLE = "oracle"
CHOICES = ("honest", ORACLE)
HELD_OUT = "held-out"  # the rule where no other can be used
SAMPLES = {"samples": "2"}
"""Monte-Carlo samples of variational learners, whose steps would otherwise take 5 to 10
times as long as those of other learners."""


@dataclass(frozen=True)
class LeaderboardRunSettings:
    """What every row gets alike.

    Attributes:
        seeds: Seeds of the runs with the chosen settings.
        trials: Number of settings that are tried, the first of them the defaults.
        trial_seeds: Seeds of each trial; one if environments are inferred.
        settings: Settings of all learners that have them, as text.
        inference: Settings of environment inference.
        block: Number of rows whose cells of a column are run together; 0 if
            the whole board is.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    trials: int = 4
    trial_seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    inference: Mapping[str, Any] = field(default_factory=dict, hash=False)
    block: int = 6


FULL = LeaderboardRunSettings(settings=SAMPLES)
QUICK = LeaderboardRunSettings(
    trials=2,
    settings={"epochs": "30", "iterations": "30", **SAMPLES},
    inference={"epochs": 30, "steps": 0},
    block=0,  # its jobs are short
)


@dataclass(frozen=True, eq=False)
class LeaderboardTask:
    """A row on one variant of a column.

    Attributes:
        row: The row.
        column: The column.
        data: The data set of the variant.
        order: Order of the environments.
        effort: What every row gets.
    """

    row: LeaderboardLearner
    column: LeaderboardDataset
    data: DrawnDataset
    order: str
    effort: LeaderboardRunSettings

    @property
    def rule(self) -> str:
        """The rule that chooses settings here: the column's, if it can be used."""
        train = self.data.problem.train
        stages = len(Stream.from_order(train, self.order))
        rule = get_selection_rule(self.column.rule)
        return HELD_OUT if rule.find_obstacle(stages, len(train), 1) else rule.name

    @property
    def settings(self) -> dict[str, str]:
        """Fixed settings, as text: those of the effort and those of the row."""
        names = {name for name, _, _ in list_learner_settings(self.row.learner)}
        common = {n: v for n, v in self.effort.settings.items() if n in names}
        own = {n: format_setting_value(v) for n, v in self.row.settings.items()}
        return {**common, **own}

    @cached_property
    def search(self) -> SettingsRandomSearch:
        """The search over settings, which draws the same trials for every seed."""
        from cirm.learners import parse_learner_settings

        row = self.row
        fixed = parse_learner_settings(row.learner, self.settings)
        features = self.data.problem.train[0].features
        space = parse_search_space(row.learner, (), features)
        return SettingsRandomSearch(
            remove_test_environments(self.data),
            row.learner,
            self.order,
            self.effort.trial_seeds[:1] if row.infer else self.effort.trial_seeds,
            {name: part for name, part in space.items() if name not in fixed},
            (self.rule, ORACLE),
            self.effort.trials,
            settings=fixed,
            infer=row.infer,
            inference=self.effort.inference if row.infer else None,
        )

    def plan_runs_of_chosen_settings(
        self, folder: Path
    ) -> dict[str, list[TrainingJob]]:
        """Plan the runs of what the rule and the oracle pick, once trials have run."""
        picks = summarise_random_search(self.search, folder)["picks"]
        chosen = {"honest": picks.get(self.rule), ORACLE: picks.get(ORACLE)}
        return {
            name: self._plan_runs_of_settings(pick["settings"], name)
            for name, pick in chosen.items()
            if pick is not None
        }

    def _plan_runs_of_settings(
        self, settings: Mapping[str, Any], choice: str
    ) -> list[TrainingJob]:
        texts = [f"{n}={format_setting_value(value)}" for n, value in settings.items()]
        jobs = plan_jobs_of_learner(
            self.data, self.row.learner, self.order, self.effort.seeds,
            setting_texts=texts, infer=self.row.infer, label=self.row.name,
            adapt=("all",),
        )  # fmt: skip
        rule = self.rule if choice == "honest" else ORACLE
        words = f"{self.effort.trials} trials, chosen by the rule {rule}"
        inference = dict(self.effort.inference) if self.row.infer else {}
        has_measures = self.column.measure != ACCURACY
        return [
            replace(job, selection=words, diagnose=has_measures, inference=inference)
            for job in jobs
        ]


@dataclass(frozen=True, eq=False)
class LeaderboardPlan:
    """The tasks of the board, and why some columns are left out.

    Attributes:
        rows: The rows.
        columns: The columns whose data are there.
        tasks: A row on a variant of a column, for all that go together.
        absent: Why other columns are left out, by their title.
        effort: What every row gets.
    """

    rows: Sequence[LeaderboardLearner]
    columns: Sequence[PreparedLeaderboardDataset]
    tasks: Sequence[LeaderboardTask]
    absent: Mapping[str, str]
    effort: LeaderboardRunSettings

    def split_plan_by_learner_blocks(self) -> list[LeaderboardPlan]:
        """Return plans of some rows on one column each, the most informative first.

        A tier of rows goes over all columns before the next one starts, and the cells
        of a block are finished before those of the next, so that a board that is
        interrupted has whole columns of the rows that say most.
        """
        if not self.effort.block:
            return [self]
        rows = sorted(self.rows, key=lambda row: row.priority)
        blocks = []
        for _, own in groupby(rows, key=lambda row: row.priority[0]):
            tier = list(own)
            for prepared in self.columns:
                blocks += self._split_column_into_blocks(tier, prepared.column)
        return [replace(self, tasks=tasks) for tasks in blocks]

    def _split_column_into_blocks(
        self, rows: Sequence[LeaderboardLearner], column: LeaderboardDataset
    ) -> list[list[LeaderboardTask]]:
        """Return the tasks of these rows on a column, for some rows at a time."""
        own = [
            tasks
            for row in rows
            if (tasks := [t for t in self.tasks if t.row is row and t.column is column])
        ]
        size = self.effort.block
        starts = range(0, len(own), size)
        return [list(chain(*own[start : start + size])) for start in starts]

    def list_trials(self) -> list[SearchTrialJob]:
        """List the jobs of all searches, each once."""
        jobs = [job for task in self.tasks for job in task.search.plan_jobs()]
        return list({job.key: job for job in jobs}.values())

    def list_runs(
        self, folder: Path, choices: Collection[str] = CHOICES
    ) -> list[TrainingJob]:
        """List the runs of these choices, each once, once the trials have finished."""
        jobs = [
            job
            for task in self.tasks
            for choice, own in task.plan_runs_of_chosen_settings(folder).items()
            if choice in choices
            for job in own
        ]
        return list({job.key: job for job in jobs}.values())


def plan_leaderboard(
    rows: Sequence[LeaderboardLearner],
    columns: Sequence[PreparedLeaderboardDataset],
    absent: Mapping[str, str],
    effort: LeaderboardRunSettings,
) -> LeaderboardPlan:
    """Plan every row on every column whose kind of task it takes."""
    tasks = [
        task
        for row in rows
        for prepared in columns
        if prepared.task in row.tasks
        for variant, data in zip(prepared.column.variants, prepared.data, strict=True)
        if (task := _plan_leaderboard_task(row, prepared.column, variant, data, effort))
    ]
    return LeaderboardPlan(rows, columns, tasks, absent, effort)


def _plan_leaderboard_task(
    row: LeaderboardLearner,
    column: LeaderboardDataset,
    variant: EnvironmentOrderVariant,
    data: DrawnDataset,
    effort: LeaderboardRunSettings,
) -> LeaderboardTask | None:
    """Return the task of a row, with true groups where the data set has them."""
    order = variant.order
    if row.has_true_groups:
        if column.dataset != "colored":
            return None
        count = len(data.problem.train)
        data = create_and_draw_dataset(
            column.dataset, {**variant.data, "groups": "true"}
        )
        order = "+".join(["2"] * count)  # both groups of a place arrive together
    return LeaderboardTask(row, column, data, order, effort)
