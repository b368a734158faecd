"""Scores in unseen environments after adapting to some of their unlabelled rows.

A learner that can adapt is given the inputs of an unseen environment, without targets:
the first rows of a random order that depends only on the seed and on the name of the
environment, so that all learners adapt to the same rows, and fewer rows are a part of
more. The adapted state is scored on the whole environment, that is also on the rows
that it adapted to (a transductive evaluation).

These scores are records of a kind of their own. No selection rule gets them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from cirm.environments import Environment, Problem
from cirm.randomness import Randomness

if TYPE_CHECKING:
    from torch import Tensor

RowCount = int | Literal["all"]
"""How many unlabelled rows of an unseen environment a learner adapts to."""


def parse_adaptation_row_counts(values: Iterable[int | str]) -> tuple[RowCount, ...]:
    """Return numbers of rows to adapt to, each once, after checking them.

    Example:
        >>> parse_adaptation_row_counts(["300", "all", 300])
        (300, 'all')
    """
    counts: dict[RowCount, None] = {}
    for value in values:
        text = str(value)
        if text != "all" and not (text.isascii() and text.isdecimal() and int(text)):
            raise ValueError(
                f"--adapt is {text!r}. Give the number of rows to adapt to, 1 or "
                "more, or the word all for all rows."
            )
        counts["all" if text == "all" else int(text)] = None
    return tuple(counts)


def draw_unlabelled_inputs(
    environment: Environment, row_count: RowCount, seeds: tuple[int, ...]
) -> Tensor:
    """Return the inputs that learners adapt to, [replica, n, ...]."""
    source = Randomness(seeds).at("adapt", environment.name)
    order = source.permutation(len(environment))
    rows = order if row_count == "all" else order[:, :row_count].contiguous()
    return environment.take(rows).x


def list_unseen_environments(
    problem: Problem,
) -> list[tuple[str, float | None, Environment]]:
    """Return split, position and environment of all that a learner can adapt to."""
    return [
        *(("test", None, environment) for environment in problem.test),
        *(("sweep", position, environment) for position, environment in problem.sweep),
    ]
