"""A job: a learner, a data set, an order and some seeds, named by its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cirm import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cirm.environments import Problem
    from cirm.evaluation.run import Transform
    from cirm.records import Record

PAPERS = (
    "the paper's values (chosen there by test accuracy); what it leaves open was read "
    "with its figures in view"
)
"""How the settings of the presets called paper were chosen."""


@dataclass(frozen=True)
class Job:
    """Everything that decides a job's numbers; its key is a hash of it.

    `data` and `settings` are those of the data set and of the learner; `selection`
    says how the settings were chosen; `inference` are the settings of `infer`; `files`
    stands for the user's files as they are now; `label` is the learner's name in
    tables; `diagnose` adds the diagnostics to the records.
    """

    dataset: str
    learner: str
    order: str
    seeds: tuple[int, ...]
    data: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    preset: str = ""
    selection: str = ""
    infer: str = ""
    inference: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    files: str = ""
    diagnose: bool = True

    @property
    def key(self) -> str:
        """Name of the job's file; a learner that was revised has others than before."""
        content = {"version": __version__, **dataclasses.asdict(self)}
        del content["selection"]  # words: they change no number
        if self.diagnose:
            del content["diagnose"]  # it changes no number, so that old files count
        if revision := self.revision:
            content["revision"] = revision
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def revision(self) -> int:
        """Which form of the learner's code this is."""
        from cirm.learners import get_learner_class

        return get_learner_class(self.learner).revision

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.label or self.learner


def fingerprint(data: dict[str, Any]) -> str:
    """Size and time of the user's files named in a data set's settings."""
    names = [part.strip() for part in str(data.get("path", "")).split(",")]
    paths = [Path(name) for name in names if name and Path(name).exists()]
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    return json.dumps(facts) if facts else ""


def described(job: Job) -> dict[str, Any]:
    """A job's data, and how environments are inferred there, for its records."""
    data = {"name": job.dataset, **job.data}
    return {**data, "infer": {"by": job.infer, **job.inference}} if job.infer else data


@singledispatch  # other kinds of job register their own
def execute(
    job: Job, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """Run a job in this process, on one thread; its records.

    In the folder, if there is one, jobs of the same data share inferred environments.
    """
    import torch

    from cirm.data import get_dataset_class

    torch.set_num_threads(1)
    problem = get_dataset_class(job.dataset)(**job.data).draw(job.seeds)
    return list(learned(job, problem, progress, folder))


def learned(
    job: Job,
    problem: Problem,
    progress: Callable[[float], None],
    folder: Path | None = None,
) -> Iterator[Record]:
    """The records of a job's learner on a problem drawn for its seeds."""
    from cirm.evaluation import run
    from cirm.learners import create

    return run(
        create(job.learner, problem.train[0], job.settings, job.preset),
        problem,
        job.order,
        job.seeds,
        label=job.name,
        dataset=described(job),
        selection=job.selection,
        transform=inference_of(job, folder),
        progress=progress,
        diagnose=job.diagnose,
    )


def inference_of(job: Job, folder: Path | None) -> Transform | None:
    """What turns the given environments into inferred ones; none if nothing does."""
    if not job.infer:
        return None
    from cirm.inference import create_inference
    from cirm.inference.kept import CachedInference

    inference = create_inference(job.infer, job.inference)
    if folder is None:
        return inference
    data = [__version__, job.dataset, job.data, job.files, job.order]
    return CachedInference(
        inference, folder / "inferred", json.dumps(data, sort_keys=True)
    )


def identify_trial(label: str, order: str, dataset: dict[str, Any]) -> str:
    """A trial's label, order and data as text."""
    data = {name: value for name, value in dataset.items() if name != "infer"}
    return json.dumps([label, order, data], sort_keys=True)
