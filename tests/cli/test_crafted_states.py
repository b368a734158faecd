"""Tensors of a learner's state, replaced in turn, are read or refused."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from cirm import adapt, evaluate, fit, load, predict, save, update
from cirm.learners import LEARNERS
from cirm.model.explain import describe_model
from cirm.model.file import encode_model_file
from cirm.model.signature import add_digest_and_signature_to_file

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def make_table(seed, is_value=False):
    rng = np.random.default_rng(seed)
    ill = rng.random(60) < 0.5
    frame = pd.DataFrame(
        {
            "age": (rng.normal(50, 9, 60) + 9 * ill).round(1),
            "sex": rng.choice(["f", "m"], 60),
            "scanner": np.where(ill ^ (rng.random(60) < 0.1 + 0.8 * seed), "a", "b"),
        }
    )
    target = rng.normal(size=60) + ill if is_value else np.where(ill, "yes", "no")
    return frame.assign(ill=target)


def make_columns_model(is_value=False):
    model = fit(make_table(0, is_value), "ill")
    return update(model, make_table(1, is_value))


def make_directions_model():
    settings = {"view": "directions", "members": 2, "epochs": 2}
    return fit(make_table(0), "ill", settings=settings)


def replace_tensors(content, path):
    """Yield the content of a file with each tensor of the state replaced in turn."""
    path.write_bytes(content)
    with safe_open(path, "pt") as file:
        metadata = {**file.metadata(), "sha256": "0" * 64}
    tensors = load_tensors(content)
    for name, tensor in tensors.items():
        if not name.startswith("state."):
            continue
        large = 1e150 if tensor.dtype == torch.float64 else 1e30
        others = [torch.zeros_like(tensor), tensor[:, :0] if tensor.ndim > 1 else 0]
        if tensor.dtype != torch.bool:
            others.append(torch.full_like(tensor, -1))
            whole = 2**40 if not tensor.is_floating_point() else large
            others.append(torch.full_like(tensor, whole))
        if tensor.is_floating_point():
            others.append(tensor * torch.nan)
        for other in others:
            if isinstance(other, torch.Tensor):
                parts = {**tensors, name: other.contiguous()}
                yield (
                    name,
                    add_digest_and_signature_to_file(dump_tensors(parts, metadata)),
                )


@pytest.mark.integration
@pytest.mark.parametrize(
    "make",
    [make_columns_model, lambda: make_columns_model(True)],
    ids=["classes", "regression"],
)
def test_no_tensor_of_a_state_can_cause_a_traceback(cirm, monkeypatch, tmp_path, make):
    monkeypatch.chdir(tmp_path)
    model = make()
    new = make_table(2, not model.task.classes)
    new.to_csv("new.csv", index=False)
    written = ("--out", "out.cirm", "--overwrite")
    commands = {
        "predict": ("new.csv", "--model", "m.cirm"),
        "inspect": ("m.cirm",),
        "evaluate": ("new.csv", "--model", "m.cirm"),
        "adapt": ("new.csv", "--model", "m.cirm", *written),
        "update": ("new.csv", "--model", "m.cirm", *written),
    }
    refused = 0
    for name, content in replace_tensors(encode_model_file(model), Path("m.cirm")):
        Path("m.cirm").write_bytes(content)
        for command, words in commands.items():  # each reads more of the state
            status, out, error = cirm(command, *words)
            assert status in (0, 2), (name, command, error)
            assert not STEERING.search(out + error), (name, command)
            if status == 2:
                assert error.startswith("cirm: ")
                assert error.count("\n") == 1, (name, command, error)
            if command == "predict" and status == 0:
                score = "probability" if model.task.classes else "prediction"
                frame = pd.read_csv("new.csv")
                lines = [line.split(",") for line in out.splitlines()]
                values = [float(row[lines[0].index(score)]) for row in lines[1:]]
                assert len(values) == len(frame)
                assert np.isfinite(values).all(), name
            if status == 2 and command == "predict":
                refused += 1
                break
    assert refused > 20


def make_three_classes(seed):
    frame = make_table(seed)
    return frame.assign(ill=np.where(frame["age"] > 60, "maybe", frame["ill"]))


@pytest.mark.parametrize(
    "make",
    [
        make_columns_model,
        lambda: make_columns_model(True),
        make_directions_model,
        lambda: update(fit(make_three_classes(0), "ill"), make_three_classes(1)),
        lambda: adapt(make_columns_model(), make_table(2)),
        lambda: update(adapt(make_columns_model(), make_table(2)), make_table(3)),
        lambda: fit(make_table(0), "ill", unstable=["scanner"]),
    ],
)
def test_what_the_learner_writes_is_read_and_goes_on(tmp_path, make):
    model = make()
    save(model, tmp_path / "m.cirm")
    read = load(tmp_path / "m.cirm")
    later = make_table(4, not model.task.classes)
    update(read, later)
    assert read.history == model.history


def test_a_state_that_does_not_fit_together_is_refused(tmp_path):
    path = tmp_path / "m.cirm"
    content = encode_model_file(make_columns_model())
    for name, crafted in replace_tensors(content, path):
        if name != "state.noise" or len(load_tensors(crafted)[name][0]):
            continue
        path.write_bytes(crafted)
        with pytest.raises(ValueError, match=r"noise is float64 .* should be"):
            load(path)
        break
    else:
        pytest.fail("no state without noise was made")


def fit_network(key, is_value):
    """A model of a learner after two places, adapted if it can; None if it cannot."""
    model = fit_quickly(make_table(0, is_value), key)
    if model is None:
        return None
    model = update(model, make_table(1, is_value))
    return adapt(model, make_table(2, is_value)) if model.learner.adapts else model


def fit_quickly(frame, key, **options):
    for settings in ({"epochs": 1, "hidden": (4,)}, {}):  # some have no network
        try:
            return fit(frame, "ill", learner=key, settings=settings, **options)
        except ValueError:
            continue
    return None  # it learns only classes, or only numbers


def make_images(path, seed):
    """Write images whose colour contradicts the class more often for a later seed."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 80)
    x = rng.random((80, 3, 6, 6), dtype=np.float32)
    x[:, :, :3] += 0.15 * y[:, None, None, None]
    colour = y ^ (rng.random(80) < (0.1, 0.35, 0.5)[seed])
    x[:, 0] *= colour[:, None, None]
    np.savez(path / f"images-{seed}.npz", X=x, y=y)
    return path / f"images-{seed}.npz"


def list_other_tensors(tensor):
    """Tensors of another shape or type, or with other values."""
    others = {"zeros": torch.zeros_like(tensor), "longer": tensor.unsqueeze(-1)}
    if tensor.dtype != torch.bool:
        others["negative"] = torch.full_like(tensor, -1)
        others["other type"] = tensor.to(
            torch.float32 if tensor.dtype == torch.float64 else torch.float64
        )
    if tensor.is_floating_point():
        others["large"] = torch.full_like(tensor, 1e30)
        others["infinite"] = torch.full_like(tensor, torch.inf)
    if tensor.ndim > 1:
        others["empty"] = tensor[:, :0]
        others["twice"] = torch.cat([tensor, tensor], 1)
        others["half"] = tensor[:, : max(1, tensor.shape[1] // 2)]
        others["cut"] = tensor[..., :-1]
        others["flat"] = tensor.flatten(1)
    return others


def try_other_tensors(model, path, later):
    """Count crafted files that are refused when read; the others work, or say why."""
    content = encode_model_file(model)
    path.write_bytes(content)
    with safe_open(path, "pt") as file:
        metadata = {**file.metadata(), "sha256": "0" * 64}
    tensors = load_tensors(content)
    refused = tried = 0
    for name in [name for name in tensors if name.startswith("state.")]:
        for other in list_other_tensors(tensors[name]).values():
            parts = {**tensors, name: other.contiguous()}
            path.write_bytes(
                add_digest_and_signature_to_file(dump_tensors(parts, metadata))
            )
            tried += 1
            try:
                read = load(path)
                found = predict(read, later)
                score = "probability" if model.task.classes else "prediction"
                assert np.isfinite(found[score].astype(float)).all(), name
                describe_model(read)
                evaluate(read, later)
                update(read, later)
                if read.learner.adapts:
                    adapt(read, later)
            except ValueError as error:  # one line, which ends in what to do
                assert "\n" not in str(error)
                assert str(error).endswith("."), (name, error)
                refused += 1
            except ArithmeticError as error:
                assert "diverged" in str(error), (name, error)
    return tried, refused


@pytest.mark.integration
@pytest.mark.parametrize("is_value", [False, True], ids=["classes", "regression"])
@pytest.mark.parametrize("key", sorted(set(LEARNERS) - {"steady"}))
def test_no_tensor_of_any_learner_can_cause_a_traceback(tmp_path, key, is_value):
    model = fit_network(key, is_value)
    if model is None:
        pytest.skip("the learner does not learn this kind of target")
    later = make_table(3, is_value)
    tried, refused = try_other_tensors(model, tmp_path / "m.cirm", later)
    assert tried > refused > 0


@pytest.mark.integration
def test_no_tensor_of_a_model_of_images_can_cause_a_traceback(tmp_path):
    first, second, later = (make_images(tmp_path, seed) for seed in range(3))
    settings = {"epochs": 1, "members": 2, "hidden": (4,)}
    model = update(fit(first, settings=settings), second)
    tried, refused = try_other_tensors(model, tmp_path / "m.cirm", later)
    assert tried > refused > 100


@pytest.mark.parametrize("key", sorted(LEARNERS))
def test_what_any_learner_writes_is_read(tmp_path, key):
    both = make_table(0).assign(site=["a", "b"] * 30)
    models = [
        fit_quickly(frame, key, environment="site")
        for frame in (both, both.assign(ill=np.linspace(0, 1, 60)))
    ]
    assert any(models)
    for model in filter(None, models):
        save(model, tmp_path / f"{model.task.kind}.cirm")
        read = load(tmp_path / f"{model.task.kind}.cirm")
        assert read.history == model.history
