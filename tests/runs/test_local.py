import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cirm.records import RunRecord, ScoreRecord, format_record_as_json, write_records
from cirm.runs import local
from cirm.runs.engines import JobEngine
from cirm.runs.local import (
    get_records_path,
    list_unfinished_jobs,
    read_job_duration,
    read_records_of_finished_jobs,
    run_jobs_locally,
)
from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner

DATA = {"source": "digits", "environments": "2", "examples": "100"}


def jobs(epochs=2, seeds=2):
    texts = [f"epochs={epochs}", "hidden=8"]
    on = create_and_draw_dataset("colored", DATA)
    (job,) = plan_jobs_of_learner(
        on, "erm", "sequential", range(seeds), setting_texts=texts
    )
    return [replace(job, seeds=(seed,)) for seed in job.seeds]


def scores(records):
    return [format_record_as_json(r) for r in records if isinstance(r, ScoreRecord)]


def test_finished_jobs_are_not_run_again(tmp_path):
    work = jobs()
    assert run_jobs_locally(work, tmp_path, 1) == {}
    times = [get_records_path(job, tmp_path).stat().st_mtime_ns for job in work]
    assert list_unfinished_jobs(work, tmp_path) == []
    run_jobs_locally(work, tmp_path, 1)
    assert [get_records_path(job, tmp_path).stat().st_mtime_ns for job in work] == times


@pytest.mark.integration
def test_numbers_do_not_depend_on_the_number_of_processes(tmp_path):
    work = jobs()
    reports = []
    run_jobs_locally(work, tmp_path / "one", 1)
    run_jobs_locally(work, tmp_path / "two", 2, lambda job, done: reports.append(done))
    one, two = (
        read_records_of_finished_jobs(work, tmp_path / name) for name in ("one", "two")
    )
    assert scores(one) == scores(two)
    assert reports.count(1.0) >= 2


def test_a_failed_job_does_not_stop_the_others(tmp_path):
    good, bad = jobs()
    bad = replace(bad, settings={**bad.settings, "rate": 1e30, "optimiser": "sgd"})
    failures = run_jobs_locally([bad, good], tmp_path, 1)
    assert list(failures) == [bad.key]
    assert "training diverged at step" in failures[bad.key]
    assert list_unfinished_jobs([bad, good], tmp_path) == [bad]


def test_an_error_without_words_is_reported_by_its_kind(tmp_path, monkeypatch):
    def fail(job, progress, folder):
        raise MemoryError

    monkeypatch.setattr(local, "run_job_and_return_records", fail)
    (job,) = jobs(seeds=1)
    assert run_jobs_locally([job], tmp_path, 1) == {job.key: "MemoryError"}


def test_the_duration_of_a_job_is_that_of_its_closing_row(tmp_path):
    (job,) = jobs(seeds=1)
    score = ScoreRecord("erm", "joint", 0, 0, "a", "train", "accuracy", 50.0)
    run = RunRecord("erm", "joint", (0,), {}, {}, "", {}, 12.5)
    write_records(get_records_path(job, tmp_path), [score, run])
    assert read_job_duration(job, tmp_path) == 12.5


def test_an_engine_runs_so_many_jobs_at_a_time():
    assert JobEngine("local", 3).job_limit == 3
    assert JobEngine("local").job_limit == os.cpu_count()


@pytest.mark.integration
def test_a_killed_worker_costs_a_try_and_hides_no_other_failure(tmp_path):
    good, bad = jobs(epochs=4000)  # long enough to be seen while it runs
    bad = replace(bad, settings={**bad.settings, "rate": 1e30, "optimiser": "sgd"})
    killed = []

    def kill_once(job, done):
        if job == good and done < 1 and not killed:
            children = multiprocessing.active_children()
            killed.extend(c for c in children if "Manager" not in c.name)
            for process in killed:
                process.kill()

    failures = run_jobs_locally([bad, good], tmp_path, 2, kill_once)
    assert killed
    assert list(failures) == [bad.key]
    assert "training diverged at step" in failures[bad.key]
    assert list_unfinished_jobs([bad, good], tmp_path) == [bad]


@pytest.mark.integration
def test_workers_end_when_the_driver_is_killed(tmp_path):
    script = (
        "import multiprocessing, sys\n"
        "from pathlib import Path\n"
        "from cirm.runs.jobs import TrainingJob\n"
        "from cirm.runs.local import run_jobs_locally\n"
        "data = {'source': 'digits', 'examples': 100, 'sweep': ()}\n"
        "work = [TrainingJob('colored', 'erm', 'joint', (s,), data, {'epochs': 10**6})"
        " for s in (0, 1)]\n"
        "def told(job, done):\n"
        "    print(*(c.pid for c in multiprocessing.active_children()), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    run_jobs_locally(work, Path(sys.argv[1]), 2, told)\n"
    )
    (tmp_path / "driver.py").write_text(script)
    driver = subprocess.Popen(
        [sys.executable, str(tmp_path / "driver.py"), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    children = [int(pid) for pid in driver.stdout.readline().split()]
    driver.kill()
    driver.communicate()
    assert len(children) == 3  # two workers, and the manager of their reports
    deadline = time.monotonic() + 30
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, children))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_killed_run_continues_and_ends_with_the_same_numbers(tmp_path):
    work = jobs(epochs=40, seeds=3)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests_jobs import work\n"
        "from cirm.runs.local import run_jobs_locally\n"
        "run_jobs_locally(work, Path(sys.argv[2]), 1)\n"
    )
    (tmp_path / "tests_jobs.py").write_text(
        f"from cirm.runs.jobs import TrainingJob\nwork = {work!r}\n"
    )
    folder = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while len(list_unfinished_jobs(work, folder)) == 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(list_unfinished_jobs(work, folder)) < 3
    run_jobs_locally(work, folder, 1)
    run_jobs_locally(work, tmp_path / "whole", 1)
    killed, whole = (
        read_records_of_finished_jobs(work, f) for f in (folder, tmp_path / "whole")
    )
    assert scores(killed) == scores(whole)
    assert not list(folder.glob("jobs/*.tmp"))
