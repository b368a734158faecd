"""Tests run on one thread, with fixed examples, no network and their own data cache."""

import os
import signal
import socket
import threading
from importlib.metadata import EntryPoint

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch counts the cores

import hypothesis
import numpy as np
import pandas as pd
import pytest

from cirm import cli, registry
from tests.browser import BINARY, Browser

hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=50
)
hypothesis.settings.load_profile("fixed")

HERE = {None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname()}


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive():
    """Also where a shell started the tests in the background, deaf to interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every other machine is out of reach."""
    resolve = socket.getaddrinfo

    def resolve_here(host, *arguments, **keywords):
        if host not in HERE:
            raise socket.gaierror(f"tests have no network; got {host!r}")
        return resolve(host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)


@pytest.fixture(autouse=True)
def own_cache(request, monkeypatch, tmp_path_factory):
    """The user's data files are neither read nor written, except by slow tests."""
    if "slow" not in request.keywords:
        monkeypatch.setenv("CIRM_DATA", str(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A tab of a real browser."""
    if BINARY is None:
        pytest.skip("no Chromium on this machine: install it to run this test")
    tab = Browser(tmp_path_factory.mktemp("profile"))
    yield tab
    tab.close()


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


QUICK = {"hidden": (8,), "epochs": 15, "rate": 0.02, "batch": 64}


def clinic_table(rows, agreement, seed):
    """Rows whose outcome the marker tells everywhere, and the scanner by the site."""
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, rows)
    site = np.where(rng.random(rows) < agreement, outcome, 1 - outcome)
    return pd.DataFrame(
        {
            "patient": [f"{seed}-{n:05d}" for n in range(rows)],
            "age": rng.normal(50, 10, rows).round(1),
            "marker": (rng.normal(size=rows) + 1.5 * (2 * outcome - 1)).round(4),
            "scanner": np.where(site == 1, "new", "old"),
            "visit": pd.to_datetime("2024-01-01")
            + pd.to_timedelta(rng.integers(0, 300, rows), "D"),
            "smoker": rng.random(rows) < 0.3,
            "outcome": np.where(outcome == 1, "ill", "well"),
        }
    )


@pytest.fixture
def quick():
    return dict(QUICK)


@pytest.fixture
def clinic():
    return clinic_table


@pytest.fixture
def reweigh(monkeypatch):
    """The key of a learner that adapts, offered by another package."""
    offers = [EntryPoint("reweigh", "tests.reweigh:Reweigh", "cirm.learners")]
    found = {"cirm.learners": offers}
    monkeypatch.setattr(
        registry, "list_entry_points", lambda group: found.get(group, [])
    )
    return "reweigh"


@pytest.fixture
def files(tmp_path):
    """Three clinics as CSV files; the scanner misleads in the last one."""
    for name, agreement, seed in (("a", 0.95, 0), ("b", 0.8, 1), ("c", 0.1, 2)):
        frame = clinic_table(200, agreement, seed)
        frame.to_csv(tmp_path / f"clinic-{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def values():
    """A table with a real target, in large units."""

    def made(rows, seed, scale=1.0):
        rng = np.random.default_rng(seed)
        dose = rng.normal(10, 2, rows)
        noise = rng.normal(size=rows)
        effect = 5000 + scale * (800 * (dose - 10) + 300 * noise)
        return pd.DataFrame({"dose": dose, "other": rng.normal(size=rows), "y": effect})

    return made
