import os
import subprocess
import sys
import time

import pytest

from cirm.cli import progress
from cirm.cli.progress import (
    JobTracker,
    data_size,
    describe_job,
    format_duration,
    guess_seconds,
)
from cirm.runs.jobs import Job


def jobs(*names, **data):
    return [
        Job("colored", name, "sequential", (seed,), {"source": "mnist", **data})
        for seed, name in enumerate(names)
    ]


def test_a_learner_that_has_finished_a_job_is_expected_to_take_as_long_again():
    first, second = jobs("erm", "erm")
    tracker = JobTracker([first, second], 1, [])
    tracker.finish(first, 10.0)
    assert (tracker.finished, tracker.share) == (1, 0.5)
    assert tracker.seconds_left == pytest.approx(10.0)
    tracker.update(second, 0.25)
    assert tracker.seconds_left == pytest.approx(7.5)
    assert tracker.list_running() == ["erm (mnist, seed 1) 25%"]


def test_a_learner_without_a_time_is_guessed_at_the_speed_of_the_others():
    first, second = jobs("erm", "mer")
    tracker = JobTracker([first, second], 1, [])
    tracker.finish(first, 3 * guess_seconds("erm"))
    assert tracker.seconds_left == pytest.approx(3 * guess_seconds("mer"))


def test_times_of_an_earlier_run_count():
    (job,) = jobs("erm", environments=6, examples=1000)
    assert JobTracker([job], 1, [("erm", 1.0, 5.0)]).seconds_left == pytest.approx(15.0)
    assert data_size({"environments": 6, "examples": 1000}, 1) == 3


def test_a_small_job_of_an_earlier_run_says_little_about_a_large_one():
    (job,) = jobs("irmv1", environments=1, examples=50_000)
    times = [("irmv1", 0.5, 60.0), ("irmv1", 24.5, 440.0)]
    assert JobTracker([job], 1, times).seconds_left == pytest.approx(500.0)


def test_a_learner_that_runs_for_the_first_time_shows_its_speed():
    now = [0.0]
    first, second = jobs("erm", "erm")
    tracker = JobTracker([first, second], 1, [], clock=lambda: now[0])
    tracker.update(first, 0.1)
    now[0] = 20.0
    tracker.update(first, 0.3)
    assert tracker.seconds_left == pytest.approx(70.0 + 100.0)


def test_workers_share_the_jobs_but_not_a_single_job():
    tracker = JobTracker(jobs("erm", "erm", "erm", "erm"), 2, [("erm", 1.0, 10.0)])
    assert tracker.seconds_left == pytest.approx(20.0)
    assert JobTracker(
        jobs("erm"), 8, [("erm", 1.0, 10.0)]
    ).seconds_left == pytest.approx(10.0)


def test_on_a_cluster_as_many_workers_are_assumed_as_have_been_seen():
    work = jobs("erm", "erm", "erm", "erm")
    tracker = JobTracker(work, 0, [("erm", 1.0, 10.0)])
    assert tracker.seconds_left == pytest.approx(40.0)
    for job in work[:2]:
        tracker.update(job, 0.5)
    assert tracker.seconds_left == pytest.approx(15.0)
    for job in work[:2]:
        tracker.finish(job, 10.0)
    assert tracker.seconds_left == pytest.approx(10.0)


def test_only_the_first_of_many_running_jobs_are_named():
    tracker = JobTracker(work := jobs(*["erm"] * 20), 0, [])
    for job in work:
        tracker.update(job, 0.5)
    assert tracker.list_running()[0] == "erm (mnist, seed 0) 50%"
    assert tracker.list_running()[-1] == "12 more"


def test_a_late_report_does_not_make_a_finished_job_run_again():
    first, second = jobs("erm", "erm")
    tracker = JobTracker([first, second], 0, [])
    tracker.finish(first, 4.0)
    tracker.update(first, 0.9)
    tracker.update(second, 0.5)
    assert tracker.list_running() == ["erm (mnist, seed 1) 50%"]
    assert tracker.seconds_left == pytest.approx(2.0)


def test_a_job_counts_as_finished_only_once_its_records_are_written():
    (job,) = jobs("erm")
    tracker = JobTracker([job], 1, [])
    tracker.update(job, 1.0)
    assert tracker.finished == 0
    assert tracker.share == pytest.approx(0.99)
    tracker.finish(job, 1.0)
    assert (tracker.finished, tracker.share, tracker.seconds_left) == (1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(42.4, "42 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations_have_the_unit_that_suits_them(seconds, text):
    assert format_duration(seconds) == text


def test_a_job_is_described_in_few_words():
    (job,) = jobs("gem", scheme="b11", environments=6)
    assert describe_job(job) == "gem (mnist b11 n=6, seed 0)"
    assert describe_job(Job("scm", "icp", "joint", (0, 1, 2))) == "icp (3 seeds)"


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    with progress.show_progress("Nothing was written.") as report:
        report("reading", 1500)
        time.sleep(0.12)
        report("learning a", 0.25)
        time.sleep(0.05)
        report("learning a", 0.5)
        time.sleep(0.12)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 1,500 rows, 0 s so far"
    assert lines[-1] == "learning a: 50%, 0 s so far, about 1 s left"


def test_jobs_are_shown_with_the_time_left(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    first, second = jobs("erm", "erm")
    tracker = JobTracker([first, second], 1, [("erm", 1.0, 10.0)])
    tracker.finish(first, 10.0)
    with progress.show_jobs(tracker, tmp_path, "table1") as report:
        report(second, 0.5)
        time.sleep(0.12)
    line = capsys.readouterr().err.splitlines()[0]
    assert line == (
        "table1: 1 of 2 jobs, 75%, 0 s so far, about 5 s left; "
        "running: erm (mnist, seed 1) 50%"
    )


def test_an_interrupt_says_what_was_kept(capsys):
    with (
        pytest.raises(progress.typer.Exit) as stopped,
        progress.show_progress("No model was written."),
    ):
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == "cirm: interrupted. No model was written.\n"


def test_a_download_shows_how_much_has_arrived(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    with progress.show_downloads() as add_bar:
        bar = add_bar("images.gz")
        bar.total = 4_000_000
        bar.update(1_000_000)
        time.sleep(0.12)
        bar.close()
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("images.gz: 1.0 of 4.0 MB, 0 s so far")


@pytest.mark.integration
def test_progress_appears_before_anything_heavy_is_imported(tmp_path):
    """The display comes up while PyTorch is still loading."""
    code = (
        "import os, sys, cirm.cli.progress as progress\n"
        "draw = progress.Display.get_renderables\n"
        "def record(display):\n"
        "    os.write(1, b'late ' if 'torch' in sys.modules else b'early ')\n"
        "    return draw(display)\n"
        "progress.Display.get_renderables = record\n"
        "from cirm.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", str(tmp_path / "none.cirm")],
        capture_output=True,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1"},  # rich takes stderr for a terminal
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout.split()[0] == b"early"


def test_a_display_leaves_standard_output_alone(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.show_progress("Nothing was written."):
        print("a,b")
    printed = capsys.readouterr()
    assert printed.out == "a,b\n"
    assert "starting" in printed.err
