"""The records of many jobs in one small file, from which a reproduction continues.

Jobs of a table have most of their records' content in common: the settings, and which
score belongs to which environment after which stage. An archive stores these once. It
rounds scores to six digits and, of the training curves, stores only some points of the
residuals of ADMM.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cirm.records import (
    AdaptedScoreRecord,
    Record,
    RunRecord,
    ScoreRecord,
    TrainingCurveRecord,
    do_records_share_settings,
    read_records,
    write_text_atomically,
)
from cirm.runs.jobs import TrainingJob, format_trial_identity
from cirm.runs.local import get_records_path
from cirm.runs.tracker import JobTime, estimate_training_cost_of_dataset

ARCHIVE_NAME = "records.json"
CURVES = ("consensus", "constraint")
MAX_POINTS = 25  # of a stage's curve; enough for a line in a figure
PARTS = ("layouts", "setups", "jobs")
Entry = dict[str, Any]


@dataclass
class FinishedJobArchive:
    """Packed jobs by key, in the order in which they were added."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._keys: dict[str, list[str]] = {}  # of the jobs of each trial
        for key, entry in self.entries.items():
            self._keys.setdefault(get_trial_identity(entry), []).append(key)

    def add_job(self, key: str, entry: Entry) -> None:
        """Add a packed job, and drop those of the trial with other settings or code."""
        keys = self._keys.setdefault(get_trial_identity(entry), [])
        for old in [
            k for k in keys if is_packed_job_superseded(self.entries[k], entry)
        ]:
            keys.remove(old)
            del self.entries[old]
        keys.append(key)
        self.entries[key] = entry

    def list_records(self, trial_identity: str, seeds: Iterable[int]) -> list[Record]:
        """Return the records of a trial's jobs for these seeds."""
        seeds = set(seeds)
        return [
            record
            for entry in self.list_packed_jobs(trial_identity)
            if seeds & set(entry["seeds"])
            for record in unpack_job_records(entry)
            if isinstance(record, RunRecord) or record.seed in seeds
        ]

    def list_packed_jobs(self, trial_identity: str) -> list[Entry]:
        """List the packed jobs of a trial, by its identity, in order of their seeds."""
        entries = [self.entries[key] for key in self._keys.get(trial_identity, [])]
        return sorted(entries, key=lambda entry: entry["seeds"])

    def list_job_times(self) -> list[JobTime]:
        """Return the name, the work and the seconds of each job."""
        return [
            (entry["setup"]["learner"], work, entry["seconds"])
            for entry in self.entries.values()
            if (
                work := estimate_training_cost_of_dataset(
                    entry["setup"]["dataset"], len(entry["seeds"])
                )
            )
        ]


def pack_job_records(records: Sequence[Record]) -> Entry:
    """Pack one job's records into an entry that repeats nothing."""
    (run,) = (record for record in records if isinstance(record, RunRecord))
    setup = asdict(run)
    seeds, seconds = setup.pop("seeds"), setup.pop("seconds")
    rows: dict[tuple[Any, ...], dict[int, float]] = {}
    for score in records:
        if isinstance(score, ScoreRecord):
            where = score.stage, score.environment, score.split, score.metric
            place = (*where, score.position)
            rows.setdefault(place, {})[score.seed] = _round_to_significant_digits(
                score.value
            )
    adapted = _pack_adapted_scores(records, seeds)
    return {
        "seeds": list(seeds),
        "seconds": round(seconds, 2),
        "setup": setup,
        "layout": [list(place) for place in rows],
        "scores": [[row[seed] for row in rows.values()] for seed in seeds],
        "curves": _pack_training_curves(records, seeds),
        **({"adapted": adapted} if adapted else {}),
    }


def unpack_job_records(entry: Entry) -> list[Record]:
    """Return the records that were packed."""
    setup, seeds = entry["setup"], tuple(entry["seeds"])
    label, order = setup["learner"], setup["order"]
    records: list[Record] = []
    for stage, metric, steps, values in entry["curves"]:
        for seed, line in zip(seeds, values, strict=True):
            records += [
                TrainingCurveRecord(label, order, seed, stage, step, metric, value)
                for step, value in zip(steps, line, strict=True)
            ]
    for seed, values in zip(seeds, entry["scores"], strict=True):
        for place, value in zip(entry["layout"], values, strict=True):
            stage, environment, split, metric, position = place
            where = stage, environment, split, metric
            records.append(ScoreRecord(label, order, seed, *where, value, position))
    for *place, values in entry.get("adapted", []):
        rows, environment, split, metric, position = place
        where = rows, environment, split, metric
        records += [
            AdaptedScoreRecord(label, order, seed, *where, value, position)
            for seed, value in zip(seeds, values, strict=True)
        ]
    records.append(RunRecord(**setup, seeds=seeds, seconds=entry["seconds"]))
    return records


def load_job_archive(folder: Path) -> FinishedJobArchive:
    """Read the archive of a folder; it is empty if there is no file."""
    path = folder / ARCHIVE_NAME
    if not path.exists():
        return FinishedJobArchive()
    try:
        stored = json.loads(path.read_text("utf-8"))
        entries = {
            job.pop("key"): {
                **job,
                "layout": stored["layouts"][job["layout"]],
                "setup": stored["setups"][job["setup"]],
            }
            for job in stored["jobs"]
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(
            f"{path} was not written by cirm, so no records can be added to it. Move "
            "the file elsewhere to start a new one, or choose another folder with "
            "--out."
        ) from None
    return FinishedJobArchive(entries)


def save_job_archive(archive: FinishedJobArchive, folder: Path) -> None:
    """Write the archive of a folder atomically, with a line per item."""
    parts: dict[str, dict[str, int]] = {"layouts": {}, "setups": {}}
    jobs = []
    for key, entry in archive.entries.items():
        shared = {
            part: known.setdefault(
                _format_as_compact_json(entry[part[:-1]]), len(known)
            )
            for part, known in parts.items()
        }
        links = {"layout": shared["layouts"], "setup": shared["setups"]}
        jobs.append(_format_as_compact_json({"key": key, **entry, **links}))
    lists = [
        f'"{name}": [\n' + ",\n".join(lines) + "\n]"
        for name, lines in zip(PARTS, (*parts.values(), jobs), strict=True)
    ]
    write_text_atomically(folder / ARCHIVE_NAME, "{\n" + ",\n".join(lists) + "\n}\n")


def add_finished_jobs_to_archive(
    jobs: Iterable[TrainingJob], folder: Path, source_commit: str
) -> FinishedJobArchive:
    """Add every job with a file in the folder to its archive, and return it."""
    archive = load_job_archive(folder)
    missing = [job for job in jobs if job.key not in archive.entries]
    finished = [job for job in missing if get_records_path(job, folder).exists()]
    for job in finished:
        records = read_records(get_records_path(job, folder))
        origin = {"commit": source_commit, "revision": job.revision}
        archive.add_job(job.key, {**origin, **pack_job_records(records)})
    if finished:
        save_job_archive(archive, folder)
    return archive


def copy_jobs_from_other_archives(
    jobs: Iterable[TrainingJob], folder: Path, others: Iterable[Path]
) -> FinishedJobArchive:
    """Add jobs that archives of other folders hold, and return the archive."""
    archive, keys = load_job_archive(folder), {job.key for job in jobs}
    new: dict[str, Entry] = {}
    for other in others:
        entries = load_job_archive(other).entries
        new |= {k: e for k, e in entries.items() if k in keys - archive.entries.keys()}
    for key, entry in new.items():
        archive.add_job(key, entry)
    if new:
        save_job_archive(archive, folder)
    return archive


def get_trial_identity(entry: Mapping[str, Any]) -> str:
    """Return the identity of the trial that a packed job belongs to."""
    setup = entry["setup"]
    return format_trial_identity(setup["learner"], setup["order"], setup["dataset"])


def is_packed_job_superseded(old: Entry, new: Entry) -> bool:
    """Return whether a newer packed job replaces an old one."""
    one, other = old["setup"], new["setup"]
    if get_trial_identity(old) != get_trial_identity(new):
        return False
    # The identity of a trial leaves out the inference; here it counts.
    same = _format_as_compact_json(one["dataset"]) == _format_as_compact_json(
        other["dataset"]
    )
    same = same and do_records_share_settings(one["settings"], other["settings"])
    same = same and old.get("revision", 0) == new.get("revision", 0)
    return not same or bool(set(old["seeds"]) & set(new["seeds"]))


def _pack_training_curves(
    records: Sequence[Record], seeds: Sequence[int]
) -> list[list[Any]]:
    """Return stage, metric, steps and each seed's values of the stored curves."""
    curves: dict[tuple[int, str], dict[int, dict[int, float]]] = {}
    for curve in records:
        if isinstance(curve, TrainingCurveRecord) and curve.metric in CURVES:
            lines = curves.setdefault((curve.stage, curve.metric), {})
            lines.setdefault(curve.step, {})[curve.seed] = _round_to_significant_digits(
                curve.value
            )
    rows = []
    for (stage, metric), lines in curves.items():
        steps = list(lines)
        stride = -(-len(steps) // MAX_POINTS)
        thinned = [*steps[:-1:stride], steps[-1]]
        values = [[lines[step][seed] for step in thinned] for seed in seeds]
        rows.append([stage, metric, thinned, values])
    return rows


def _pack_adapted_scores(
    records: Sequence[Record], seeds: Sequence[int]
) -> list[list[Any]]:
    """Return rows, environment, split, metric, position and each seed's value."""
    places: dict[tuple[Any, ...], dict[int, float]] = {}
    for score in records:
        if isinstance(score, AdaptedScoreRecord):
            where = score.rows, score.environment, score.split, score.metric
            row = places.setdefault((*where, score.position), {})
            row[score.seed] = _round_to_significant_digits(score.value)
    return [[*place, [row[seed] for seed in seeds]] for place, row in places.items()]


def _round_to_significant_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _format_as_compact_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
