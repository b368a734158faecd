"""Draw some of the examples of training environments, others for each seed."""

from __future__ import annotations

from dataclasses import replace

import torch

from cirm.environments import Environment, Problem
from cirm.randomness import Randomness


def draw_training_examples(
    problem: Problem, examples: int | None, fraction: float, randomness: Randomness
) -> Problem:
    """Return what each seed draws of each training environment of a problem.

    These are `examples`, but at most the part `fraction`, and at least two.
    """
    if examples is None and fraction == 1:
        return problem
    train = []
    for environment in problem.train:
        most = max(int(fraction * len(environment)), 2)
        count = most if examples is None else min(examples, most)
        train.append(_draw_rows_for_each_seed(environment, count, randomness))
    return replace(problem, train=tuple(train))


def _draw_rows_for_each_seed(
    environment: Environment, n_rows: int, randomness: Randomness
) -> Environment:
    """Draw examples for each seed, or return all if there are too few."""
    if n_rows >= len(environment):
        return environment
    rows = randomness.at("rows", environment.name).permutation(len(environment))
    return environment.subset(torch.sort(rows[:, :n_rows]).values)
