"""The cells of the stress map: kinds of shortcut, each under several conditions.

Conditions vary one factor at a time around the usual one: two environments of 1,000
examples, shortcuts that contradict 20 and then 10 % of the labels (90 % in the unseen
environment), 25 % noise of the labels, a multilayer perceptron.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cirm.data import create_dataset
from cirm.data.base import list_evenly_spaced_numbers
from cirm.data.planted import (
    list_table_files_in_folder,
    parse_folder_target_and_files,
)
from cirm.evaluation.adaptation import RowCount
from cirm.learners import get_learner_class
from cirm.runs.jobs import TrainingJob, hash_dataset_files

ADAPT: tuple[RowCount, ...] = (30, 100, 300, "all")
BASELINE = "erm"


class ShortcutKind(NamedTuple):
    """A kind of shortcut.

    Attributes:
        name: Its name on the command line.
        title: What it is, in a few words.
        dataset: Key of the data set.
        data: Settings of the data set.
    """

    name: str
    title: str
    dataset: str
    data: dict[str, Any]


class StressTestCondition(NamedTuple):
    """One factor that differs from the usual condition.

    Attributes:
        factor: Name of the factor; empty for the usual condition.
        value: Its value, in a few words.
        data: Settings of the data set.
        settings: Settings of the learners.
    """

    factor: str
    value: str
    data: dict[str, Any] = {}
    settings: dict[str, Any] = {}


USUAL = StressTestCondition("", "usual")
CONDITIONS = (
    USUAL,
    StressTestCondition("contradicted", "0.3, 0.25", {"flips": (0.3, 0.25)}),
    StressTestCondition("contradicted", "0.1, 0.2", {"flips": (0.1, 0.2)}),
    StressTestCondition("contradicted", "0.05, 0.02", {"flips": (0.05, 0.02)}),
    StressTestCondition("noise", "0", {"label_flip": 0.0}),
    StressTestCondition("noise", "0.05", {"label_flip": 0.05}),
    StressTestCondition("noise", "0.1", {"label_flip": 0.1}),
    StressTestCondition("noise", "0.35", {"label_flip": 0.35}),
    StressTestCondition("examples", "300", {"examples": 300}),
    StressTestCondition("examples", "5,000", {"examples": 5000}),
    StressTestCondition("places", "3", {"environments": 3}),
    StressTestCondition("places", "6", {"environments": 6}),
    StressTestCondition("places", "10", {"environments": 10}),
    StressTestCondition("network", "cnn", settings={"network": "cnn"}),
)
QUICK = {"0.3, 0.25", "0.05, 0.02", "0", "300", "3", "6", "cnn"}
"""Values of the conditions of the quick form, for one kind."""

TITLES = {
    "figure": "colour of the figure",
    "background": "colour of the background",
    "corner": "square in a corner",
    "stripes": "faint stripes",
    "two": "colour and square at once",
    "new": "another shortcut at each place",
    "classes-random": "ten hues, random when unseen",
    "classes-opposite": "ten hues, opposite when unseen",
    "none": "no shortcut",
}
SAME_IMAGES_WITHOUT_SHORTCUT = {
    "two": "figure",
    "new": "figure",
    "corner": "none",
    "stripes": "none",
    "classes-opposite": "classes-random",
}
"""Kinds whose images without the shortcut are those of another kind."""
SETTINGS_OF_SHORTCUT = ("flips", "test_flip", "plant")
PLANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "binary": ("binary column", {"plant": "binary"}),
    "numeric": ("numeric column", {"plant": "numeric"}),
    "mild": (
        "weak binary column",
        {"plant": "binary", "flips": (0.15, 0.3), "test_flip": 0.5},
    ),
}


@dataclass(frozen=True)
class StressTestCell:
    """A kind of shortcut under a condition.

    Attributes:
        kind: The kind of shortcut.
        condition: The condition.
        data: All settings of the data set.
    """

    kind: ShortcutKind
    condition: StressTestCondition
    data: dict[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """Kind and condition in a few words."""
        words = [self.kind.name, self.condition.factor, self.condition.value]
        return " ".join(filter(None, words))

    def plan_jobs_by_role(
        self, learner: str, seeds: Sequence[int]
    ) -> dict[str, list[TrainingJob]]:
        """Plan the jobs of each role: the learner, its oracle and plain training."""
        jobs = {
            "learner": self._plan_jobs_of_learner(learner, seeds, ADAPT),
            BASELINE: self._plan_jobs_of_learner(BASELINE, seeds),
        }
        data = self.describe_data_without_shortcut()
        # Grey images without a shortcut are those of the kind without one, where the
        # oracle is the learner itself.
        adapt = ADAPT if data.get("kind") == "none" else ()
        jobs["oracle"] = self._plan_jobs_of_learner(learner, seeds, adapt, data)
        return jobs

    def describe_data_without_shortcut(self) -> dict[str, Any]:
        """Return settings of the same data without the shortcut.

        They leave out what only the shortcut depends on, so that cells with the same
        images or rows share the job of the oracle.
        """
        data = {k: v for k, v in self.data.items() if k not in SETTINGS_OF_SHORTCUT}
        if self.kind.dataset == "shortcuts":
            kind = SAME_IMAGES_WITHOUT_SHORTCUT.get(self.kind.name, self.kind.name)
            data["kind"] = kind
        return data if data.get("kind") == "none" else {**data, "shortcut": False}

    def _plan_jobs_of_learner(
        self,
        learner: str,
        seeds: Sequence[int],
        adapt: tuple[RowCount, ...] = (),
        data: dict[str, Any] | None = None,
    ) -> list[TrainingJob]:
        data = self.data if data is None else data
        dataset = create_dataset(self.kind.dataset, data)
        network = self.condition.settings.get("network")
        # Seeds with small inputs learn side by side, which takes less time.
        is_small = self.kind.dataset == "planted" or data.get("source") == "digits"
        block = len(seeds) if is_small else 1
        return [
            TrainingJob(
                dataset=self.kind.dataset,
                learner=learner,
                order="sequential",
                seeds=tuple(seeds[start : start + block]),
                data=data,
                settings=dict(self.condition.settings),
                selection="defaults, the same in all cells",
                label=f"{learner}, {network}" if network else learner,
                files=hash_dataset_files(dataset, data),
                diagnose=False,
                adapt=adapt if get_learner_class(learner).adapts else (),
            )
            for start in range(0, len(seeds), block)
        ]


def list_shortcut_kinds(
    source: str, user_tables: Iterable[str] = ()
) -> list[ShortcutKind]:
    """List the kinds of shortcut: in images, and in synthetic and real tables."""
    kinds = []
    for name, title in TITLES.items():
        data: dict[str, Any] = {"source": source, "kind": name}
        if name.startswith("classes"):
            data["label_flip"] = 0.0  # noise of ten classes would hide the rest
        kinds.append(ShortcutKind(name, title, "shortcuts", data))
    for plant, (title, data) in PLANTS.items():
        kinds.append(ShortcutKind(f"table-{plant}", f"table: {title}", "planted", data))
    regression = {"plant": "numeric", "task": "regression"}
    name = "table-regression"
    kinds.append(ShortcutKind(name, "table: regression", "planted", regression))
    for table in user_tables:
        folder, target, _ = parse_folder_target_and_files(table)
        for plant, (title, data) in PLANTS.items():
            place = {"path": folder, "target": target, **data}
            name = Path(folder).name
            kinds.append(
                ShortcutKind(f"{name}-{plant}", f"{name}: {title}", "planted", place)
            )
    return kinds


def list_stress_test_cells(
    kinds: Sequence[ShortcutKind], source: str, quick: bool = False
) -> list[StressTestCell]:
    """List the cells of these kinds: one for each condition that applies."""
    cells = []
    for number, kind in enumerate(kinds):
        for condition in CONDITIONS:
            is_wanted = condition.value in QUICK if number == 0 else False
            if quick and not is_wanted and condition != USUAL:
                continue
            data = _combine_settings_of_kind_and_condition(kind, condition)
            if data is not None and _have_files_enough_rows(kind, condition, source):
                cells.append(StressTestCell(kind, condition, data))
    return cells


def _combine_settings_of_kind_and_condition(
    kind: ShortcutKind, condition: StressTestCondition
) -> dict[str, Any] | None:
    """Return the settings of the data set; None if the condition does not apply."""
    data = {**kind.data, **condition.data}
    if kind.dataset == "planted":
        if condition.factor not in ("", "examples", "places"):
            return None
        flips = kind.data.get("flips", ())
        if flips and condition.factor == "places":
            data["flips"] = list_evenly_spaced_numbers(
                flips[0], flips[-1], data["environments"]
            )
        return data
    if kind.name == "none" and condition.factor == "contradicted":
        return None
    if kind.name == "new" and condition.value in ("6", "10"):
        return None
    return data


def _have_files_enough_rows(
    kind: ShortcutKind, condition: StressTestCondition, source: str
) -> bool:
    """Whether the built-in digits and the files of real tables have enough rows."""
    count = condition.data.get("examples", 0) or condition.data.get("environments", 0)
    if kind.dataset == "shortcuts":
        return source != "digits" or condition.value not in ("5,000", "10")
    path = kind.data.get("path")
    if path is None:
        return True
    if condition.factor == "places":
        return count < len(list_table_files_in_folder(Path(path).expanduser()))
    return condition.value != "5,000"
