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
