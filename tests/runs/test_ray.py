"""A real Ray of two cores on this machine, started once."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from cirm import load
from cirm.cli import main
from cirm.records import ScoreRecord, format_record_as_json
from cirm.runs.engines import JobEngine
from cirm.runs.job_queue import JobQueue, WallClockBudget
from cirm.runs.local import list_unfinished_jobs, read_records_of_finished_jobs
from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner
from cirm.runs.ray_engine import (
    check_ray_address,
    connect_to_ray,
    run_job_on_ray_worker,
)

DATA = {"dimension": "4", "examples": "100"}  # which a new worker has quickly

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not Path("/proc/self").exists(), reason="reads processes as Linux does"
    ),
]


@pytest.fixture(scope="module")
def cluster():
    """Address and process of a small cluster with a token of its own."""
    if find_spec("ray") is None:  # it must be loaded after the settings below
        pytest.skip("the extra ray is not installed")
    with (
        tempfile.TemporaryDirectory(prefix="ray") as folder,  # short, for its sockets
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_TMPDIR", folder)
        address = f"127.0.0.1:{free_port()}"
        command = ["ray", "start", "--head", "--block", "--num-cpus=2"]
        command += [f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder}"]
        command += ["--include-dashboard=false", f"--object-store-memory={80 * 2**20}"]
        command += ["--no-monitor", "--include-log-monitor=false"]  # fewer processes
        command += [f"--ray-client-server-port={free_port()}"]  # not that of another
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until_it_answers(head, address)
            with connect_to_ray(address):  # so that all tests share its workers
                yield SimpleNamespace(address=address, process=head.pid)
        finally:
            head.terminate()
            head.wait(30)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_it_answers(head, address):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert head.poll() is None
        try:
            return check_ray_address(address)
        except ValueError:
            time.sleep(0.1)
    raise TimeoutError(address)


def jobs(epochs=2, seeds=2):
    on = create_and_draw_dataset("scm", DATA)
    texts = [f"epochs={epochs}", "hidden=8"]
    (job,) = plan_jobs_of_learner(
        on, "erm", "sequential", range(seeds), setting_texts=texts
    )
    return [replace(job, seeds=(seed,)) for seed in job.seeds]


def scores(jobs, folder):
    return [
        format_record_as_json(r)
        for r in read_records_of_finished_jobs(jobs, folder)
        if isinstance(r, ScoreRecord)
    ]


def workers(head):
    """The processes of a cluster that run a job now, by the process it began with."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                (process / "cmdline")
                .read_bytes()
                .startswith(b"ray::run_job_on_ray_worker")
            ):
                found.append(int(process.name))
        except OSError:  # it has ended meanwhile
            continue
    return [process for process in found if parent(parent(process)) == head]


def parent(process):
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def test_a_failing_job_does_not_stop_the_others_and_numbers_are_those_of_local(
    cluster, tmp_path
):
    good = jobs(seeds=3)
    bad = replace(good[0], settings={**good[0].settings, "rate": 1e30})
    bad = replace(bad, settings={**bad.settings, "optimiser": "sgd"})
    reports = []
    failures = JobEngine("ray", address=cluster.address)(
        [bad, *good], tmp_path / "ray", lambda job, done: reports.append(done)
    )
    assert list(failures) == [bad.key]
    assert "training diverged at step" in failures[bad.key]
    assert list_unfinished_jobs([bad, *good], tmp_path / "ray") == [bad]
    assert reports.count(1.0) == 3
    assert JobEngine("local", 1)(good, tmp_path / "local") == {}
    assert scores(good, tmp_path / "ray") == scores(good, tmp_path / "local")


def test_a_killed_worker_costs_its_job_a_try(cluster, tmp_path):
    (job,) = jobs(epochs=1500, seeds=1)
    killed, parts = [], []

    def kill_the_first_worker():  # whether or not it has reported progress
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            killed.extend(workers(cluster.process))
            time.sleep(0.01)
        for process in killed:
            os.kill(process, signal.SIGKILL)

    with ThreadPoolExecutor(1) as thread:
        killing = thread.submit(kill_the_first_worker)
        engine = JobEngine("ray", 1, cluster.address)
        failures = engine([job], tmp_path / "ray", lambda job, done: parts.append(done))
        killing.result()
    assert failures == {}
    assert len(killed) == 1
    assert parts[-1] == 1.0
    assert JobEngine("local", 1)([job], tmp_path / "local") == {}
    assert scores([job], tmp_path / "ray") == scores([job], tmp_path / "local")


def test_the_command_line_gives_the_summary_of_local(cluster, monkeypatch, tmp_path):
    words = ["cirm", "run", "--dataset", "scm", "--examples", "100", "--seeds", "2"]
    words += ["--learner", "erm", "--learner", "irmv1", "--set", "epochs=2"]
    found = []
    for place in (
        ["--engine", "ray", "--address", cluster.address],
        ["--workers", "1"],
    ):
        out = tmp_path / place[1]
        monkeypatch.setattr("sys.argv", [*words, *place, "--out", str(out)])
        with pytest.raises(SystemExit, match="0"):
            main()
        entries = json.loads((out / "summary.json").read_text())["learners"]
        found.append({n: {**e, "seconds": 0} for n, e in entries.items()})
    assert found[0] == found[1]


def test_models_are_fitted_on_the_cluster_and_a_bad_file_is_named(
    cluster, cirm, tmp_path
):
    data = tmp_path / "clinics"
    data.mkdir()
    rows = "".join(f"{n * n % 7},{'yes' if n % 3 else 'no'}\n" for n in range(60))
    (data / "north.csv").write_text("age,outcome\n" + rows)
    (data / "south.csv").write_text("age,result\n" + rows)
    words = ["fit", "--each", data, "--target", "outcome", "--learner", "erm"]
    words += ["--set", "epochs=2"]
    place = ["--engine", "ray", "--address", cluster.address]
    status, _, error = cirm(*words, *place, "--model", tmp_path / "ray")
    assert status == 1
    assert [line for line in error.splitlines() if "failed: " in line] == [
        line for line in error.splitlines() if line.startswith("failed: south: ")
    ]
    assert cirm(*words, "--workers", 1, "--model", tmp_path / "local")[0] == 1
    one, other = (load(tmp_path / n / "north.cirm") for n in ("ray", "local"))
    assert one.state.params.equal(other.state.params)


def test_a_budget_holds_on_a_cluster_and_the_rest_is_done_later(cluster, tmp_path):
    work = jobs(epochs=2, seeds=4)
    seconds = {work[0].key: 0.1, **{job.key: 1000.0 for job in work[1:]}}
    queue = JobQueue(work, budget=WallClockBudget(600.0), seconds=seconds)
    engine = JobEngine("ray", address=cluster.address)
    assert engine(work, tmp_path, queue=queue) == {}
    assert list_unfinished_jobs(work, tmp_path) == queue.unstarted == work[1:]
    assert engine(work, tmp_path) == {}
    assert list_unfinished_jobs(work, tmp_path) == []


def test_a_worker_of_another_version_is_named():
    (job,) = jobs(seeds=1)
    text, reason = run_job_on_ray_worker(job, "0.0.1", None)
    assert text == ""
    assert reason.startswith("its worker has cirm ")
    assert "the driver has 0.0.1: install the same version" in reason


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_without_a_cluster_is_refused_at_once(address):
    with pytest.raises(
        ValueError, match=f"No Ray cluster answers at {address!r}. Start one"
    ):
        check_ray_address(address)
