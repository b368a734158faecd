"""Environments, the order in which they arrive, and the task they pose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from cirm.tasks import Task as Task


class LazyInputs(Protocol):
    """Inputs that are computed when they are needed, with a replica axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, *features]."""

    def take(self, rows: Tensor) -> Tensor:
        """Return the inputs [replica, m, *features] of rows [replica, m]."""


class Examples(NamedTuple):
    """Inputs [replica, n, *features] and targets [replica, n]."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Environment:
    """Examples drawn from one distribution, such as the patients of one clinic.

    Args:
        name: Name of the environment, unique among those it is used with.
        inputs: Real numbers [n, *features], the same for every replica; if
            `replicated`, [replica, n, *features], or an object that computes them when
            they are needed (see `LazyInputs`). They are converted to float32.
        targets: Class indices (int64), or for a regression real numbers: [n], or if
            `replicated` [replica, n].
        task: What is predicted.
        replicated: Whether each replica has examples of its own.
        weights: How much each example counts, in the shape of the targets: positive
            numbers, of which 2 counts like the same example twice. By default 1.

    Raises:
        ValueError: If shapes or types do not fit, there are no examples, a number is
            not finite, a target is not one of the classes, or a weight not positive.

    Example:
        >>> import torch
        >>> targets = torch.arange(6) % 2
        >>> clinic = Environment(
        ...     "a", torch.randn(6, 3), targets, Task.classification(2)
        ... )
        >>> len(clinic), clinic.features
        (6, (3,))
        >>> x, y = clinic.take(torch.tensor([[0, 5]]))  # two rows for one replica
        >>> y.tolist()
        [[0, 1]]
    """

    name: str
    inputs: Tensor | LazyInputs
    targets: Tensor
    task: Task
    replicated: bool = False
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        self._check_types_of_tensors()
        for name in ("inputs", "targets", "weights"):
            values = getattr(self, name)
            if isinstance(values, Tensor) and values.is_floating_point():
                object.__setattr__(self, name, values.float())
        self._check_shapes_of_tensors()
        if isinstance(self.inputs, Tensor):
            if not self.inputs.is_floating_point():
                self._raise_environment_error(
                    f"the inputs have the type {self.inputs.dtype}. Convert them with "
                    "inputs.float()"
                )
            self._check_values_are_finite("inputs", self.inputs)
        self._check_target_values()
        if self.weights is not None:
            if self.weights.shape != self.targets.shape:
                self._raise_environment_error(
                    f"the weights have the shape {list(self.weights.shape)}, but the "
                    f"targets have {list(self.targets.shape)}. Give one weight for "
                    "each target"
                )
            if not (self.weights > 0).all() or not self.weights.isfinite().all():
                self._raise_environment_error(
                    "a weight is zero, negative, NaN or infinite. Give each example a "
                    "positive weight, or leave the example out"
                )

    def _check_types_of_tensors(self) -> None:
        inputs = self.inputs
        # A NumPy array has a `take` too, with another meaning.
        lazy = hasattr(inputs, "take") and not hasattr(inputs, "__array__")
        if not isinstance(inputs, Tensor) and not (self.replicated and lazy):
            other = " or an object with a method take" if self.replicated else ""
            self._raise_environment_error(
                f"the inputs are of type {type(inputs).__name__}. Pass a torch "
                f"tensor{other}"
            )
        if not isinstance(self.targets, Tensor):
            self._raise_environment_error(
                f"the targets are of type {type(self.targets).__name__}. Pass a torch "
                "tensor"
            )

    def _check_shapes_of_tensors(self) -> None:
        axes = 2 if self.replicated else 1
        shape, targets = tuple(self.inputs.shape), tuple(self.targets.shape)
        if len(shape) <= axes or targets != shape[:axes]:
            n = "[replica, n" if self.replicated else "[n"
            self._raise_environment_error(
                f"the inputs have the shape {list(shape)} and the targets "
                f"{list(targets)}. Pass inputs of the shape {n}, ...] and targets of "
                f"the shape {n}]"
            )
        if 0 in shape:
            self._raise_environment_error(
                f"the inputs are empty: their shape is {list(shape)}. Pass at least "
                "one example with at least one feature"
            )

    def _check_target_values(self) -> None:
        classes, targets = len(self.task.classes), self.targets
        if not classes:
            if not targets.is_floating_point():
                self._raise_environment_error(
                    f"the targets of the regression have the type {targets.dtype}. "
                    "Convert them with targets.float()"
                )
            self._check_values_are_finite("targets", targets)
        elif targets.dtype != torch.int64:
            self._raise_environment_error(
                f"the targets of the classification have the type {targets.dtype}. "
                "Pass the index of each class as int64"
            )
        elif targets.min() < 0 or targets.max() >= classes:
            outside = targets[(targets < 0) | (targets >= classes)]
            self._raise_environment_error(
                f"the targets contain {outside.unique().tolist()[:5]}. Pass class "
                f"indices from 0 to {classes - 1}"
            )

    def _check_values_are_finite(self, what: str, values: Tensor) -> None:
        # A sum is finite only if all its terms are, and is far faster to check.
        if values.sum().isfinite():
            return
        bad = ~values.isfinite()
        if bad.any():
            self._raise_environment_error(
                f"the {what} contain NaN or infinite values ({int(bad.sum())} in "
                f"total), the first at {bad.nonzero()[0].tolist()}. Replace or remove "
                "them"
            )

    def _raise_environment_error(self, problem: str) -> NoReturn:
        raise ValueError(f"environment {self.name!r}: {problem}.")

    def __len__(self) -> int:
        return int(self.targets.shape[-1])

    @property
    def features(self) -> tuple[int, ...]:
        """Shape of one example's inputs."""
        return tuple(self.inputs.shape[2 if self.replicated else 1 :])

    def take(self, rows: Tensor) -> Examples:
        """Return the examples at rows [replica, m] of each replica."""
        if not self.replicated:
            assert isinstance(self.inputs, Tensor)
            x = self.inputs.index_select(0, rows.flatten())
            return Examples(x.unflatten(0, rows.shape), self.targets[rows])
        self._check_number_of_replicas(len(rows))
        if not isinstance(self.inputs, Tensor):
            return Examples(self.inputs.take(rows), self.targets.gather(1, rows))
        # One index_select over all replicas: several times faster than indexing.
        places = (rows + len(self) * torch.arange(len(rows))[:, None]).flatten()
        x = self.inputs.flatten(0, 1).index_select(0, places)
        return Examples(x.unflatten(0, rows.shape), self.targets.gather(1, rows))

    @property
    def total_weight(self) -> float:
        """The number of examples or, if they have weights, the sum of these."""
        if self.weights is None:
            return float(len(self))
        return float(self.weights.double().sum(-1).mean())

    def take_weights(self, rows: Tensor) -> Tensor | None:
        """Return the weights at rows [replica, m] of each replica, if there are any."""
        if self.weights is None:
            return None
        return self.weights.gather(1, rows) if self.replicated else self.weights[rows]

    def expand_weights(self, replicas: int) -> Tensor | None:
        """Return the weights of every example for each replica, if there are any."""
        return None if self.weights is None else self.weights.expand(replicas, -1)

    def take_all(self, replicas: int) -> Examples:
        """Return all examples, in order, for each replica."""
        if isinstance(self.inputs, Tensor):
            if self.replicated:
                self._check_number_of_replicas(replicas)
                return Examples(self.inputs, self.targets)
            x = self.inputs.expand(replicas, *self.inputs.shape)
            return Examples(x, self.targets.expand(replicas, -1))
        return self.take(torch.arange(len(self)).expand(replicas, -1))

    def subset(self, rows: Tensor) -> Environment:
        """Return an environment of the examples at rows [replica, m], in that order.

        Inputs are not copied: they are taken from this environment when needed.
        """
        if rows.ndim != 2 or rows.dtype != torch.int64:
            self._raise_environment_error(
                f"rows have the type {rows.dtype} and the shape {list(rows.shape)}. "
                "Pass integers (int64) of the shape [replica, m]"
            )
        if rows.numel() and not 0 <= rows.min() <= rows.max() < len(self):
            self._raise_environment_error(
                f"the rows are {int(rows.min())} to {int(rows.max())}. Pass numbers "
                f"from 0 to {len(self) - 1}"
            )
        if not self.replicated:
            targets = self.targets[rows]
        else:
            self._check_number_of_replicas(len(rows))
            targets = self.targets.gather(1, rows)
        return replace(
            self,
            inputs=LazySubsetInputs(self, rows),
            targets=targets,
            replicated=True,
            weights=self.take_weights(rows),
        )

    def _check_number_of_replicas(self, n_replicas: int) -> None:
        if n_replicas != len(self.targets):
            self._raise_environment_error(
                f"the environment has examples for {len(self.targets)} replicas, but "
                f"{n_replicas} are needed. Draw it with {n_replicas} seeds"
            )

    def rename(self, name: str) -> Environment:
        """Return the same examples under another name."""
        return replace(self, name=name)


@dataclass(frozen=True, eq=False)
class LazySubsetInputs:
    """Inputs at chosen rows [replica, m] of another environment."""

    whole: Environment
    rows: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, m, *features]."""
        return (*self.rows.shape, *self.whole.features)

    def take(self, rows: Tensor) -> Tensor:
        """Return the inputs [replica, k, *features] at rows [replica, k] of these."""
        return self.whole.take(self.rows.gather(1, rows)).x


Stage = tuple[Environment, ...]
"""The environments that a learner may see together."""


def count_examples(stage: Stage) -> float:
    """Return the number of examples of a stage, each counted by its weight."""
    return sum(environment.total_weight for environment in stage)


@dataclass(frozen=True)
class Stream:
    """Stages in order of arrival.

    Args:
        stages: The environments of each stage. All have the same features and task,
            and different names.

    Raises:
        ValueError: If there is no stage, a stage is empty, or environments do not fit
            together.

    Example:
        >>> import torch
        >>> def clinic(name):
        ...     y, task = torch.arange(6) % 2, Task.classification(2)
        ...     return Environment(name, torch.ones(6, 3), y, task)
        >>> clinics = [clinic(name) for name in "abc"]
        >>> [len(stage) for stage in Stream.create_sequential(clinics)]
        [1, 1, 1]
        >>> [len(stage) for stage in Stream.from_order(clinics, "2+1")]
        [2, 1]
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages or not all(self.stages):
            raise ValueError(
                "A stream needs at least one stage, and each stage at least one "
                "environment, but the stages have "
                f"{[len(stage) for stage in self.stages]} environments. Add "
                "environments, or remove the empty stages."
            )
        check_environments_match([e for stage in self.stages for e in stage])

    @classmethod
    def create_joint(cls, environments: Iterable[Environment]) -> Stream:
        """Return one stage with every environment, as in ordinary IRM."""
        return cls((tuple(environments),))

    @classmethod
    def create_sequential(cls, environments: Iterable[Environment]) -> Stream:
        """Return a stage for each environment, as in continual learning."""
        return cls(tuple((environment,) for environment in environments))

    @classmethod
    def from_order(cls, environments: Iterable[Environment], order: str) -> Stream:
        """Return the stages of an order.

        Args:
            environments: The environments in order of arrival.
            order: "joint", "sequential", or the number of environments in each stage,
                such as "2+1+3".

        Raises:
            ValueError: If the order is none of these, or its numbers do not add up to
                the number of environments.
        """
        environments = tuple(environments)
        if order == "joint":
            return cls.create_joint(environments)
        if order == "sequential":
            return cls.create_sequential(environments)
        sizes = [int(n) if n.isdecimal() else 0 for n in order.split("+")]
        if 0 in sizes or sum(sizes) != len(environments):
            raise ValueError(
                f"The order {order!r} does not fit the number of environments, "
                f"{len(environments)}. Use joint (all at once), sequential (one after "
                "another), or the sizes of stages, which must add up to "
                f"{len(environments)}: 2+1, for example, trains on two environments "
                "at once and then on a third."
            )
        remaining = iter(environments)
        return cls(tuple(tuple(next(remaining) for _ in range(n)) for n in sizes))

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)


@dataclass(frozen=True)
class Problem:
    """The environments of a data set: those to learn from, and unseen ones.

    Args:
        train: Training environments, in order of arrival.
        test: Unseen environments whose score is reported.
        sweep: Further unseen environments, each with its position on an axis, such as
            the strength of a shortcut, for curves.
        truth: The true linear coefficients, if they are known, [replica, 2, features]:
            the first row holds the coefficients, the second is 1 where the feature is
            causal and else 0. If the inputs are a mixture of these features, the rows
            of the mixing matrix follow.
        fresh: Further examples of each training environment, under the same names and
            in the same order, that are not trained on. Diagnostics use them.

    Raises:
        ValueError: If there is no training environment, or environments do not fit
            together.

    Example:
        >>> import torch
        >>> def clinic(name):
        ...     y, task = torch.arange(6) % 2, Task.classification(2)
        ...     return Environment(name, torch.ones(6, 3), y, task)
        >>> problem = Problem(train=(clinic("a"), clinic("b")), test=(clinic("c"),))
        >>> [environment.name for environment in problem.train]
        ['a', 'b']
    """

    train: tuple[Environment, ...]
    test: tuple[Environment, ...] = ()
    sweep: tuple[tuple[float, Environment], ...] = ()
    truth: Tensor | None = None
    fresh: tuple[Environment, ...] = ()

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError(
                "A problem needs at least one training environment, but train is "
                "empty. Pass one or more environments as train."
            )
        check_environments_match([*self.train, *self.test, *(e for _, e in self.sweep)])
        names = [environment.name for environment in self.fresh]
        expected = [environment.name for environment in self.train]
        if self.fresh and names != expected:
            raise ValueError(
                "The environments in `fresh` (new examples of the training "
                f"environments) are named {names}, but the environments in `train` "
                f"are named {expected}. Pass one environment in `fresh` for each "
                "environment in `train`, with the same name and in the same order, "
                "or leave `fresh` empty."
            )
        for environment, fresh in zip(self.train, self.fresh, strict=False):
            check_environments_match(
                [environment, fresh.rename(f"{fresh.name}, fresh")]
            )


def check_environments_match(environments: Iterable[Environment]) -> None:
    """Raise an error if names are equal, or features or tasks differ."""
    seen: dict[str, Environment] = {}
    for environment in environments:
        if environment.name in seen:
            raise ValueError(
                f"Two environments are named {environment.name!r}. Give them different "
                "names."
            )
        first = next(iter(seen.values()), environment)
        if environment.features != first.features:
            raise ValueError(
                f"environment {environment.name!r}: the inputs of an example have the "
                f"shape {list(environment.features)}, but in the environment "
                f"{first.name!r} they have {list(first.features)}. Give all "
                "environments inputs of the same shape."
            )
        if environment.task != first.task:
            raise ValueError(
                f"environment {environment.name!r}: the task is {environment.task}, "
                f"but in the environment {first.name!r} it is {first.task}. Give all "
                "environments the same task."
            )
        seen[environment.name] = environment
