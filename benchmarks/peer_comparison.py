"""Our learners compared with other packages, which have their own interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import Report, compute_quartiles, compute_time_ratios
from cirm.data.colored import Colored
from cirm.data.downloads import load_images_of_source
from cirm.data.scm import SCM
from cirm.environments import Problem
from cirm.evaluation import compute_mean_score
from cirm.learners import create
from cirm.randomness import Randomness

SCRIPT = Path(__file__).with_name("peer_script.py")
LIMIT = 600  # seconds after which a run of another package is stopped
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "erm": ("Avalanche, Naive", {}),
    "ewc": ("Avalanche, EWC", {"strength": 0.1, "memory": 100}),
    "gem": ("Avalanche, GEM", {"memory": 100}),
}
PLAIN = {"hidden": (100, 100), "rate": 1e-3, "dropout": 0.0}
Outcome = dict[str, Any]


def compare_with_other_packages(
    python: Path, quick: bool, rounds: int, report: Report
) -> list[dict[str, Any]]:
    """Time both on the same data, with one seed per round."""
    results = []
    images = "digits" if quick else choose_images()
    for key, (name, settings) in METHODS.items():
        report(name)
        both = _prepare_images(key, settings, images, 2 if quick else 100)
        row = _compare_with_package(key, name, python, both, rounds)
        results.append({**row, "data": images})
    report("causalicp")
    results.append(
        _compare_with_package(
            "icp", "causalicp", python, _prepare_causal_model(quick), rounds
        )
    )
    return results


def _compare_with_package(
    key: str,
    name: str,
    python: Path,
    both: Callable[[int], tuple[Outcome, dict[str, Any]]],
    rounds: int,
) -> dict[str, Any]:
    ours, theirs = [], []
    both(0)  # warm up: the other package's time does not include its start either
    for seed in range(rounds):
        own, arrays = both(seed)
        outcome = run_other_package(python, key, arrays)
        if "failed" in outcome:
            return {"learner": key, "peer": name, "failed": outcome["failed"]}
        ours.append(own)
        theirs.append(outcome)
    times = [[run["seconds"] for run in runs] for runs in (ours, theirs)]
    row = {
        "learner": key,
        "peer": name,
        "version": theirs[0]["version"],
        "ours": compute_quartiles(times[0]),
        "theirs": compute_quartiles(times[1]),
        "ratio": compute_time_ratios(times[1], times[0]),
    }
    for what in ("accuracy", "features"):
        if what in theirs[0]:
            row[f"our_{what}"] = [run[what] for run in ours]
            row[f"their_{what}"] = [run[what] for run in theirs]
    return row


def run_other_package(python: Path, method: str, arrays: dict[str, Any]) -> Outcome:
    """Run another package on arrays; return its result, or why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **arrays)
        done = subprocess.run(
            [python, SCRIPT, method, path],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    if done.returncode:
        last = done.stderr.strip().splitlines() or ["no reason given"]
        return {"failed": last[-1]}
    outcome: Outcome = json.loads(done.stdout.strip().splitlines()[-1])
    return outcome


def _prepare_images(
    key: str, settings: dict[str, Any], images: str, epochs: int
) -> Callable[[int], tuple[Outcome, dict[str, Any]]]:
    """Return a function that trains on table 1's data and returns them as arrays."""
    data, batch = Colored(source=images, sweep=()), 256

    def both(seed: int) -> tuple[Outcome, dict[str, Any]]:
        problem = data.draw_problem((seed,))
        given = {**PLAIN, "epochs": epochs, "batch": batch, **settings}
        own = train_learner(key, problem, given, seed)
        pieces = [place.take_all(1) for place in problem.train]
        test = problem.test[0].take_all(1)
        return own, {
            "seed": seed,
            "epochs": epochs,
            "batch": batch,
            "x": torch.cat([piece.x.flatten(2) for piece in pieces]).numpy(),
            "y": torch.cat([piece.y for piece in pieces]).numpy(),
            "test_x": test.x.flatten(2)[0].numpy(),
            "test_y": test.y[0].numpy(),
        }

    return both


def choose_images() -> str:
    """Return the image set: MNIST, or digits if MNIST is not in the cache."""
    try:
        load_images_of_source("mnist")
    except FileNotFoundError:
        return "digits"
    return "mnist"


def train_learner(
    key: str, problem: Problem, settings: dict[str, Any], seed: int
) -> Outcome:
    """Train our learner on one environment after another; return time and accuracy."""
    learner = create(key, problem.train[0], settings)
    randomness = Randomness((seed,))
    began = time.process_time()
    state = learner.init(randomness.at("init"))
    for index, place in enumerate(problem.train):
        state = learner.observe(state, (place,), randomness.at("stage", index))
    seconds = time.process_time() - began
    accuracy = compute_mean_score(learner, state, problem.test[0], 1).item()
    return {"seconds": seconds, "accuracy": accuracy}


def _prepare_causal_model(
    quick: bool,
) -> Callable[[int], tuple[Outcome, dict[str, Any]]]:
    """Return a function that runs ICP on a causal model and returns its arrays."""
    data = SCM(dimension=4 if quick else 10, noise="homoskedastic", sweep=())

    def both(seed: int) -> tuple[Outcome, dict[str, Any]]:
        problem = data.draw_problem((seed,))
        learner = create("icp", problem.train[0])
        began = time.process_time()
        state = learner.observe(
            learner.init(Randomness((seed,))), problem.train, Randomness((seed,))
        )
        seconds = time.process_time() - began
        probes = torch.eye(data.dimension).unsqueeze(0)
        flat = torch.zeros(1, 1, data.dimension)
        weights = learner.predict(state, probes) - learner.predict(state, flat)
        features = weights[0, :, 0].nonzero()[:, 0].tolist()
        pieces = [place.take_all(1) for place in problem.train]
        arrays = {
            f"place{i}": torch.cat([p.x[0], p.y[0].unsqueeze(1)], 1).double().numpy()
            for i, p in enumerate(pieces)
        }
        return {"seconds": seconds, "features": features}, arrays

    return both
