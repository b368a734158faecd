"""Jobs that try values of a setting and keep, for each seed, the one that proves best.

What it proves itself on are training environments that are not trained on, as in the
original experiments of IRM on the structural causal model. Neither the unseen
environments nor the true coefficients have a part in the choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cirm.records import Record, Run, Score
from cirm.runs.jobs import Job, execute, learned

if TYPE_CHECKING:
    from cirm.environments import Problem

VALIDATION, CHOSEN = "validation", "chosen"  # a split, and where a choice is recorded


@dataclass(frozen=True)
class Choosing(Job):
    """A job with several values of a setting.

    The last `held` training environments are not trained on: the value with the least
    mean error there, or the highest accuracy, is the seed's. Records are those of the
    values chosen, with a score that names the value.
    """

    setting: str = ""
    values: tuple[float, ...] = ()
    held: int = 1


@execute.register(Choosing)
def chosen(
    job: Choosing, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """The records of each seed's best value."""
    import torch

    from cirm.data import get_dataset_class

    torch.set_num_threads(1)
    began = time.perf_counter()
    problem = parted(
        get_dataset_class(job.dataset)(**job.data).draw(job.seeds), job.held
    )
    names = {environment.name for environment in problem.test[: job.held]}
    found: dict[float, list[Record]] = {}
    for index, value in enumerate(job.values):
        settings = {**job.settings, job.setting: value}
        one = replace(job, settings=settings, diagnose=False)
        part = partial(_told, progress, index, len(job.values))
        records = learned(one, problem, part, folder)
        found[value] = [_marked(record, names) for record in records]
    best = {seed: best_of(found, seed) for seed in job.seeds}
    return [*_kept(job, found, best), _run(job, found, time.perf_counter() - began)]


def parted(problem: Problem, held: int) -> Problem:
    """The problem with its last training environments first among the unseen ones."""
    if not 0 < held < len(problem.train):
        raise ValueError(
            "choice: one or more training environments must be held out, and one or "
            f"more left; got {held} of {len(problem.train)}"
        )
    return replace(
        problem,
        train=problem.train[:-held],
        test=(*problem.train[-held:], *problem.test),
        fresh=problem.fresh[:-held],
    )


def best_of(found: Mapping[float, Sequence[Record]], seed: int) -> float:
    """The value that a seed does best with where nothing was trained, the first."""

    def cost(value: float) -> float:
        scores = [
            record
            for record in found[value]
            if isinstance(record, Score)
            and (record.split, record.seed) == (VALIDATION, seed)
        ]
        last = max(score.stage for score in scores)
        mean = fmean(score.value for score in scores if score.stage == last)
        return mean if scores[0].metric == "error" else -mean

    return min(found, key=cost)


def _told(
    progress: Callable[[float], None], index: int, count: int, done: float
) -> None:
    progress((index + done) / count)


def _marked(record: Record, names: set[str]) -> Record:
    """Scores where a value proves itself are neither training nor test scores."""
    if isinstance(record, Score) and record.environment in names:
        return replace(record, split=VALIDATION)
    return record


def _kept(
    job: Choosing, found: Mapping[float, Sequence[Record]], best: Mapping[int, float]
) -> list[Record]:
    rows: list[Record] = [
        Score(job.name, job.order, seed, 0, CHOSEN, VALIDATION, job.setting, value)
        for seed, value in best.items()
    ]
    for value, records in found.items():
        rows += [
            record
            for record in records
            if not isinstance(record, Run) and best[record.seed] == value
        ]
    return rows


def _run(job: Choosing, found: Mapping[float, Sequence[Record]], seconds: float) -> Run:
    """One row for all seeds, with the values that there were to choose from."""
    run = next(r for records in found.values() for r in records if isinstance(r, Run))
    settings = {**run.settings, job.setting: list(job.values)}
    return replace(run, settings=settings, seconds=seconds)
