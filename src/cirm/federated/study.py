"""What the server and all sites of a study agree on, and when they exchange."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from cirm.admm import ADMM
from cirm.environments import Environment, Task
from cirm.learners import create

if TYPE_CHECKING:
    from cirm.learners.birm import BIRM

SUPPORTED_LEARNERS = ("birm", "bvirm")


@dataclass(frozen=True)
class FederatedStudySettings:
    """A learner with its settings, the seeds, and the form of the data.

    `name` distinguishes studies that share sites, and `run_id` those of the same name
    that were started anew. There are no classes in regression.
    """

    name: str
    learner: str
    features: tuple[int, ...]
    classes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    seeds: tuple[int, ...] = (0,)
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.learner not in SUPPORTED_LEARNERS:
            raise ValueError(
                f"study: the learner {self.learner!r} cannot be trained at separate "
                f"sites. Use one of {', '.join(SUPPORTED_LEARNERS)}."
            )
        for name in (self.name, f"_{self.run_id}"):  # both are parts of file names
            if not name.isidentifier():
                raise ValueError(
                    f"study: the name {name!r} cannot be used. Use letters, digits and "
                    "underscores only."
                )

    @property
    def task(self) -> Task:
        """Classification of the classes, or regression."""
        return Task(self.classes)

    def create_learner_of_study(self) -> BIRM:
        """Create the learner; BVIRM has the methods of BIRM that are used here."""
        targets = torch.zeros(1, dtype=torch.int64 if self.classes else torch.float32)
        like = Environment("any", torch.zeros(1, *self.features), targets, self.task)
        return cast("BIRM", create(self.learner, like, self.settings, self.preset))

    def check_data_format_of_site(
        self, site_name: str, input_shape: tuple[int, ...], classes: tuple[str, ...]
    ) -> None:
        """Refuse a site whose data have another form."""
        if (input_shape, classes) != (self.features, self.classes):
            raise ValueError(
                f"site {site_name!r}: the inputs of the site have the shape "
                f"{list(input_shape)} and its classes are {list(classes)}, but in the "
                f"study the shape is {list(self.features)} and the classes are "
                f"{list(self.classes)}. Prepare the data of all sites in the same way."
            )

    def to_json(self) -> str:
        """Return the study as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> FederatedStudySettings:
        """Return the study that `to_json` described."""
        try:
            content = json.loads(text)
            return cls(
                **{
                    name: _convert_lists_to_tuples(value)
                    for name, value in content.items()
                }
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"study: the settings that the server sent cannot be read: {error}. "
                "Check that the server and its sites run the same version of cirm."
            ) from None


class FederatedStageInfo(NamedTuple):
    """A stage: its number, the steps of an epoch, and the examples of all sites."""

    number: int
    steps: int
    examples: int


class StageStepRange(NamedTuple):
    """Steps `first` to `last` of a stage, which sites take on their own.

    If it `averages`, the sites then send their values to be averaged. The server takes
    a gradient step on the features before this average, after it, or not at all. The
    last segment of a stage always averages.
    """

    first: int
    last: int
    averages: bool
    updates_features_before_average: bool
    updates_features_after_average: bool
    is_last: bool


class SiteAssignment(NamedTuple):
    """What the server asks of a site."""

    study: FederatedStudySettings
    stage: FederatedStageInfo
    segment: StageStepRange

    def to_dict(self) -> dict[str, Any]:
        """Return the assignment as JSON values."""
        parts = {"stage": list(self.stage), "segment": list(self.segment)}
        return {"study": self.study.to_json(), **parts}

    @classmethod
    def from_dict(cls, notes: Mapping[str, Any]) -> SiteAssignment:
        """Return the assignment that `to_dict` described."""
        study = FederatedStudySettings.from_json(notes["study"])
        return cls(
            study,
            FederatedStageInfo(*notes["stage"]),
            StageStepRange(*notes["segment"]),
        )


def split_stage_into_step_ranges(
    admm: ADMM, n_epochs: int, steps_per_epoch: int, has_features: bool
) -> Iterator[StageStepRange]:
    """Split a stage into segments; a step is a batch of an epoch."""
    length, total = (
        admm.count_steps_per_admm_round(steps_per_epoch),
        n_epochs * steps_per_epoch * admm.steps_per_batch,
    )
    first = 0
    while first < total:
        stops = [(first // length + 1) * length, total]
        if has_features:
            stops.append((first // admm.steps_per_batch + 1) * admm.steps_per_batch)
        last = min(stops)
        is_last, ends_round = last == total, last % length == 0
        moves = has_features and last % admm.steps_per_batch == 0
        before, after = moves and not ends_round, moves and ends_round
        yield StageStepRange(first, last, is_last or ends_round, before, after, is_last)
        first = last


def _convert_lists_to_tuples(value: Any) -> Any:  # noqa: ANN401  any JSON
    """Turn the lists of JSON back into tuples."""
    if isinstance(value, dict):
        return {name: _convert_lists_to_tuples(part) for name, part in value.items()}
    return (
        tuple(map(_convert_lists_to_tuples, value))
        if isinstance(value, list)
        else value
    )
