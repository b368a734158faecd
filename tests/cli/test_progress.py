import os
import subprocess
import sys
import time

import pytest

from cirm.cli import progress
from cirm.cli.progress import format_duration
from cirm.runs.jobs import TrainingJob
from cirm.runs.tracker import JobProgressTracker


def jobs(*names, **data):
    return [
        TrainingJob("colored", name, "sequential", (seed,), {"source": "mnist", **data})
        for seed, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(42.4, "42 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_durations_have_the_unit_that_suits_them(seconds, text):
    assert format_duration(seconds) == text


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    with progress.show_progress_of_steps("Nothing was written.") as report:
        report("reading", 1500)
        time.sleep(0.12)
        report("learning a", 0.25)
        time.sleep(0.05)
        report("learning a", 0.5)
        time.sleep(0.12)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading: 1,500 rows, 0 s so far"
    assert lines[-1] == "learning a: 50%, 0 s so far"


def test_a_step_that_takes_longer_than_expected_shows_no_time_left(monkeypatch):
    now = [0.0]
    shown = progress.TerminalProgressDisplay()
    shown.get_time = lambda: now[0]
    monkeypatch.setattr(progress, "TerminalProgressDisplay", lambda refresh: shown)
    with progress.show_progress_of_steps("Nothing was written.") as report:
        report("training", 0.0)
        now[0] = 4.0
        report("training", 0.5)
        texts = []
        for now[0] in (4.0, 7.0, 9.0):
            texts.append(progress.format_time_spent_and_left(shown.tasks[0]))
    assert texts == [
        "4 s so far, about 4 s left of this step",
        "7 s so far, about 1 s left of this step",
        "9 s so far",
    ]


def test_the_time_left_of_a_step_follows_its_whole_course(monkeypatch):
    now, texts = [0.0], []
    shown = progress.TerminalProgressDisplay()
    shown.get_time = lambda: now[0]
    monkeypatch.setattr(progress, "TerminalProgressDisplay", lambda refresh: shown)
    with progress.show_progress_of_steps("Nothing was written.") as report:
        report("training", 0.0)
        # The loss falls until step 400, and training stops 200 steps after that.
        for step in range(10, 601, 10):
            now[0] += 1.0
            report("training", step / (min(step, 400) + 200))
            texts.append((step, shown.tasks[0].fields["left"]))
    wrong = [
        (step, left)
        for step, left in texts
        if 200 <= step < 560 and not 0.5 <= left / ((600 - step) / 10) <= 2
    ]
    assert wrong == []


def test_jobs_are_shown_with_the_time_left(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    first, second = jobs("erm", "erm")
    tracker = JobProgressTracker([first, second], 1, [("erm", 1.0, 10.0)])
    tracker.finish(first, 10.0)
    with progress.show_progress_of_jobs(tracker, tmp_path, "table1") as report:
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
        progress.show_progress_of_steps("no model was written"),
    ):
        raise KeyboardInterrupt
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == (
        "cirm: The command was interrupted, so no model was written. Run the command "
        "again to start over.\n"
    )


def test_a_download_shows_how_much_has_arrived(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PAUSE", 0.05)
    with progress.show_download_progress() as add_bar:
        bar = add_bar("images.gz")
        bar.total = 4_000_000
        bar.update(1_000_000)
        time.sleep(0.12)
        bar.close()
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("images.gz: 1.0 of 4.0 MB, 0 s so far")


@pytest.mark.integration
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "none.cirm"),
        ("fit", "none.csv", "--target", "y", "--model", "m.cirm"),
        ("adapt", "none.csv", "--model", "none.cirm", "--out", "a.cirm"),
        ("predict", "none.csv", "--model", "none.cirm"),
        ("evaluate", "none.csv", "--model", "none.cirm"),
    ],
    ids=lambda words: words[0],
)
def test_progress_appears_before_anything_heavy_is_imported(tmp_path, words):
    """The display comes up while PyTorch is still loading."""
    code = (
        "import os, sys, cirm.cli.progress as progress\n"
        "draw = progress.TerminalProgressDisplay.get_renderables\n"
        "def record(display):\n"
        "    os.write(1, b'late ' if 'torch' in sys.modules else b'early ')\n"
        "    return draw(display)\n"
        "progress.TerminalProgressDisplay.get_renderables = record\n"
        "from cirm.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        env={**os.environ, "FORCE_COLOR": "1"},  # rich takes stderr for a terminal
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout.split()[0] == b"early"


def test_a_display_leaves_standard_output_alone(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.show_progress_of_steps("Nothing was written."):
        print("a,b")
    printed = capsys.readouterr()
    assert printed.out == "a,b\n"
    assert "starting" in printed.err


def test_jobs_are_drawn_on_a_terminal(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    (job,) = jobs("erm")
    tracker = JobProgressTracker([job], 1, [("erm", 1.0, 10.0)])
    with progress.show_progress_of_jobs(tracker, tmp_path, "table1") as report:
        report(job, 0.5)
    assert "table1" in capsys.readouterr().err
