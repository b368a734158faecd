"""Environments, the order in which a learner meets them, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What is predicted: one of some named classes, or, without classes, a value."""

    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.classes) == 1 or len(set(self.classes)) < len(self.classes):
            raise ValueError(
                "task: classes must be none (regression) or two or more different "
                f"names; got {list(self.classes)}"
            )

    @classmethod
    def classification(cls, count: int) -> Task:
        """Classes named "0", "1", ..."""
        if count < 2:
            raise ValueError(f"task: there must be two or more classes; got {count}")
        return cls(tuple(map(str, range(count))))

    @classmethod
    def regression(cls) -> Task:
        """A real value."""
        return cls()

    @property
    def kind(self) -> str:
        """The word for it: classification or regression."""
        return "classification" if self.classes else "regression"


class Inputs(Protocol):
    """Inputs that are made when they are asked for, with a replica axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, *features]."""

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [replica, m, *features] of the rows [replica, m]."""


class Examples(NamedTuple):
    """Inputs [replica, n, *features] and targets [replica, n]."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Environment:
    """Examples drawn from one distribution.

    Inputs are [n, *features] and targets [n], the same for every replica; or, if
    `replicated`, each replica has its own: [replica, n, *features] and [replica, n].
    Targets are class indices (int64) or real values, as the task says. Real numbers
    of another precision, as NumPy's, are brought to float32.
    """

    name: str
    inputs: Tensor | Inputs
    targets: Tensor
    task: Task
    replicated: bool = False

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in ("inputs", "targets"):
            values = getattr(self, name)
            if isinstance(values, Tensor) and values.is_floating_point():
                object.__setattr__(self, name, values.float())
        lead = 2 if self.replicated else 1
        wanted = "[n, ...] and targets [n]"
        if self.replicated:
            wanted = "[replica, n, ...] and targets [replica, n]"
        shape, got = tuple(self.inputs.shape), tuple(self.targets.shape)
        if len(shape) <= lead or got != shape[:lead]:
            raise ValueError(
                self._complaint(
                    f"inputs must be {wanted}", f"{list(shape)} and {list(got)}"
                )
            )
        if 0 in shape:
            raise ValueError(
                self._complaint("there must be examples and features", list(shape))
            )
        if isinstance(self.inputs, Tensor):
            if not self.inputs.is_floating_point():
                raise ValueError(
                    self._complaint("inputs must be floating point", self.inputs.dtype)
                )
            self._check_finite("inputs", self.inputs)
        self._check_targets()

    def _check_kinds(self) -> None:
        wanted, inputs = "a tensor", self.inputs
        # A NumPy array has a `take` too, with another meaning.
        made = hasattr(inputs, "take") and not hasattr(inputs, "__array__")
        if self.replicated:
            wanted += ", or made on request"
        if not isinstance(inputs, Tensor) and not (self.replicated and made):
            raise ValueError(
                self._complaint(f"inputs must be {wanted}", type(inputs).__name__)
            )
        if not isinstance(self.targets, Tensor):
            raise ValueError(
                self._complaint("targets must be a tensor", type(self.targets).__name__)
            )

    def _check_targets(self) -> None:
        classes = len(self.task.classes)
        if not classes:
            if not self.targets.is_floating_point():
                raise ValueError(
                    self._complaint(
                        "regression needs floating point targets", self.targets.dtype
                    )
                )
            self._check_finite("targets", self.targets)
        elif self.targets.dtype != torch.int64:
            raise ValueError(
                self._complaint(
                    "classification needs class indices (int64)", self.targets.dtype
                )
            )
        elif self.targets.min() < 0 or self.targets.max() >= classes:
            outside = self.targets[(self.targets < 0) | (self.targets >= classes)]
            raise ValueError(
                self._complaint(
                    f"targets must be declared classes 0 to {classes - 1}",
                    outside.unique().tolist()[:5],
                )
            )

    def _check_finite(self, what: str, values: Tensor) -> None:
        # A sum is finite only if all its terms are, and is far faster to check.
        if values.sum().isfinite():
            return
        bad = ~values.isfinite()
        if bad.any():
            where = bad.nonzero()[0].tolist()
            raise ValueError(
                self._complaint(
                    f"{what} must be finite",
                    f"{int(bad.sum())} NaN or infinite values, the first at {where}",
                )
            )

    def _complaint(self, must: str, got: object) -> str:
        return f"environment {self.name!r}: {must}; got {got}"

    def __len__(self) -> int:
        return int(self.targets.shape[-1])

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of one example's inputs."""
        return tuple(self.inputs.shape[2 if self.replicated else 1 :])

    def take(self, rows: Tensor) -> Examples:
        """The examples at rows [replica, m] of each replica."""
        if not self.replicated:
            assert isinstance(self.inputs, Tensor)
            picked = self.inputs.index_select(0, rows.flatten())
            return Examples(picked.unflatten(0, rows.shape), self.targets[rows])
        self._check_replicas(len(rows))
        if not isinstance(self.inputs, Tensor):
            return Examples(self.inputs.take(rows), self.targets.gather(1, rows))
        # One index_select over all replicas: several times faster than indexing.
        places = (rows + len(self) * torch.arange(len(rows))[:, None]).flatten()
        picked = self.inputs.flatten(0, 1).index_select(0, places)
        return Examples(picked.unflatten(0, rows.shape), self.targets.gather(1, rows))

    def take_all(self, replicas: int) -> Examples:
        """Every example, in order, for each of so many replicas."""
        if isinstance(self.inputs, Tensor):
            if self.replicated:
                self._check_replicas(replicas)
                return Examples(self.inputs, self.targets)
            x = self.inputs.expand(replicas, *self.inputs.shape)
            return Examples(x, self.targets.expand(replicas, -1))
        return self.take(torch.arange(len(self)).expand(replicas, -1))

    def subset(self, rows: Tensor) -> Environment:
        """An environment of the examples at rows [replica, m], in that order.

        Inputs are not copied: they are taken from this environment on request.
        """
        if rows.ndim != 2 or rows.dtype != torch.int64:
            raise ValueError(
                self._complaint(
                    "rows must be whole numbers (int64) [replica, m]",
                    f"{rows.dtype} {list(rows.shape)}",
                )
            )
        if rows.numel() and not 0 <= rows.min() <= rows.max() < len(self):
            raise ValueError(
                self._complaint(
                    f"rows must be from 0 to {len(self) - 1}",
                    f"{int(rows.min())} to {int(rows.max())}",
                )
            )
        if not self.replicated:
            targets = self.targets[rows]
        else:
            self._check_replicas(len(rows))
            targets = self.targets.gather(1, rows)
        return replace(
            self, inputs=SubsetInputs(self, rows), targets=targets, replicated=True
        )

    def _check_replicas(self, replicas: int) -> None:
        if replicas != len(self.targets):
            raise ValueError(
                self._complaint(
                    f"it was drawn for {len(self.targets)} replicas", replicas
                )
            )

    def rename(self, name: str) -> Environment:
        """The same examples under another name."""
        return replace(self, name=name)


@dataclass(frozen=True, eq=False)
class SubsetInputs:
    """Inputs at chosen rows [replica, m] of another environment."""

    whole: Environment
    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, m, *features]."""
        return (*self.rows.shape, *self.whole.features)

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [replica, k, *features] of the rows [replica, k] of those chosen."""
        return self.whole.take(self.rows.gather(1, rows)).x


Stage = tuple[Environment, ...]  # the environments a learner may see together


@dataclass(frozen=True)
class Stream:
    """Stages in order of arrival."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            raise ValueError(
                "stream: it must have a stage, and no stage may be empty; "
                f"got {[len(stage) for stage in self.stages]} environments"
            )
        check_compatible([e for stage in self.stages for e in stage])

    @classmethod
    def joint(cls, environments: Iterable[Environment]) -> Stream:
        """Every environment at once: the setting of ordinary IRM."""
        return cls((tuple(environments),))

    @classmethod
    def sequential(cls, environments: Iterable[Environment]) -> Stream:
        """One environment at a time: the continual setting."""
        return cls(tuple((environment,) for environment in environments))

    @classmethod
    def from_order(cls, environments: Iterable[Environment], order: str) -> Stream:
        """Stages by an order's name, or by a mixed one such as "2+1+3".

        A mixed order gives the number of environments that arrive together.
        """
        environments = tuple(environments)
        if order == "joint":
            return cls.joint(environments)
        if order == "sequential":
            return cls.sequential(environments)
        sizes = [int(n) if n.isdecimal() else 0 for n in order.split("+")]
        if 0 in sizes or sum(sizes) != len(environments):
            raise ValueError(
                "order: it must be joint, sequential, or stage sizes that add up to "
                f"the {len(environments)} environments, such as 2+1; got {order!r}"
            )
        arriving = iter(environments)
        return cls(tuple(tuple(next(arriving) for _ in range(n)) for n in sizes))

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)


@dataclass(frozen=True)
class Problem:
    """What a data set offers: places to learn from, and places never seen.

    `train` is in order of arrival; `test` are the unseen environments that give the
    score; `sweep` are further unseen ones, each with its place on an axis, for
    curves; `truth` are the true linear coefficients, where they are known, as
    [replica, 2, features]: the first row holds the coefficients and the second is 1
    where the feature is causal, else 0. If the inputs are a mixture of the features
    that these belong to, the rows of the mixing matrix follow. `fresh` are further
    examples of each training environment, under the same names, that nothing is
    trained on: for diagnostics; there are none where the data are all there is.
    """

    train: tuple[Environment, ...]
    test: tuple[Environment, ...] = ()
    sweep: tuple[tuple[float, Environment], ...] = ()
    truth: Tensor | None = None
    fresh: tuple[Environment, ...] = ()

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("problem: there must be a training environment; got none")
        check_compatible([*self.train, *self.test, *(e for _, e in self.sweep)])
        names = [environment.name for environment in self.fresh]
        if self.fresh and names != [environment.name for environment in self.train]:
            raise ValueError(
                "problem: fresh examples must be of the training environments, in "
                f"their order; got {names}"
            )
        for own, more in zip(self.train, self.fresh, strict=False):
            check_compatible([own, more.rename(f"{own.name}, fresh")])


def check_compatible(environments: Iterable[Environment]) -> None:
    """Refuse equal names, and features or tasks that differ between environments."""
    seen: dict[str, Environment] = {}
    for environment in environments:
        if environment.name in seen:
            raise ValueError(
                "environments must have different names; "
                f"got {environment.name!r} more than once"
            )
        first = next(iter(seen.values()), environment)
        if environment.features != first.features:
            raise ValueError(
                f"environment {environment.name!r}: features must be "
                f"{list(first.features)} as in {first.name!r}; "
                f"got {list(environment.features)}"
            )
        if environment.task != first.task:
            raise ValueError(
                f"environment {environment.name!r}: the task must be that of "
                f"{first.name!r}, {first.task}; got {environment.task}"
            )
        seen[environment.name] = environment
