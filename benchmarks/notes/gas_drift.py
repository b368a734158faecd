"""Which gases `steady` and logistic regression recognise in a later batch.

`python -m benchmarks.notes.gas_drift [--seed 0]` needs the data set in the cache. It
trains on the rows that a seed draws on the board, with the defaults of each learner,
and prints the accuracy and the recall of each gas at the unseen batch.
"""

from __future__ import annotations

import argparse
from itertools import product

import torch

from cirm.board.columns import TABLE_ROWS
from cirm.data import create_dataset
from cirm.environments import Problem
from cirm.learners import create
from cirm.randomness import Randomness
from cirm.runs.plans import create_and_draw_dataset

LEARNERS = ("steady", "logistic")


def describe_recalls(
    problem: Problem, learner: str, is_last_only: bool, seed: int
) -> str:
    """Train on the batches in sequence, or on the last one only; return a line."""
    instance = create(learner, problem.train[0])
    randomness = Randomness((seed,))
    state = instance.init(randomness.at("init"))
    for index, environment in enumerate(problem.train[-1 if is_last_only else 0 :]):
        state = instance.observe(state, (environment,), randomness.at("stage", index))
    (unseen,) = problem.test
    x, y = unseen.take_all(1)
    is_right = instance.predict(state, x)[0].argmax(-1) == y[0]
    recalls = [
        f"{name} {100 * is_right[y[0] == index].float().mean():.0f}"
        for index, name in enumerate(unseen.task.classes)
    ]
    batches = "the last batch only" if is_last_only else "all batches"
    accuracy = 100 * is_right.float().mean()
    return f"{learner}, {batches}: {accuracy:.1f} % ({', '.join(recalls)})"


def main() -> None:
    """Print the gases in each batch, and a line for each variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    data = create_and_draw_dataset("gas-drift", TABLE_ROWS).data
    problem = create_dataset("gas-drift", data).draw_problem((seed,))
    for environment in (*problem.train, *problem.test):
        counts = environment.take_all(1).y[0].bincount(minlength=6).tolist()
        print(
            environment.name, dict(zip(environment.task.classes, counts, strict=True))
        )
    for learner, is_last_only in product(LEARNERS, (False, True)):
        print(describe_recalls(problem, learner, is_last_only, seed))


if __name__ == "__main__":
    main()
