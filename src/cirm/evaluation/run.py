"""A learner run over a stream: train on each stage, score every environment."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cirm.data.scm import coefficient_errors
from cirm.environments import Environment, Problem, Stage, Stream
from cirm.evaluation.diagnostics import Diagnosis
from cirm.learners.base import Learner
from cirm.memory import count_memory
from cirm.randomness import Randomness
from cirm.records import Curve, Record, Run, Score
from cirm.training import DivergenceError, Terms, Watch

Progress = Callable[[float], None]
"""Is told, now and then, which part of the work is done, from 0 to 1."""

Transform = Callable[[Stage, Randomness, Watch], Stage]
"""Turns a stage into another before the learner sees it: environment inference."""

INFERENCE = 0.5  # the part of a stage's progress that its inference counts for


def run(
    learner: Learner[Any],
    problem: Problem,
    order: str,
    seeds: tuple[int, ...],
    *,
    label: str,
    dataset: dict[str, Any] | None = None,
    selection: str = "",
    transform: Transform | None = None,
    progress: Progress = lambda done: None,
    diagnose: bool = False,
) -> Iterator[Record]:
    """Train on each stage in turn; after each, score every environment.

    With `diagnose` the rows of `diagnostics` are added; the time recorded is without.
    """
    stream = Stream.from_order(problem.train, order)
    randomness = Randomness(seeds)
    began = time.perf_counter()
    state = learner.init(randomness.at("init"))
    diagnosis = Diagnosis(learner, problem, order, seeds, label) if diagnose else None
    before = 0.0 if transform is None else INFERENCE
    for index, stage in enumerate(stream):
        curves: list[Curve] = []

        def watch(step: int, steps: int, numbers: Terms, index: int = index) -> None:
            done = before + (1 - before) * step / steps
            progress((index + done) / len(stream))
            for name, values in numbers.items():
                curves.extend(  # noqa: B023  the list of this very stage
                    Curve(label, order, seed, index, step, name, value)
                    for seed, value in zip(seeds, values.tolist(), strict=True)
                )

        def infer(step: int, steps: int, _: Terms, index: int = index) -> None:
            progress((index + before * step / steps) / len(stream))

        source = randomness.at("stage", index)
        try:
            if transform is not None:
                stage = transform(stage, source.at("inference"), infer)
            state = learner.observe(state, stage, source, watch)
        except DivergenceError as error:
            raise DivergenceError(_advice(error, label, index, seeds)) from None
        yield from curves
        last = index == len(stream) - 1
        for split, position, environment in _judged(problem, last):
            scores = score(learner, state, environment, len(seeds))
            for seed, number in zip(seeds, scores.tolist(), strict=True):
                yield Score(
                    label, order, seed, index, environment.name, split,
                    learner.likelihood.metric, number, position,
                )  # fmt: skip
        if problem.truth is not None and last:
            yield from _coefficients(learner, state, problem.truth, label, order, seeds)
        if diagnosis is not None:
            yield from diagnosis.after(index, state)
    yield Run(
        label,
        order,
        seeds,
        collect_settings(learner),
        dataset or {},
        selection,
        count_memory(state),
        time.perf_counter() - began - (diagnosis.seconds if diagnosis else 0.0),
    )


def score(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    environment: Environment,
    replicas: int,
    chunk: int = 4096,
) -> Tensor:
    """Mean score of each replica on an environment, [replica].

    So many examples are scored at once, to bound memory.
    """
    total = torch.zeros(replicas)
    device = learner.descent.device
    for start in range(0, len(environment), chunk):
        rows = torch.arange(start, min(start + chunk, len(environment)))
        x, y = environment.take(rows.expand(replicas, -1))
        with torch.no_grad():
            predictions = learner.predict(state, x.to(device)).cpu()
        total += learner.likelihood.scores(predictions, y).sum(-1)
    return total / len(environment)


def collect_settings(learner: Learner[Any]) -> dict[str, Any]:
    """A learner's settings as plain values for a record."""
    settings: dict[str, Any] = {}
    for item in dataclasses.fields(learner):
        value = getattr(learner, item.name)
        if item.name == "descent":
            settings.update(dataclasses.asdict(value))
        elif item.name in ("network", "likelihood"):
            settings[item.name] = repr(value)
        else:
            settings[item.name] = value
    return settings


def _judged(
    problem: Problem, last: bool
) -> Iterator[tuple[str, float | None, Environment]]:
    yield from (("train", None, e) for e in problem.train)
    yield from (("test", None, e) for e in problem.test)
    if last:
        yield from (("sweep", position, e) for position, e in problem.sweep)


def _coefficients(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    truth: Tensor,
    label: str,
    order: str,
    seeds: tuple[int, ...],
) -> Iterator[Score]:
    """Squared error of linear coefficients, read off predictions at unit inputs."""
    width = truth.shape[-1]
    probes = torch.cat([torch.zeros(1, width), torch.eye(width)])
    with torch.no_grad():
        values = learner.predict(state, probes.expand(len(seeds), -1, -1))[..., 0]
    errors = coefficient_errors(values[:, 1:] - values[:, :1], truth)
    for seed, row in zip(seeds, errors.tolist(), strict=True):
        for name, error in zip(("causal", "noncausal"), row, strict=True):
            yield Score(label, order, seed, 0, name, "truth", "coefficients", error)


def _advice(
    error: DivergenceError, label: str, stage: int, seeds: tuple[int, ...]
) -> str:
    message, lost = error.args
    which = ", ".join(str(seeds[row]) for row in lost)
    return (
        f"learner {label}, stage {stage}: {message} (seeds {which}); "
        "try a smaller rate or penalty"
    )
