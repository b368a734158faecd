"""Tests run on one thread, with fixed examples, no network and their own data cache."""

import os
import signal
import socket

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch counts the cores

import hypothesis
import pytest

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
