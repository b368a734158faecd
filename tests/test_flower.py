"""A real SuperLink and SuperNodes on this machine, with TLS and node authentication."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from cirm.environments import Environment, Task
from cirm.federated.checkpoint import load_result_of_study
from cirm.federated.ledger import read_message_exchange_log
from cirm.learners import create, parse_learner_settings
from cirm.randomness import Randomness
from cirm.settings import parse_name_value_assignments

ROOT = Path(__file__).parents[1]
SITES = ("north", "south")
SETTINGS = "hidden= rate=0.1 optimiser=sgd batch=0 rounds=1 inner=5 rho1=0"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("flwr") is None, reason="the extra flower is not installed"
    ),
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")),
        reason="openssl and ssh-keygen make the keys",
    ),
]


class Federation:
    """Processes of Flower, and their files in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def call(self, *words):
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "a") as log:
            self.processes[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name, how=signal.SIGTERM):
        process = self.processes.pop(name)
        os.killpg(process.pid, how)
        process.wait(60)

    def make_keys(self):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes"]
        authority = ["-x509", "-subj", "/CN=authority", "-keyout", "ca.key"]
        self.call("openssl", "req", *curve, *authority, "-out", "ca.pem")
        server = ["-subj", "/CN=localhost", "-keyout", "server.key"]
        self.call("openssl", "req", *curve, *server, "-out", "server.csr")
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"
        (self.folder / "server.ext").write_text(names)
        signed = ["-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key"]
        signed += ["-CAcreateserial", "-extfile", "server.ext", "-out", "server.pem"]
        self.call("openssl", "x509", *signed)
        for site in SITES:
            made = ["-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", site]
            self.call("ssh-keygen", *made)

    def start_server(self):
        host, _, port = self.address.rpartition(":")
        files = ["--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        files += ["--ssl-ca-certfile", "ca.pem", "--enable-supernode-auth"]
        files += ["--disable-runtime-dependency-installation"]
        self.start("link", "flower-superlink", "--host", host, "--port", port, *files)
        wait_until(lambda: answers(host, int(port)))
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "{self.address}"\nroot-certificates = "{self.folder}/ca.pem"\n'
        )
        for site in SITES:
            self.call("flwr", "supernode", "register", f"{site}.pub", "here")

    def start_site(self, site):
        settings = f"path={self.folder}/{site}.npz task=regression test=none"
        options = {"name": site, "dataset": "arrays", "settings": settings}
        options["folder"] = str(self.folder / f"kept-{site}")
        words = " ".join(
            f"{name}={json.dumps(value)}" for name, value in options.items()
        )
        command = ["flower-supernode", "--superlink", self.address, "--port"]
        command += [str(free_port()), "--root-certificates", "ca.pem"]
        command += ["--auth-supernode-private-key", site, "--node-config", words]
        self.start(site, *command)

    def run(self, study, epochs, app=ROOT / "examples" / "federated", **options):
        values = {
            "study": study,
            "learner": "birm",
            "settings": f"{SETTINGS} epochs={epochs}",
            "stages": " ".join(SITES),
            "folder": str(self.folder / study),
            **options,
        }
        words = " ".join(
            f"{name}={json.dumps(value)}" for name, value in values.items()
        )
        self.call("flwr", "run", str(app), "here", "--run-config", words)

    def list_exchanges(self, study):
        path = self.folder / study / "ledger.jsonl"
        found = read_message_exchange_log(path) if path.exists() else []
        return [entry for entry in found if entry["kind"] == "steps"]

    def is_done(self, study):
        try:
            load_result_of_study(self.folder / study)
        except FileNotFoundError:
            return False
        return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(host, port):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def wait_until(condition, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def descendants(process, words):
    """The processes below one whose command holds these words."""
    parents, found = {}, []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status = (path / "status").read_text()
            parents[int(path.name)] = int(status.partition("PPid:")[2].split()[0])
            if words in (path / "cmdline").read_bytes().replace(b"\0", b" ").decode():
                found.append(int(path.name))
        except OSError:  # it has ended meanwhile
            continue
    return [one for one in found if process in ancestors(one, parents)]


def ancestors(process, parents):
    while process in parents:
        process = parents[process]
        yield process


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("federation"))
    generator = np.random.default_rng(0)
    for site, slope in zip(SITES, (1.0, 3.0), strict=True):
        inputs = generator.normal(size=(60, 2)).astype("float32")
        targets = (inputs @ [slope, -1.0]).astype("float32")
        np.savez(made.folder / f"{site}.npz", X=inputs, y=targets)
    try:
        made.make_keys()
        made.start_server()
        for site in SITES:
            made.start_site(site)
        yield made
    finally:
        for name in list(made.processes):
            made.stop(name)


def train_in_one_place(federation, epochs):
    """The learner on both sites' data in one place."""
    stage = []
    for site in SITES:
        file = np.load(federation.folder / f"{site}.npz")
        data = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
        stage.append(Environment(site, *data, Task.regression()))
    texts = parse_name_value_assignments(
        f"{SETTINGS} epochs={epochs}".split(), "settings"
    )
    learner = create("birm", stage[0], parse_learner_settings("birm", texts))
    randomness = Randomness((0,))
    state = learner.init(randomness.at("init"))
    return learner.observe(state, tuple(stage), randomness.at("stage", 0))


def test_sites_end_where_one_place_does_although_the_server_is_killed(federation):
    federation.run("killed", 4)
    wait_until(lambda: federation.list_exchanges("killed"))
    link = federation.processes["link"].pid
    running = descendants(link, "flwr-serverapp")
    assert running
    for process in running:
        os.kill(process, signal.SIGKILL)
    assert not federation.is_done("killed")
    federation.run("killed", 4)
    wait_until(lambda: federation.is_done("killed"))
    _, state = load_result_of_study(federation.folder / "killed")
    expected = train_in_one_place(federation, 4)
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=2e-5)


def test_a_site_that_drops_out_and_returns_takes_part_again(federation):
    federation.run("dropped", 10, patience=60.0)
    wait_until(lambda: federation.list_exchanges("dropped"))
    federation.stop("south")
    wait_until(
        lambda: any(
            "south" not in e["up"] for e in federation.list_exchanges("dropped")
        )
    )
    federation.start_site("south")
    wait_until(lambda: federation.is_done("dropped"))
    there = ["south" in entry["up"] for entry in federation.list_exchanges("dropped")]
    assert there[0]
    assert not all(there)
    assert any(there[there.index(False) :])
    _, state = load_result_of_study(federation.folder / "dropped")
    expected = train_in_one_place(federation, 10).params
    assert (state.params - expected).norm() < 0.5


FAULTY = """
import torch
from cirm.federated import client as site
from cirm.federated.codec import encode_message_content, decode_message_content
from cirm.federated.server import app as server
from flwr.app import Message
from flwr.clientapp import ClientApp


def run_training_steps(message, context):
    reply = site.run_training_steps(message, context)
    _, notes = decode_message_content(reply.content)
    first = notes["segment"][0]
    if context.node_config["name"] == "north" or first > 10:
        return reply
    value = torch.full((1, 3), float("nan") if first == 0 else 1.0)
    if first == 5:
        value = value[:, :2]
    if first == 10:
        notes["segment"] = [0, 5, *notes["segment"][2:]]
    return Message(encode_message_content({"value": value}, notes), reply_to=message)


client = ClientApp()
client.query("join")(site.join)
client.train("steps")(run_training_steps)
__all__ = ["client", "server"]
"""


def test_nan_wrong_shapes_and_stale_rounds_are_refused_and_named(federation):
    app = federation.folder / "faulty"
    shutil.copytree(ROOT / "examples" / "federated", app)
    (app / "study.py").write_text(FAULTY)
    federation.run("faulty_study", 4, app, patience=300.0)
    wait_until(lambda: federation.is_done("faulty_study"))
    found = federation.list_exchanges("faulty_study")
    reasons = [entry["refused"].get("south", "") for entry in found]
    assert reasons[0] == (
        "site 'south': array 'value' contains NaN or infinite values (3 in total), so "
        "training has diverged. Start the study with a smaller learning rate (rate) "
        "or penalty"
    )
    assert reasons[1] == (
        "site 'south': array 'value' has the type float32 and the shape [1, 2], but "
        "must have the type float32 and the shape [1, 3]. Check that the server and "
        "its sites run the same version of cirm"
    )
    assert reasons[2].startswith(
        "the answer of the site came too late: it is for segment [0, 5, "
    )
    assert [list(entry["up"]) for entry in found[:3]] == [["north"]] * 3
    assert set(found[3]["up"]) == {"north", "south"}
