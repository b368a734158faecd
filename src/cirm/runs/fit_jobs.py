"""Jobs that fit one model each to the user's files, for `cirm fit --each`.

The worker writes the model itself, so on a cluster the files and the folder of models
must be at the same path on every machine. What a job records is a summary of the model
with the checksum of its file: the job is finished as long as that file is there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from cirm.data.open_sources import SUFFIXES
from cirm.records import Record, RunRecord, read_records, write_bytes_atomically
from cirm.runs.jobs import (
    TrainingJob,
    compute_sha256_of_file,
    run_job_and_return_records,
)
from cirm.runs.local import get_records_path

METRICS = ("accuracy", "rmse")  # the first one that a model has is its score


@dataclass(frozen=True)
class FitModelJob(TrainingJob):
    """A job that fits a model to files and writes it.

    `data` has the paths of the files, separated by newlines, and that of the model;
    neither is a part of the key, but the names and the content of the files are.

    Attributes:
        options: Further arguments of `cirm.fit`.
        key_file: Path of the secret that model files are signed with; "" for none.
    """

    options: dict[str, Any] = field(default_factory=dict)
    key_file: str = ""

    @property
    def revision(self) -> int:
        """The revision of the learner's code for files, tables or images."""
        from cirm.learners import get_learner_class

        learner = get_learner_class(self.learner)
        return learner.revision + learner.table_revision

    @property
    def model_path(self) -> Path:
        """Where the model is written."""
        return Path(self.data["model"])


def list_files_to_fit(folder: Path) -> list[Path]:
    """List the files of a folder that a model can be fitted to, by name."""
    if not folder.is_dir():
        raise ValueError(f"--each: there is no folder {str(folder)!r}. Check the path.")
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(
            f"--each: the folder {str(folder)!r} has no data: no file in it ends in "
            f"{', '.join(SUFFIXES)}. Give a folder with such files."
        )
    names: dict[str, Path] = {}
    for file in files:
        if file.stem in names:
            raise ValueError(
                f"--each: {names[file.stem].name} and {file.name} would both be "
                f"fitted to the model {file.stem}.cirm. Rename one of the two files."
            )
        names[file.stem] = file
    return files


def list_setting_combinations(each_set_options: Sequence[str]) -> list[list[str]]:
    """Return every combination of settings to fit a model with.

    Example:
        >>> list_setting_combinations(["epochs=5,10", "hidden=8|8,8"])[:2]
        [['epochs=5', 'hidden=8'], ['epochs=5', 'hidden=8,8']]
    """
    choices = []
    for text in each_set_options:
        name, equals, values = text.partition("=")
        if not (name and equals and values):
            raise ValueError(
                f"--each-set: {text!r} cannot be read. Write the name of a setting "
                "and the values to try, for example epochs=10,20."
            )
        parts = values.split("|" if "|" in values else ",")
        choices.append([f"{name}={part.strip()}" for part in parts])
    return [list(combination) for combination in product(*choices)]


def plan_fit_job(
    files: Sequence[Path], name: str, folder: Path, job: FitModelJob
) -> FitModelJob:
    """Return the job that fits a model of this name to files."""
    model = folder.resolve() / f"{name}.cirm"
    paths = [file.resolve() for file in files]
    parts = [
        (part.relative_to(path.parent).as_posix(), compute_sha256_of_file(part))
        for path in paths
        for part in ([path] if path.is_file() else sorted(path.rglob("*")))
    ]
    content = {"paths": parts, "model": [(model.name, "")]}
    return replace(
        job,
        data={"paths": "\n".join(map(str, paths)), "model": str(model)},
        files=json.dumps(content, sort_keys=True),
        label=name,
    )


@run_job_and_return_records.register(FitModelJob)
def fit_and_write_model(
    job: FitModelJob, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """Fit a model, write it, and return a record that summarises it."""
    import torch

    from cirm.model.file import encode_model_file
    from cirm.model.fit import fit

    torch.set_num_threads(1)
    start = time.perf_counter()

    def report_fit_progress(step: str, done: float) -> None:
        if step.startswith("training") and done <= 1:
            progress(done)

    model = fit(
        job.data["paths"].split("\n"),
        learner=job.learner,
        settings=job.settings,
        preset=job.preset,
        order=job.order,
        seed=job.seeds[0],
        **job.options,
        progress=report_fit_progress,
    )
    secret = Path(job.key_file).read_bytes().rstrip(b"\r\n") if job.key_file else b""
    content = encode_model_file(model, secret)
    write_bytes_atomically(job.model_path, content)
    seconds = time.perf_counter() - start
    summary = summarise_fitted_model(job, model.history)
    return [RunRecord(job.name, job.order, job.seeds, {}, summary, "", {}, seconds)]


def summarise_fitted_model(job: FitModelJob, history: Sequence[Any]) -> dict[str, Any]:
    """Return rows, environments and held-out score of a model that was written."""
    from cirm.model.container import read_model_checksum

    metric = next((m for m in METRICS if m in history[-1].metrics_after), "")
    scores = [entry.metrics_after[metric] for entry in history if metric]
    return {
        "model": str(job.model_path),
        "checksum": read_model_checksum(job.model_path),
        "environments": [entry.name for entry in history],
        "rows": sum(entry.rows for entry in history),
        "metric": metric,
        "score": sum(scores) / len(scores) if scores else None,
        "notes": list(dict.fromkeys(n for entry in history for n in entry.notes)),
    }


def read_summaries_of_fitted_models(
    jobs: Sequence[FitModelJob], folder: Path
) -> Iterator[tuple[FitModelJob, dict[str, Any]]]:
    """Yield each job whose model file is unchanged, with its summary and seconds."""
    from cirm.model.container import read_model_checksum

    for job in jobs:
        path = get_records_path(job, folder)
        rows = read_records(path) if path.exists() else []
        for run in rows:
            if isinstance(run, RunRecord):
                found = read_model_checksum(job.model_path)
                if found and found == run.dataset["checksum"]:
                    yield job, {**run.dataset, "seconds": run.seconds}


def select_fit_jobs_to_run(
    jobs: Sequence[FitModelJob], folder: Path, overwrite: bool
) -> tuple[list[FitModelJob], Mapping[str, str]]:
    """Return the jobs to run, and why others must not be run, by key.

    A model that is missing or has changed since is fitted again; a file that another
    command has written is replaced only with `overwrite`.
    """
    finished = {job.key for job, _ in read_summaries_of_fitted_models(jobs, folder)}
    waiting, refused = [], {}
    for job in jobs:
        if job.key in finished:
            continue
        if job.model_path.exists() and not overwrite:
            refused[job.key] = (
                f"the file {str(job.model_path)!r} already exists and was fitted to "
                "other data or with other settings. Use --overwrite to replace it, or "
                "choose another folder"
            )
            continue
        get_records_path(job, folder).unlink(missing_ok=True)
        waiting.append(job)
    return waiting, refused
