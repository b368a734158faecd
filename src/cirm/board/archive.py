"""The records of the board in one file, from which it continues in any clone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cirm.learners import get_learner_class
from cirm.records import read_records, write_records
from cirm.runs.archive import (
    Entry,
    load_job_archive,
    pack_job_records,
    save_job_archive,
    unpack_job_records,
)
from cirm.runs.jobs import TrainingJob
from cirm.runs.local import get_records_path


def restore_records_of_archived_jobs(folder: Path) -> None:
    """Write the records of archived jobs to files of their own, where these lack."""
    for key, entry in load_job_archive(folder).entries.items():
        path = get_records_path(key, folder)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_records(path, unpack_job_records(entry))


def archive_finished_jobs(
    jobs: Iterable[TrainingJob], folder: Path, source_commit: str
) -> None:
    """Add finished jobs to the archive, and drop those of earlier revisions."""
    archive = load_job_archive(folder)
    before = list(archive.entries)
    entries = {
        k: e
        for k, e in archive.entries.items()
        if not _has_outdated_learner_revision(e)
    }
    for job in jobs:
        path = get_records_path(job, folder)
        if job.key not in entries and path.exists():
            records = pack_job_records(read_records(path))
            origin = {
                "commit": source_commit,
                "by": job.learner,
                "revision": job.revision,
            }
            entries[job.key] = {**origin, **records}
    if list(entries) != before:
        archive.entries = entries
        save_job_archive(archive, folder)


def _has_outdated_learner_revision(entry: Entry) -> bool:
    """Return whether the learner of a job has another revision now."""
    try:
        learner = get_learner_class(entry["by"])
    except ValueError:  # a learner of another package, which is not installed here
        return False
    return entry["revision"] not in (learner.revision, learner.table_revision)
