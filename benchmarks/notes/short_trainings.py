"""Time a short training of every learner, to compare two versions of the code.

Run it in both source trees in turn, and divide the shortest times:

    PYTHONPATH=src:. python -m benchmarks.notes.short_trainings
"""

from __future__ import annotations

import json
import time
from typing import Any

import torch

from cirm import Environment, Randomness, Task, create
from cirm.learners import LEARNERS, get_learner_class

SPECIAL: dict[str, dict[str, Any]] = {
    "mer": {"memory": 20, "epochs": 2},
    "vclc": {"coreset": 20},
    "boosting": {"iterations": 20},
}
REPEATS = 3


def make_environment(name: str, kind: str, seed: int) -> Environment:
    """Return 600 examples of 20 features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 20, generator=generator)
    y = x[:, 0] + 0.3 * torch.randn(600, generator=generator)
    if kind == "classification":
        return Environment(name, x, (y > 0).long(), Task.classification(2))
    return Environment(name, x, y, Task.regression())


def time_training(key: str) -> float:
    """Return the shortest processor time of training on two environments in turn."""
    kind = get_learner_class(key).tasks[0]
    places = [make_environment(name, kind, seed) for seed, name in enumerate("ab")]
    learner = create(key, places[0], {"epochs": 10, **SPECIAL.get(key, {})})
    times = []
    for _ in range(REPEATS):
        randomness = Randomness((0,))
        state, began = learner.init(randomness), time.process_time()
        for index, place in enumerate(places):
            state = learner.observe(state, (place,), randomness.at("stage", index))
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({key: time_training(key) for key in LEARNERS}, indent=1))
