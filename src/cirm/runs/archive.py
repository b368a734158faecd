"""The records of many jobs in one small file, to be kept and to continue from.

Jobs of a table share most of what their records say: the settings, and which score
belongs to which environment after which stage. An archive says these once. Scores are
kept to six digits and, of the training curves, only the residuals of ADMM, thinned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cirm.records import (
    Curve,
    Record,
    Run,
    Score,
    has_same_settings,
    read_records,
    write_text,
)
from cirm.runs.jobs import Job, identify_trial
from cirm.runs.runner import get_record_path

NAME = "records.json"
CURVES = ("consensus", "constraint")
MOST = 25  # points that are kept of a stage's curve
PARTS = ("layouts", "setups", "jobs")
Entry = dict[str, Any]


@dataclass
class Archive:
    """Packed jobs by key, in the order in which they were added."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def put(self, key: str, entry: Entry) -> None:
        """Add a packed job; drop those of the trial with other settings or code."""
        self.entries = {
            old: kept
            for old, kept in self.entries.items()
            if not superseded(kept, entry)
        }
        self.entries[key] = entry

    def records(self, trial: str, seeds: Iterable[int]) -> list[Record]:
        """The records of a trial's jobs, by its identity, that have any such seed."""
        wanted = set(seeds)
        return [
            record
            for entry in self.of(trial)
            if wanted & set(entry["seeds"])
            for record in unpacked(entry)
            if isinstance(record, Run) or record.seed in wanted
        ]

    def of(self, trial: str) -> list[Entry]:
        """The packed jobs of a trial, by its identity, in order of their seeds."""
        found = [e for e in self.entries.values() if trial_of(e) == trial]
        return sorted(found, key=lambda entry: entry["seeds"])


def packed(records: Sequence[Record]) -> Entry:
    """One job's records with nothing said twice."""
    (run,) = (record for record in records if isinstance(record, Run))
    setup = asdict(run)
    seeds, seconds = setup.pop("seeds"), setup.pop("seconds")
    rows: dict[tuple[Any, ...], dict[int, float]] = {}
    for score in records:
        if isinstance(score, Score):
            where = score.stage, score.environment, score.split, score.metric
            place = (*where, score.position)
            rows.setdefault(place, {})[score.seed] = _rounded(score.value)
    return {
        "seeds": list(seeds),
        "seconds": round(seconds, 2),
        "setup": setup,
        "layout": [list(place) for place in rows],
        "scores": [[row[seed] for row in rows.values()] for seed in seeds],
        "curves": _curves(records, seeds),
    }


def unpacked(entry: Entry) -> list[Record]:
    """The records that were packed."""
    setup, seeds = entry["setup"], tuple(entry["seeds"])
    label, order = setup["learner"], setup["order"]
    records: list[Record] = []
    for stage, metric, steps, values in entry["curves"]:
        for seed, line in zip(seeds, values, strict=True):
            records += [
                Curve(label, order, seed, stage, step, metric, value)
                for step, value in zip(steps, line, strict=True)
            ]
    for seed, values in zip(seeds, entry["scores"], strict=True):
        for place, value in zip(entry["layout"], values, strict=True):
            stage, environment, split, metric, position = place
            where = stage, environment, split, metric
            records.append(Score(label, order, seed, *where, value, position))
    records.append(Run(**setup, seeds=seeds, seconds=entry["seconds"]))
    return records


def load_archive(folder: Path) -> Archive:
    """The archive of a folder; an empty one if there is none."""
    path = folder / NAME
    if not path.exists():
        return Archive()
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
            f"{path}: it must be an archive of records; got another file"
        ) from None
    return Archive(entries)


def save_archive(archive: Archive, folder: Path) -> None:
    """Replace the archive of a folder, at once or not at all; a line per item."""
    parts: dict[str, dict[str, int]] = {"layouts": {}, "setups": {}}
    jobs = []
    for key, entry in archive.entries.items():
        shared = {
            part: known.setdefault(_text(entry[part[:-1]]), len(known))
            for part, known in parts.items()
        }
        own = {"layout": shared["layouts"], "setup": shared["setups"]}
        jobs.append(_text({"key": key, **entry, **own}))
    lists = [
        f'"{name}": [\n' + ",\n".join(lines) + "\n]"
        for name, lines in zip(PARTS, (*parts.values(), jobs), strict=True)
    ]
    write_text(folder / NAME, "{\n" + ",\n".join(lists) + "\n}\n")


def pack_jobs(jobs: Iterable[Job], folder: Path, commit: str) -> Archive:
    """The folder's archive with every job that has left a file and is not in it."""
    archive = load_archive(folder)
    missing = [job for job in jobs if job.key not in archive.entries]
    finished = [job for job in missing if get_record_path(job, folder).exists()]
    for job in finished:
        records = read_records(get_record_path(job, folder))
        origin = {"commit": commit, "revision": job.revision}
        archive.put(job.key, {**origin, **packed(records)})
    if finished:
        save_archive(archive, folder)
    return archive


def inherit_jobs(jobs: Iterable[Job], folder: Path, others: Iterable[Path]) -> Archive:
    """The folder's archive with the jobs that archives of other folders hold."""
    archive, keys = load_archive(folder), {job.key for job in jobs}
    held: dict[str, Entry] = {}
    for other in others:
        held |= {k: e for k, e in load_archive(other).entries.items() if k in keys}
    new = {key: entry for key, entry in held.items() if key not in archive.entries}
    for key, entry in new.items():
        archive.put(key, entry)
    if new:
        save_archive(archive, folder)
    return archive


def trial_of(entry: Mapping[str, Any]) -> str:
    """The identity of the trial that a packed job belongs to."""
    setup = entry["setup"]
    return identify_trial(setup["learner"], setup["order"], setup["dataset"])


def superseded(old: Entry, new: Entry) -> bool:
    """Whether a packed job no longer counts beside a newer one."""
    one, other = old["setup"], new["setup"]
    if one["learner"] != other["learner"] or trial_of(old) != trial_of(new):
        return False
    same = _text(one["dataset"]) == _text(other["dataset"])  # but for the inference
    same = same and has_same_settings(one["settings"], other["settings"])
    same = same and old.get("revision", 0) == new.get("revision", 0)
    return not same or bool(set(old["seeds"]) & set(new["seeds"]))


def _curves(records: Sequence[Record], seeds: Sequence[int]) -> list[list[Any]]:
    """Stage, metric, steps and each seed's values of the curves that are kept."""
    found: dict[tuple[int, str], dict[int, dict[int, float]]] = {}
    for curve in records:
        if isinstance(curve, Curve) and curve.metric in CURVES:
            lines = found.setdefault((curve.stage, curve.metric), {})
            lines.setdefault(curve.step, {})[curve.seed] = _rounded(curve.value)
    kept = []
    for (stage, metric), lines in found.items():
        steps = list(lines)
        stride = -(-len(steps) // MOST)
        shown = [*steps[:-1:stride], steps[-1]]
        values = [[lines[step][seed] for step in shown] for seed in seeds]
        kept.append([stage, metric, shown, values])
    return kept


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
