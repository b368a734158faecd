"""A command that is killed while it writes leaves the old files or the new ones."""

import os
import select
import signal
import time
from pathlib import Path

import pytest

from cirm import cli, load
from cirm.model.file import compute_version_key

QUICK = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")
STAGES = ["half of a file", "before the disk has it", "before the first file is moved"]
STAGES += ["before the second file is moved", "after a file is moved"]
COMMANDS = {
    "rollback": ("rollback", "m.cirm"),
    "predict": (
        *("predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"),
        *("--report", "p.html", "--overwrite"),
    ),
    "update": ("update", "clinic-c.csv", "--model", "m.cirm", "--report", "u.html"),
}


@pytest.fixture
def written(cirm, files, monkeypatch):
    """A model that was updated once, and a file in place of its predictions."""
    monkeypatch.chdir(files)
    words = ("--target", "outcome", "--model", "m.cirm", *QUICK)
    assert cirm("fit", "clinic-a.csv", *words)[0] == 0
    assert cirm("update", "clinic-b.csv", "--model", "m.cirm")[0] == 0
    return files


class SlowFile:
    """A file that pauses when half of something is written."""

    def __init__(self, file, pause):
        self.file, self.pause = file, pause

    def write(self, content):
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.pause("half of a file")
        return self.file.write(content[half:])

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)


def slow_down(pause):
    """Make every step of writing pause, in this process."""
    open_file, replace, fsync = Path.open, os.replace, os.fsync
    moved = []

    def open_slowly(path, mode="r", *arguments, **options):
        file = open_file(path, mode, *arguments, **options)
        return SlowFile(file, pause) if mode in ("xb", "w") else file

    def sync_slowly(number):
        pause("before the disk has it")
        fsync(number)

    def replace_slowly(old, new):
        pause(STAGES[3] if moved else STAGES[2])
        replace(old, new)
        moved.append(new)
        pause("after a file is moved")

    Path.open, os.fsync, os.replace = open_slowly, sync_slowly, replace_slowly


def kill_in_stage(words, stage):
    """Run a command in a child that stops in a stage of writing, and kill it there."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

        def pause(where):
            if where == stage:
                os.write(sender, b"here")
                time.sleep(600)

        slow_down(pause)
        cli.sys.argv = ["cirm", *words]
        try:
            cli.main()
        finally:
            os.write(sender, b"past")  # the command never was in this stage
            os._exit(0)
    try:
        assert select.select([receiver], [], [], 120)[0], "the child hangs"
        return os.read(receiver, 4) == b"here"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiver)
        os.close(sender)


def version():
    return compute_version_key(load("m.cirm"))


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fifty_kills_during_the_write_leave_whole_files(cirm, written):
    old_model = Path("m.cirm").read_bytes()
    Path("p.csv").write_text("mine")
    assert cirm(*COMMANDS["predict"][:-3], "--overwrite")[0] == 0
    predictions = Path("p.csv").read_text()
    before = version()
    killed = 0
    for turn in range(50):
        name = list(COMMANDS)[2 if turn % 10 == 9 else turn % 2]
        stage = STAGES[turn // 2 % len(STAGES)]
        Path("m.cirm").write_bytes(old_model)
        Path("p.csv").write_text("mine")
        Path("p.html").unlink(missing_ok=True)
        Path("u.html").unlink(missing_ok=True)
        is_killed = kill_in_stage(COMMANDS[name], stage)
        killed += is_killed
        has_moved = stage in STAGES[3:] or not is_killed
        is_new = version() != before  # which reads and checks the whole file
        if name == "predict":
            text = Path("p.csv").read_text()
            assert (text, is_new) == (predictions if has_moved else "mine", False)
        elif name == "rollback":
            assert is_new == has_moved
        else:  # the page comes first, and the model last
            assert is_new == (not is_killed)
            assert Path("u.html").exists() == has_moved
    assert killed >= 45  # a single file has no second one to be moved
    # Temporary files may be left behind; no later command minds them.
    Path("m.cirm").write_bytes(old_model)
    assert cirm("rollback", "m.cirm")[0] == 0
