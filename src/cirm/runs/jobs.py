"""A job: a learner, a data set, an order and some seeds, named by its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cirm import __version__
from cirm.data.image_sets import get_data_cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cirm.data.base import Dataset
    from cirm.environments import Problem
    from cirm.evaluation.adaptation import RowCount
    from cirm.evaluation.run import Transform
    from cirm.records import Record

PAPER_SELECTION = (
    "the paper's values, which were chosen by test accuracy; settings that the paper "
    "leaves open were chosen in view of its results"
)
"""How the settings of the presets called paper were chosen."""

ADDED_LATER = {"diagnose": True, "rules": (), "adapt": ()}
"""Fields that are left out of a key at these values, so that old keys stay valid."""


@dataclass(frozen=True)
class TrainingJob:
    """Everything that decides a job's numbers; its key is a hash of it.

    Attributes:
        dataset: Key or import path of the data set.
        learner: Key or import path of the learner.
        order: Order of the environments, as `cirm.run` takes it.
        seeds: One seed for each replica.
        data: Settings of the data set.
        settings: Settings of the learner.
        preset: Named settings of the learner, below `settings`.
        selection: How the settings were chosen, in words.
        infer: Key of the environment inference; none if empty.
        inference: Settings of the inference.
        label: The learner's name in tables.
        files: Names and content of the user's files, see `hash_dataset_files`.
        diagnose: Whether diagnostics are added to the records.
        adapt: Numbers of unlabelled rows of the unseen environments to adapt to.
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
    adapt: tuple[RowCount, ...] = ()

    @cached_property
    def key(self) -> str:
        """Name of the job's file; it changes with the learner's revision."""
        content = {"version": __version__, **dataclasses.asdict(self)}
        del content["selection"]  # words: they change no number
        for name, value in ADDED_LATER.items():
            if content.get(name) == value:
                del content[name]
        content["data"] = self.data_without_paths
        if revision := self.revision:
            content["revision"] = revision
        parts = [
            f'"{name}": {_encode_text_as_json(value)}'
            if isinstance(value, str)
            else f'"{name}": {json.dumps(value, sort_keys=True)}'
            for name, value in sorted(content.items())
        ]
        text = f"{{{', '.join(parts)}}}"
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def data_without_paths(self) -> dict[str, Any]:
        """The settings of the data set without those that say where files are."""
        paths = _list_settings_of_files(self.files)
        return {name: value for name, value in self.data.items() if name not in paths}

    @property
    def revision(self) -> int:
        """The revision of the learner's code for this kind of data."""
        from cirm.data import get_dataset_class
        from cirm.learners import get_learner_class

        learner = get_learner_class(self.learner)
        if not learner.table_revision or get_dataset_class(self.dataset).has_images:
            return learner.revision
        return learner.table_revision

    @property
    def name(self) -> str:
        """The learner's name in tables."""
        return self.label or self.learner


@lru_cache(maxsize=100)  # files: thousands of names, the same for thousands of jobs
def _encode_text_as_json(text: str) -> str:
    return json.dumps(text)


@lru_cache(maxsize=100)
def _list_settings_of_files(files: str) -> frozenset[str]:
    return frozenset(json.loads(files) if files else ())


def hash_dataset_files(dataset: Dataset, data: Mapping[str, Any]) -> str:
    """Return the content of a data set's files as JSON, or "" if it declares none.

    The JSON maps each setting that names files to their names and SHA-256 hashes. Names
    are relative to the path in the setting, or to the cache: files that were moved or
    touched give the same text, files that were changed or renamed another one.
    """
    content: dict[str, list[tuple[str, str]]] = {}
    paths = _list_paths_in_settings(data)
    for file in dataset.list_local_input_files():
        setting, name = _find_setting_of_file(file, paths)
        content.setdefault(setting, []).append((name, compute_sha256_of_file(file)))
    for setting, facts in content.items():
        if len({os.path.splitext(name)[0] for name, _ in facts}) < len(facts):
            # Environments of files with the same name are named by their whole paths.
            content[setting] = [(str(data.get(setting)), ""), *facts]
    for setting, checksum in dataset.list_setting_checksums().items():
        content[setting] = [(str(data.get(setting)), checksum)]
    return json.dumps(content, sort_keys=True) if content else ""


def _list_paths_in_settings(data: Mapping[str, Any]) -> list[tuple[str, Path]]:
    """Return each path that a setting may name, with the name of the setting."""
    return [
        (setting, Path(part.strip()).expanduser())
        for setting, value in data.items()
        if isinstance(value, str)
        for part in (value, *value.split(","))
        if part.strip()
    ]


def _find_setting_of_file(
    file: Path, paths: Sequence[tuple[str, Path]]
) -> tuple[str, str]:
    """Return the setting that names a file or a folder above it, and the rest."""
    folders = _list_folders_above(file.parent)
    for setting, path in paths:
        if path == file:
            return setting, file.name
        if path in folders:
            return setting, file.relative_to(path).as_posix()
    cache = get_data_cache_folder()
    return "", file.relative_to(cache).as_posix() if cache in folders else str(file)


@lru_cache(maxsize=1000)
def _list_folders_above(folder: Path) -> frozenset[Path]:
    """Return a folder and all above it."""
    return frozenset((folder, *folder.parents))


def compute_sha256_of_file(path: Path) -> str:
    """Return the SHA-256 hash of a file, or "" if there is none."""
    from cirm.data.sources import hash_file_or_folder

    return hash_file_or_folder(path) if path.is_file() else ""


def describe_data_of_job(job: TrainingJob) -> dict[str, Any]:
    """Return a job's data and inference as they are recorded."""
    data = {"name": job.dataset, **job.data}
    return {**data, "infer": {"by": job.infer, **job.inference}} if job.infer else data


@singledispatch  # other kinds of job register their own
def run_job_and_return_records(
    job: TrainingJob, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """Run a job in this process, on one thread, and return its records.

    Jobs of the same data share inferred environments in the folder, if there is one.
    """
    return list(
        run_learner_of_job(job, draw_environments_of_job(job), progress, folder)
    )


def draw_environments_of_job(job: TrainingJob) -> Problem:
    """Draw the environments for a job's seeds, and use one thread from now on."""
    import torch
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from cirm.data import create_dataset

    torch.set_num_threads(1)
    threadpool_limits(1, "blas")  # of NumPy, which some learners compute with
    return create_dataset(job.dataset, job.data).draw_problem(job.seeds)


def run_learner_of_job(
    job: TrainingJob,
    problem: Problem,
    progress: Callable[[float], None],
    folder: Path | None = None,
) -> Iterator[Record]:
    """Run a job's learner on a problem that was drawn for its seeds."""
    from cirm.evaluation import run
    from cirm.learners import create

    return run(
        create(job.learner, problem.train[0], job.settings, job.preset),
        problem,
        job.order,
        job.seeds,
        label=job.name,
        dataset=describe_data_of_job(job),
        selection=job.selection,
        transform=create_inference_of_job(job, folder),
        progress=progress,
        diagnose=job.diagnose,
        adapt=job.adapt,
    )


def create_inference_of_job(
    job: TrainingJob, folder: Path | None, cache_name: str = ""
) -> Transform | None:
    """Return the environment inference of a job, or None.

    `cache_name` says which part of the environments it is for, if not for all examples.
    """
    if not job.infer:
        return None
    from cirm.inference import create_inference
    from cirm.inference.cache import CachedInference

    inference = create_inference(job.infer, job.inference)
    if folder is None:
        return inference
    data = [__version__, job.dataset, job.data_without_paths, job.files, job.order]
    data += [cache_name] if cache_name else []
    return CachedInference(
        inference, folder / "inferred", json.dumps(data, sort_keys=True)
    )


def format_trial_identity(label: str, order: str, dataset: dict[str, Any]) -> str:
    """Return a trial's label, order and data as text."""
    data = {name: value for name, value in dataset.items() if name != "infer"}
    return json.dumps([label, order, data], sort_keys=True)
