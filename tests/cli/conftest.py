import os
import signal
import threading

import pytest

from cirm import cli


@pytest.fixture
def cirm(monkeypatch, capsys):
    """The command line in this process: exit status, and what went to each channel."""

    def run(*words):
        monkeypatch.setattr("sys.argv", ["cirm", *map(str, words)])
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def refused(cirm, monkeypatch, tmp_path):
    """Holds that words give one sentence and status 2, and leave nothing behind."""

    def hold(words, message):
        monkeypatch.chdir(tmp_path)
        status, _, error = cirm(*words)
        assert status == 2
        assert message in error
        assert error.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    return hold


@pytest.fixture
def interrupt():
    """Sends this process a real interrupt as soon as something is so."""
    ended = threading.Event()

    def send(is_so):
        while not ended.wait(0.02):
            if is_so():
                return os.kill(os.getpid(), signal.SIGINT)

    yield lambda is_so: threading.Thread(target=send, args=(is_so,)).start()
    ended.set()
