"""`cirm serve` as a process of its own: starting, refusing, load, and the end."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cirm.cli import serve as command
from tests.serving.server import ROW, Client, make_table

TOKEN = "0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def start(*words, **options):
    """Start `cirm serve`, and wait until it says where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cirm", "serve", *map(str, words), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield process, read_address(process)
    finally:
        process.kill()
        process.communicate()


def read_address(process):
    """Where a server listens; on a busy machine it tells its progress first."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if address := re.search(r"at (http://\S+)/ until Ctrl-C", line):
            return address[1]
    raise AssertionError("".join(lines))


@pytest.mark.integration
def test_a_thousand_requests_fifty_at_a_time_have_no_error(model_file):
    with start(model_file) as (_, address), ThreadPoolExecutor(50) as pool:
        client = Client(address)
        rows = [ROW | {"patient": n} for n in range(1000)]
        begin = time.perf_counter()
        answers = list(pool.map(lambda row: client.predict([row]), rows))
        seconds = time.perf_counter() - begin
        metrics = client.get("/metrics")[2].decode()
    assert [status for status, _ in answers] == [200] * 1000
    found = [content["predictions"][0]["patient"] for _, content in answers]
    assert found == list(range(1000))
    assert 'cirm_requests_total{path="/predict",status="200"} 1000.0' in metrics
    assert "cirm_errors_total{" not in metrics
    print(f"1,000 requests, 50 at a time: {seconds:.1f} s")


@pytest.mark.integration
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_the_end_waits_for_requests_under_way(model_file, sign):
    text = make_table(9_000).to_csv(index=False)
    with (
        start(model_file, stdout=subprocess.PIPE) as (process, address),
        ThreadPoolExecutor(1) as pool,
    ):
        client = Client(address)
        answer = pool.submit(client.predict, text, "text/csv")
        while "cirm_rows_total" not in client.get("/metrics")[2].decode():
            time.sleep(0.01)
        time.sleep(0.2)  # the body has arrived by now
        process.send_signal(sign)
        status, content = answer.result(timeout=30)
        printed, complaints = process.communicate(timeout=30)
    assert status == 200 and len(content["predictions"]) == 9_000
    assert (process.returncode, printed, complaints) == (0, "", "Stopped.\n")


@pytest.mark.integration
def test_the_token_comes_from_a_file_or_from_the_environment(
    model_file, tmp_path, monkeypatch
):
    (tmp_path / "token.txt").write_text(f"{TOKEN}\n")
    with start(model_file, "--token-file", tmp_path / "token.txt") as (_, address):
        assert Client(address).predict([ROW])[0] == 401
        assert Client(address, TOKEN).predict([ROW])[0] == 200
    monkeypatch.setenv("CIRM_TOKEN", TOKEN[::-1])
    with start(model_file, "--host", "0.0.0.0") as (_, address):
        address = address.replace("0.0.0.0", "127.0.0.1")
        assert Client(address, TOKEN).predict([ROW])[0] == 401
        assert Client(address, TOKEN[::-1]).predict([ROW])[0] == 200
        assert Client(address, TOKEN[::-1]).get("/health", Host="a.example")[0] == 200


BAD_WORDS = [
    (["none.cirm"], "none.cirm"),
    (
        ["m.cirm", "--host", "0.0.0.0"],
        "--host: anyone who can reach the address '0.0.0.0'",
    ),
    (
        ["m.cirm", "--host", "a.example"],
        "--host: anyone who can reach the address 'a.example'",
    ),
    (["m.cirm", "--token-file", "none"], "--token-file: there is no file 'none'"),
    (
        ["m.cirm", "--token-file", "short"],
        "must contain a token of at least 16 letters",
    ),
    (
        ["m.cirm", "--token-file", "m.cirm"],
        "must contain a token of at least 16 letters",
    ),
    (["short"], "short"),
    (["m.cirm", "--abstain", "2"], "abstain"),
    (["m.cirm", "--sets", "--level", "2"], "level"),
]


@pytest.mark.parametrize(("words", "message"), BAD_WORDS)
def test_what_cannot_be_served_is_refused_in_one_line(
    cirm, model_file, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.cirm").write_bytes(model_file.read_bytes())
    (tmp_path / "short").write_text("secret\n")
    status, _, error = cirm("serve", *words, "--port", "0")
    assert status == 2
    assert message in error and error.count("\n") == 1


def test_a_port_that_is_in_use_is_refused(cirm, model_file):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, error = cirm("serve", model_file, "--port", port)
    assert status == 2
    assert f"cannot listen at 127.0.0.1:{port}" in error and "--port 0" in error


def test_without_the_extra_the_message_says_how_to_install_it(cirm, monkeypatch):
    monkeypatch.setattr(command, "PACKAGES", ("fastapi", "no_such_package"))
    status, _, error = cirm("serve", "m.cirm")
    assert status == 2
    assert "no_such_package is not installed" in error
    assert "pip install 'cirm[serve]'" in error
