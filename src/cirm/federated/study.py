"""What the server and all sites of a study must agree on, and when they meet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from cirm.admm import ADMM, View
from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.objectives import Batch
from cirm.randomness import Randomness
from cirm.training import Descent

LEARNERS = ("birm", "bvirm")


class Consensus(Protocol):
    """A learner whose environments meet only in an average: BIRM and BVIRM."""

    @property
    def admm(self) -> ADMM:
        """Weights and lengths of the rounds."""

    @property
    def descent(self) -> Descent:
        """How to descend."""

    def init(self, randomness: Randomness) -> Any:  # noqa: ANN401  its own state
        """The state before any data."""

    def start_stage(self, state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Features [replica, f] and w [replica, q] that a stage starts from."""

    def get_prior(self, state: Any) -> Tensor:  # noqa: ANN401
        """What an environment must know of the past."""

    def make_viewer(
        self, prior: Tensor, examples: int
    ) -> Callable[[Tensor, Batch], View]:
        """What a batch of a stage with so many examples says."""

    def finish_stage(self, features: Tensor, shared: Tensor, local: Tensor) -> Any:  # noqa: ANN401
        """The state after a stage that ends so."""


@dataclass(frozen=True)
class Study:
    """A learner with its settings, the seeds, and what the data are like.

    `name` tells studies apart that meet the same sites; `begun` those of one name that
    were begun anew.
    """

    name: str
    learner: str
    features: tuple[int, ...]
    classes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    seeds: tuple[int, ...] = (0,)
    begun: str = ""

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise ValueError(
                f"study: the learner must be one of {', '.join(LEARNERS)}; "
                f"got {self.learner!r}"
            )
        for told in (self.name, f"_{self.begun}"):  # they name files at the sites
            if not told.isidentifier():
                raise ValueError(
                    "study: its name must be letters, digits and underscores; "
                    f"got {told!r}"
                )

    @property
    def task(self) -> Task:
        """What is predicted."""
        return Task(self.classes)

    def made(self) -> Consensus:
        """The learner."""
        targets = torch.zeros(1, dtype=torch.int64 if self.classes else torch.float32)
        like = Environment("any", torch.zeros(1, *self.features), targets, self.task)
        made = create(self.learner, like, self.settings, self.preset)
        return cast(Consensus, made)

    def text(self) -> str:
        """The study as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Study:
        """The study that `text` made."""
        try:
            content = json.loads(text)
            return cls(**{name: _frozen(value) for name, value in content.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"study: it must be a study as JSON; got {error}"
            ) from None


class Visit(NamedTuple):
    """Steps `first` to `last` of a stage, which sites take on their own.

    Then they meet, or not. The features move, or not: `slopes` at what was shared
    during the steps, `moves` at what is shared after the meeting. `final` is the
    stage's last visit, which always meets.
    """

    first: int
    last: int
    meets: bool
    slopes: bool
    moves: bool
    final: bool


def visits(admm: ADMM, epochs: int, steps: int, features: bool) -> Iterator[Visit]:
    """A stage in visits; an epoch has so many batches."""
    length, total = admm.count_round_steps(steps), epochs * steps * admm.turns
    first = 0
    while first < total:
        stops = [(first // length + 1) * length, total]
        if features:
            stops.append((first // admm.turns + 1) * admm.turns)
        last = min(stops)
        final, ends = last == total, last % length == 0
        moves = features and last % admm.turns == 0
        yield Visit(
            first, last, final or ends, moves and not ends, moves and ends, final
        )
        first = last


def _frozen(value: Any) -> Any:  # noqa: ANN401  any JSON
    """Lists as the tuples that they were."""
    if isinstance(value, dict):
        return {name: _frozen(part) for name, part in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
