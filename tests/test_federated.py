"""Sites and a server over a grid in this process; real Flower is in the slow tests."""

import io
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import safetensors.torch
import torch

flwr = pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Array, Context, Message, RecordDict  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from cirm.data.colored import Colored  # noqa: E402
from cirm.federated import client  # noqa: E402
from cirm.federated.checkpoint import load_result_of_study  # noqa: E402
from cirm.federated.codec import (  # noqa: E402
    decode_and_check_tensors,
    decode_message_content,
    encode_message_content,
    encode_tensor_as_npy,
)
from cirm.federated.ledger import count_bytes_sent_by_site, read_message_exchange_log  # noqa: E402
from cirm.federated.server import create_study_coordinator  # noqa: E402
from cirm.federated.study import split_stage_into_step_ranges  # noqa: E402
from cirm.federated.tensor_file import (  # noqa: E402
    read_tensor_file,
    write_tensor_file,
)
from cirm.learners import create, parse_learner_settings  # noqa: E402
from cirm.randomness import Randomness  # noqa: E402
from cirm.settings import parse_name_value_assignments  # noqa: E402

DATA = {"source": "digits", "environments": 3, "examples": 60}
NAMES = ("north", "south", "west")


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Flower gives its processes an identity; messages ask for it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Here(Grid):
    """Flower's grid with the sites in threads of this process."""

    def __init__(self):
        self.sites = {}
        self.replies = {}
        self.numbers = itertools.count(1)

    def add(self, node, config, app=client.app):
        context = Context(0, node, config, RecordDict(), {})
        self.sites[node] = (app, context)

    def set_run(self, run):
        raise NotImplementedError

    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **keywords):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.sites)

    def push_messages(self, messages):
        keys = []
        for message in messages:
            key = str(next(self.numbers))
            message.metadata.__dict__["_message_id"] = key
            keys.append(key)
            site = self.sites.get(message.metadata.dst_node_id)
            if site is None:  # it has just gone, and nobody answers
                continue
            threading.Thread(target=self.answer, args=(key, site, message)).start()
        return keys

    def answer(self, key, site, message):
        app, context = site
        self.replies[key] = app(message, context)

    def pull_messages(self, message_ids):
        return [self.replies.pop(key) for key in message_ids if key in self.replies]


def config(tmp_path, number, **changes):
    settings = " ".join(f"{name}={value}" for name, value in DATA.items())
    return {
        "name": NAMES[number],
        "dataset": "colored",
        "settings": settings,
        "environment": number,
        "folder": str(tmp_path / NAMES[number]),
        **changes,
    }


def start_sites(tmp_path, sites=2, **apps):
    """A grid with so many sites; `apps` are other apps by a site's name."""
    grid = Here()
    for number in range(sites):
        app = apps.get(NAMES[number], client.app)
        grid.add(number + 1, config(tmp_path, number), app)
    return grid


def coordinate(grid, tmp_path, settings, stages="north south", **changes):
    run = {"settings": settings, "stages": stages, "folder": str(tmp_path / "study")}
    config = {"learner": "birm", "patience": 20, **run, **changes}
    coordinator = create_study_coordinator(grid, config)
    coordinator.connection.poll_interval = 0.002
    return coordinator


def parse_texts(text, learner="birm"):
    return parse_learner_settings(
        learner, parse_name_value_assignments(text.split(), "settings")
    )


def train_in_one_place(learner, settings, stages):
    """The same learner with all data in one place."""
    environments = Colored(**DATA).draw_problem((0,)).train
    named = {n: e.rename(n) for n, e in zip(NAMES, environments, strict=True)}
    made = create(learner, environments[0], parse_texts(settings, learner))
    randomness = Randomness((0,))
    state = made.init(randomness.at("init"))
    for index, names in enumerate(stages.split(";")):
        stage = tuple(named[name] for name in names.split())
        state = made.observe(state, stage, randomness.at("stage", index))
    return state


QUICK = "hidden=6 rate=0.05 optimiser=sgd epochs=4"


@pytest.mark.parametrize(
    "settings",
    [
        f"{QUICK} batch=0 rounds=1 inner=3 constraint=network",
        *(
            pytest.param(settings, marks=pytest.mark.integration)
            for settings in (
                f"{QUICK} batch=0 rounds=2 inner=2 growth=5",
                f"{QUICK} batch=25 rounds=1 inner=2",
                f"{QUICK} batch=25 inner=1 constraint=network",
                f"{QUICK} batch=0 inner=3",
                "hidden=6 rate=0.01 optimiser=adam epochs=3 batch=0 rounds=1 inner=3",
            )
        ),
    ],
)
def test_sites_end_where_the_environments_do_in_one_place(tmp_path, settings):
    stages = "north south; west"
    coordinate(start_sites(tmp_path, 3), tmp_path, settings, stages).run()
    expected = train_in_one_place("birm", settings, stages)
    _, state = load_result_of_study(tmp_path / "study")
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=2e-5)
    torch.testing.assert_close(state.last, expected.last, rtol=0, atol=2e-5)


@pytest.mark.parametrize("constraint", ["network", "head"])
@pytest.mark.integration
def test_so_do_posteriors_and_later_sites_take_them_as_their_prior(
    tmp_path, constraint
):
    settings = "hidden=6 rate=0.01 epochs=6 batch=0 rounds=1 inner=5 samples=40"
    settings += f" kl_scale=sum constraint={constraint}"
    stages = "north south; west"
    coordinate(
        start_sites(tmp_path, 3), tmp_path, settings, stages, learner="bvirm"
    ).run()
    expected = train_in_one_place("bvirm", settings, stages)
    _, state = load_result_of_study(tmp_path / "study")
    start = train_in_one_place(
        "bvirm", settings.replace("rate=0.01", "rate=1e-9"), stages
    )
    for part in ("mean", "log_std"):
        own, joint, before = (
            getattr(s.posterior, part) for s in (state, expected, start)
        )
        # The noise differs, so it is compared with how far training went.
        assert (own - joint).norm() < 0.1 * (joint - before).norm()


def test_a_stage_may_be_added_when_its_site_is_there(tmp_path):
    settings = f"{QUICK} batch=0 rounds=1 inner=3"
    grid = start_sites(tmp_path)
    coordinate(grid, tmp_path, settings).run()
    grid.add(3, config(tmp_path, 2))
    coordinate(grid, tmp_path, settings, "north south; west").run()
    expected = train_in_one_place("birm", settings, "north south; west")
    _, state = load_result_of_study(tmp_path / "study")
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=2e-5)


LINEAR = "hidden= rate=0.02 optimiser=sgd batch=0 rounds=1 inner=5 rho1=0.1 epochs=12"


def list_exchanges(tmp_path, kind="steps"):
    path = tmp_path / "study" / "ledger.jsonl"
    return [entry for entry in read_message_exchange_log(path) if entry["kind"] == kind]


def alter_answers(change):
    """A site's app whose answers to steps are changed: tensors and notes."""

    def app(message, context):
        reply = client.app(message, context)
        if message.metadata.message_type != "train.steps":
            return reply
        arrays, notes = decode_message_content(reply.content)
        shapes = {name: array.shape for name, array in arrays.items()}
        tensors = decode_and_check_tensors(arrays, shapes, "site")
        return Message(
            encode_message_content(*change(tensors, notes)), reply_to=message
        )

    return app


def scale(factor):
    return lambda tensors, notes: ({n: factor * t for n, t in tensors.items()}, notes)


WRONG = {
    "'value' contains NaN or infinite values (258 in total), so": scale(float("nan")),
    "has the type float32 and the shape [1, 3], but must have": lambda t, n: (
        {name: values[:, :3] for name, values in t.items()},
        n,
    ),
    "the answer of the site came too late: it is for segment [0, 0, ": lambda t, n: (
        t,
        {**n, "segment": [0, 0, *n["segment"][2:]]},
    ),
    "must contain the arrays ['value'], but the arrays [] were sent": lambda t, n: (
        {},
        n,
    ),
    "the training metrics that the site sent are not lists": lambda t, n: (
        t,
        {**n, "metrics": 3},
    ),
}


@pytest.mark.parametrize(("reason", "change"), WRONG.items())
def test_what_cannot_be_used_is_refused_and_named_while_the_others_go_on(
    tmp_path, capsys, reason, change
):
    grid = start_sites(tmp_path, 2, south=alter_answers(change))
    coordinate(grid, tmp_path, LINEAR + " constraint=network").run()
    found = list_exchanges(tmp_path)
    assert reason in found[0]["refused"]["south"]
    assert all(set(entry["up"]) == {"north"} for entry in found)
    assert f"refused south: {found[0]['refused']['south']}" in capsys.readouterr().out
    _, state = load_result_of_study(tmp_path / "study")
    alone = train_in_one_place("birm", LINEAR + " constraint=network", "north")
    torch.testing.assert_close(state.params, alone.params, rtol=0, atol=2e-5)


def test_a_study_in_which_nobody_can_be_used_stops_with_the_reason(tmp_path):
    both = alter_answers(scale(float("inf")))
    grid = start_sites(tmp_path, 2, north=both, south=both)
    with pytest.raises(
        ValueError, match=r"in 3 attempts, no site sent .*NaN or infinite"
    ):
        coordinate(grid, tmp_path, LINEAR).run()


CONVEX = "hidden= rate=0.1 optimiser=sgd batch=0 rounds=1 inner=5 rho1=0 epochs=24"


def regressions(tmp_path):
    """Two sites with linear data that disagree, from files of their own."""
    generator, grid = np.random.default_rng(0), Here()
    for number, slope in enumerate((1.0, 3.0)):
        inputs = generator.normal(size=(60, 2)).astype("float32")
        path = tmp_path / f"{NAMES[number]}.npz"
        np.savez(path, X=inputs, y=(inputs @ [slope, -1.0]).astype("float32"))
        settings = f"path={path} task=regression test=none"
        options = {"dataset": "arrays", "settings": settings, "environment": 0}
        grid.add(number + 1, config(tmp_path, number, **options))
    return grid


def distances(tmp_path):
    """How far the study ended from least squares of both sites, and of the first."""
    _, state = load_result_of_study(tmp_path / "study")
    files = [np.load(tmp_path / f"{name}.npz") for name in NAMES[:2]]
    found = []
    for some in (files, files[:1]):
        inputs = np.concatenate([file["X"] for file in some])
        whole = np.concatenate([inputs, np.ones((len(inputs), 1))], 1)
        targets = np.concatenate([file["y"] for file in some])
        best = np.linalg.lstsq(whole, targets, rcond=None)[0]
        found.append(np.linalg.norm(state.params[0].numpy() - best))
    return found


@pytest.mark.integration
def test_a_site_that_drops_out_and_returns_takes_part_again(tmp_path):
    grid, visited = regressions(tmp_path), []
    (_, first), (_, second) = grid.sites.values()

    def app(message, context):
        if message.metadata.message_type == "train.steps":
            visited.append(message)
            if len(visited) == 3:
                del grid.sites[2]
            if len(visited) == 9:  # under another number, as a new process has
                grid.add(9, second.node_config)
        return client.app(message, context)

    grid.add(1, first.node_config, app)
    coordinate(grid, tmp_path, CONVEX).run()
    there = ["south" in entry["up"] for entry in list_exchanges(tmp_path)]
    assert there[0]
    assert not any(there[4:8])
    assert all(there[-12:])
    both, alone = distances(tmp_path)
    assert both < 0.05 < 0.9 < alone


@pytest.mark.integration
def test_a_site_that_is_ten_times_slower_holds_nobody_up_and_still_counts(tmp_path):
    grid, steps, over = regressions(tmp_path), [], threading.Event()

    def quick(message, context):
        steps.append(message)
        return client.app(message, context)

    def slow(message, context):
        """It answers when the other site has answered ten times."""
        begun = len(steps)
        while message.metadata.message_type == "train.steps" and not over.wait(0.002):
            if len(steps) >= begun + 10:
                break
        return client.app(message, context)

    for node, app in ((1, quick), (2, slow)):
        grid.add(node, grid.sites[node][1].node_config, app)
    settings = CONVEX.replace("epochs=24", "epochs=100")
    coordinate(grid, tmp_path, settings, patience=0.05, lifetime=60).run()
    over.set()
    found = list_exchanges(tmp_path)
    often, seldom = (sum(n in e["up"] for e in found) for n in ("north", "south"))
    assert often >= 90
    assert 5 <= seldom <= 12
    assert any(entry["late"] == ["south"] for entry in found)
    both, alone = distances(tmp_path)
    assert both < 0.3 < 0.7 < alone


def kill_after(coordinator, count):
    """Run a coordinator until it has logged so many messages."""
    logged = itertools.count(1)

    def log(text):
        if next(logged) == count:
            raise KeyboardInterrupt

    coordinator.log = coordinator.connection.log = log
    with pytest.raises(KeyboardInterrupt):
        coordinator.run()


@pytest.mark.parametrize("count", [6, 9, 12])
@pytest.mark.integration
def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path, count):
    settings = f"{QUICK} batch=0 rounds=1 inner=3"
    grid = start_sites(tmp_path)
    kill_after(coordinate(grid, tmp_path, settings), count)
    coordinate(grid, tmp_path, settings).run()
    expected = train_in_one_place("birm", settings, "north south")
    _, state = load_result_of_study(tmp_path / "study")
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=2e-5)


def test_a_checkpoint_of_another_study_is_refused(tmp_path):
    grid = start_sites(tmp_path)
    coordinate(grid, tmp_path, LINEAR).run()
    with pytest.raises(
        ValueError,
        match=r"These settings differ: .* Use the saved settings to continue",
    ):
        coordinate(grid, tmp_path, LINEAR + " rho0=3").run()


@pytest.mark.integration
def test_a_study_begun_in_another_folder_takes_nothing_from_one_before(tmp_path):
    settings = f"{QUICK} batch=0 rounds=1 inner=3"
    grid = start_sites(tmp_path)
    coordinate(grid, tmp_path, settings.replace("rate=0.05", "rate=0.2")).run()
    coordinate(grid, tmp_path, settings, folder=str(tmp_path / "anew")).run()
    expected = train_in_one_place("birm", settings, "north south")
    _, state = load_result_of_study(tmp_path / "anew")
    torch.testing.assert_close(state.params, expected.params, rtol=0, atol=2e-5)


@pytest.mark.integration
def test_a_server_that_goes_on_does_not_wait_for_a_site_that_has_gone(tmp_path):
    grid = regressions(tmp_path)
    kill_after(coordinate(grid, tmp_path, CONVEX), 9)
    del grid.sites[2]
    lines = []
    second = coordinate(grid, tmp_path, CONVEX, patience=0.2)
    second.log = second.connection.log = lines.append
    second.run()
    assert "continuing without south" in lines
    assert set(list_exchanges(tmp_path)[-1]["up"]) == {"north"}


@pytest.mark.integration
def test_a_request_is_given_up_after_its_lifetime_and_the_site_asked_anew(tmp_path):
    grid, lost = regressions(tmp_path), []

    def forgetful(message, context):
        """It was stopped with its first request, and answers all later ones."""
        if message.metadata.message_type == "train.steps" and not lost:
            lost.append(message)
            time.sleep(1.5)
        return client.app(message, context)

    def slow(message, context):
        """It takes its time, so that the other site is asked anew before the end."""
        time.sleep(0.1)
        return client.app(message, context)

    grid.add(1, grid.sites[1][1].node_config, slow)
    grid.add(2, grid.sites[2][1].node_config, forgetful)
    coordinate(grid, tmp_path, CONVEX, patience=0.2, lifetime=0.4).run()
    found = list_exchanges(tmp_path)
    given_up = next(n for n, e in enumerate(found) if "south" in e["absent"])
    assert any("south" in entry["up"] for entry in found[given_up:])


def test_a_lifetime_is_ten_times_the_patience_unless_it_is_set(tmp_path):
    assert coordinate(Here(), tmp_path, LINEAR, patience=3).connection.lifetime == 30
    assert coordinate(Here(), tmp_path, LINEAR, lifetime=50).connection.lifetime == 50


def test_a_site_whose_training_diverges_is_named_and_keeps_what_it_had(tmp_path):
    grid = regressions(tmp_path)
    path = tmp_path / "south.npz"
    with np.load(path) as file:
        np.savez(path, X=1e8 * file["X"], y=file["y"])
    coordinate(grid, tmp_path, CONVEX).run()
    found = list_exchanges(tmp_path)
    assert "training diverged at step" in found[-1]["refused"]["south"]
    assert all(set(entry["up"]) == {"north"} for entry in found)
    assert not list((tmp_path / "south").glob("*"))


def test_why_data_cannot_be_read_stays_at_the_site(tmp_path, capsys):
    secret = tmp_path / "patients.npz"
    options = {"dataset": "arrays", "settings": f"path={secret} test=none"}
    grid = start_sites(tmp_path)
    grid.add(2, config(tmp_path, 1, **options))
    coordinate(grid, tmp_path, LINEAR, "north").run()
    text = (tmp_path / "study" / "ledger.jsonl").read_text()
    refused = [json.loads(line)["refused"] for line in text.splitlines()]
    reasons = [options["node 2"] for options in refused if "node 2" in options]
    printed = capsys.readouterr()
    assert ["The reason is in the log of the site" in reason for reason in reasons] == [
        True
    ]
    assert "patients" not in text + printed.out
    assert "patients" in printed.err


def test_what_is_refused_had_left_and_is_counted(tmp_path):
    grid = start_sites(tmp_path, 2, south=alter_answers(scale(float("nan"))))
    coordinate(grid, tmp_path, LINEAR + " constraint=network").run()
    size = 128 + 4 * 258
    assert list_exchanges(tmp_path)[0]["unused"] == {"south": {"value": size}}
    path = tmp_path / "study" / "ledger.jsonl"
    assert count_bytes_sent_by_site(path)["south"] == size * (
        len(list_exchanges(tmp_path)) + 1
    )


def test_what_leaves_a_site_is_counted_and_is_only_what_is_listed(tmp_path):
    settings = f"{QUICK} batch=0 rounds=1 inner=3"
    coordinate(start_sites(tmp_path), tmp_path, settings).run()
    head, features = 6 * 2 + 2, 128 * 6 + 6
    for entry in list_exchanges(tmp_path)[:-1]:
        assert entry["up"]["north"] == {"value": 128 + 4 * head}
        assert set(entry["metrics"]["north"]) == {"risk", "constraint"}
    last = {"value": 128 + 4 * head, "local": 128 + 4 * head}
    assert list_exchanges(tmp_path)[-1]["up"]["north"] == last
    for entry in list_exchanges(tmp_path, "gradient"):
        assert entry["up"] == {
            name: {"gradient": 128 + 4 * features} for name in ("north", "south")
        }
    sums = count_bytes_sent_by_site(tmp_path / "study" / "ledger.jsonl")
    arrays = 5 * (128 + 4 * head) + 4 * (128 + 4 * features)
    assert sums == dict.fromkeys(("north", "south"), arrays + 4 * 2 * 8)


def test_a_second_node_of_the_same_name_is_refused(tmp_path, capsys):
    grid = start_sites(tmp_path)
    grid.add(3, config(tmp_path, 1))
    coordinate(grid, tmp_path, LINEAR).run()
    assert "another site already uses the name 'south'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a b"}, "site: the name 'a b' cannot be used"),
        ({"dataset": "table"}, "use the data set 'arrays'"),
        ({"environment": 5}, "no environment 5. Choose one from 0 to 2"),
    ],
)
def test_a_site_that_is_described_wrongly_says_so(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        client.create_site_from_config(config(tmp_path, 0, **changes), (0,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"learner": "erm"},
            "'erm' cannot be trained at separate sites. Use one of birm, bvirm",
        ),
        ({"stages": "north; north"}, "stages: every stage needs at least one site"),
        (
            {"min_sites": 3},
            "is 3, but the smallest stage has only 2. Use a number",
        ),
        ({"patience": 0}, "Use a positive patience"),
        ({"study": "../x"}, "study: the name '../x' cannot be used"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        coordinate(Here(), tmp_path, "", **changes)


def headed(text):
    """Bytes that begin as an npy file does, with this for its header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_arrays_are_decoded_only_if_they_are_what_is_expected():
    tensor = torch.arange(6.0).view(2, 3)

    def decode(content, shape=(2, 3), dtype="float32"):
        array = Array(dtype, shape, "numpy.ndarray", content)
        return decode_and_check_tensors({"it": array}, {"it": (2, 3)}, "site")["it"]

    whole = encode_tensor_as_npy(tensor)
    buffer = io.BytesIO()
    np.save(buffer, tensor.numpy())
    assert whole == buffer.getvalue()
    torch.testing.assert_close(decode(whole), tensor)
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    fortran = whole.replace(b"False", b"True ")
    double = whole.replace(b"<f4", b"<f8")
    for content in (
        b"",
        b"nonsense",
        buffer.getvalue(),
        headed("{'descr': ("),
        headed(9000 * "-" + "1"),
        headed("{'descr': 'zz', 'fortran_order': False, 'shape': (2, 3), }\n"),
        whole + b"1234",
        whole[:-4],
        fortran,
        double,
        encode_tensor_as_npy(tensor.T),
    ):
        message = f"an npy file of 152 bytes, but the {len(content):,} bytes"
        with pytest.raises(ValueError, match=message):
            decode(content)
    with pytest.raises(
        ValueError, match=r"the type float32 and the shape \[3, 2\], but .* \[2, 3"
    ):
        decode(encode_tensor_as_npy(tensor.T), (3, 2))
    with pytest.raises(
        ValueError, match=r"the type object and the shape \[2, 3\], but .* float32"
    ):
        decode(buffer.getvalue(), dtype="object")


def test_a_tensor_file_holds_all_or_is_refused(tmp_path):
    path = tmp_path / "new" / "state.safetensors"
    assert read_tensor_file(path) is None
    values = torch.arange(6.0).view(2, 3)
    tensors = {"a": values, "same memory": values.T, "empty": values[:, :0]}
    write_tensor_file(path, tensors, {"done": [1, None]})
    read, notes = read_tensor_file(path)
    torch.testing.assert_close(read, tensors)
    assert notes == {"done": [1, None]}
    whole = path.read_bytes()
    for content in (b"", whole[:-1], b"PK" + whole, safetensors.torch.save(read)):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match="damaged, or was not written by a federated"
        ):
            read_tensor_file(path)


def test_every_step_of_a_stage_belongs_to_one_segment():
    for settings in ("rounds=2 inner=3", "rounds=0 inner=2"):
        learner = create(
            "birm", Colored(**DATA).draw_problem((0,)).train[0], parse_texts(settings)
        )
        found = list(split_stage_into_step_ranges(learner.admm, 5, 4, True))
        assert [v.first for v in found[1:]] == [v.last for v in found[:-1]]
        assert [v.is_last for v in found] == [False] * (len(found) - 1) + [True]
        assert (
            sum(
                v.updates_features_before_average or v.updates_features_after_average
                for v in found
            )
            == 20
        )


def test_telemetry_is_off_unless_it_is_asked_for():
    code = "import cirm.federated, os; print(os.environ['FLWR_TELEMETRY_ENABLED'])"
    for chosen, expected in (({}, "0"), ({"FLWR_TELEMETRY_ENABLED": "1"}, "1")):
        plain = {k: v for k, v in os.environ.items() if "TELEMETRY" not in k}
        done = subprocess.run(
            [sys.executable, "-c", code], env={**plain, **chosen}, capture_output=True
        )
        assert done.stdout.decode().strip() == expected
