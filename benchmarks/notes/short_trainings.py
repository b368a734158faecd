"""Compare the processor time of a short training of every learner in two source trees.

    OMP_NUM_THREADS=1 python -m benchmarks.notes.short_trainings BEFORE/src AFTER/src

Both trees take turns. The ratio is the median over the rounds.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import torch

from benchmarks.notes.source_trees import TreeWorkers
from cirm import Environment, Randomness, Task, create
from cirm.learners import LEARNERS, get_learner_class

SPECIAL: dict[str, dict[str, Any]] = {
    "mer": {"memory": 20, "epochs": 2},
    "vclc": {"coreset": 20},
    "boosting": {"iterations": 20},
}
ROUNDS = 7


def make_environment(name: str, kind: str, seed: int) -> Environment:
    """Return 600 examples of 20 features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 20, generator=generator)
    y = x[:, 0] + 0.3 * torch.randn(600, generator=generator)
    if kind == "classification":
        return Environment(name, x, (y > 0).long(), Task.classification(2))
    return Environment(name, x, y, Task.regression())


def time_training(key: str) -> float:
    """Return the processor time of training on two environments in turn."""
    kind = get_learner_class(key).tasks[0]
    places = [make_environment(name, kind, seed) for seed, name in enumerate("ab")]
    learner = create(key, places[0], {"epochs": 10, **SPECIAL.get(key, {})})
    randomness = Randomness((0,))
    state, began = learner.init(randomness), time.process_time()
    for index, place in enumerate(places):
        state = learner.observe(state, (place,), randomness.at("stage", index))
    return time.process_time() - began


def answer_requests() -> None:
    """Train the learner that a line names, and print the seconds."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(time_training(line.strip()), flush=True)


def compare_trees(trees: list[str]) -> None:
    """Print the times of both trees and their ratio, for each learner."""
    workers = TreeWorkers("benchmarks.notes.short_trainings", trees)
    ratios = {}
    for key in LEARNERS:
        pairs = [workers.ask_both(key, turn) for turn in range(ROUNDS + 1)][1:]
        before, after = (min(times) for times in zip(*pairs, strict=True))
        ratios[key] = median(new / old for old, new in pairs)
        print(f"{key}: {1e3 * before:.0f}, {1e3 * after:.0f} ms; {ratios[key]:.2f}")
    print(f"median of {len(ratios)} learners: {median(ratios.values()):.2f}")
    workers.close()


if __name__ == "__main__":
    compare_trees(sys.argv[1:]) if len(sys.argv) > 1 else answer_requests()
