"""A model's file is one whole model, or it is refused in one sentence."""

import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from cirm import fit, load, predict, save, update
from cirm.learners import LEARNERS, get_learner_class
from cirm.memory import list_state_tensors
from cirm.model.container import FORMAT, VERSION
from cirm.model.file import encode_model_file
from cirm.model.signature import add_digest_and_signature_to_file

RELEASED = Path(__file__).parent / "files"
SPECIAL = {
    "mer": {"memory": 10, "epochs": 2},
    "vclc": {"coreset": 20},
    "boosting": {"iterations": 5},
    "tent": {"epochs": 2},
}


def model_of(files, quick, key="irmv1"):
    settings = {**quick, **SPECIAL.get(key, {})}
    return fit(files / "clinic-a.csv", "outcome", learner=key, settings=settings)


@pytest.fixture
def saved(files, quick):
    path = files / "m.cirm"
    save(model_of(files, quick), path)
    return path


CLASSIFIERS = [
    key for key in LEARNERS if "classification" in get_learner_class(key).tasks
]


@pytest.mark.integration
@pytest.mark.parametrize("key", CLASSIFIERS)
def test_an_update_after_load_is_that_of_an_uninterrupted_run(files, quick, key):
    first = model_of(files, quick, key)
    save(first, files / "m.cirm")
    later = update(load(files / "m.cirm"), files / "clinic-b.csv")
    whole = update(first, files / "clinic-b.csv")
    for a, b in zip(
        list_state_tensors(later.state),
        list_state_tensors(whole.state),
        strict=True,
    ):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    frames = [predict(model, files / "clinic-c.csv") for model in (later, whole)]
    assert frames[0].equals(frames[1])


@pytest.mark.parametrize("target", ["outcome", "age"])
def test_a_place_of_one_row_gives_a_model_that_can_be_loaded(files, clinic, target):
    model = fit(files / "clinic-a.csv", target)
    save(update(model, clinic(1, 0.9, 5)), files / "m.cirm")
    assert len(predict(load(files / "m.cirm"), files / "clinic-b.csv")) > 1


def test_a_model_that_is_not_finite_is_not_written_over_a_good_one(saved, files, quick):
    before = saved.read_bytes()
    model = model_of(files, quick)
    bad = torch.utils._pytree.tree_map(lambda one: one * torch.nan, model.state)
    with pytest.raises(ValueError, match=r"NaN, infinite or too large\. Check"):
        save(replace(model, state=bad), saved)
    assert saved.read_bytes() == before


def test_values_of_a_causal_learner_come_back_too(tmp_path, values, quick):
    model = fit(values(100, 0), "y", learner="icp", settings=quick)
    save(model, tmp_path / "m.cirm")
    later = update(load(tmp_path / "m.cirm"), values(100, 1))
    whole = update(model, values(100, 1))
    assert torch.equal(later.state.moments, whole.state.moments)


def test_everything_but_the_device_comes_back(saved, files, quick):
    first, second = model_of(files, quick), load(saved)
    assert second.schema == first.schema
    assert second.plan == first.plan
    assert second.learner == first.learner
    told = [{**vars(entry), "time": "", "seconds": 0} for entry in first.history]
    back = [{**vars(entry), "time": "", "seconds": 0} for entry in second.history]
    assert back == told


def test_the_file_describes_itself_to_any_reader_of_safetensors(saved):
    whole = saved.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    metadata = json.loads(whole[8 : 8 + length])["__metadata__"]
    assert metadata["format"] == FORMAT
    described = json.loads(metadata["model"])
    assert described["plan"]["learner"] == "irmv1"
    assert described["schema"]["target"]["name"] == "outcome"


@given(st.data())
def test_a_change_of_any_byte_is_refused(tmp_path_factory, data):
    whole = bytearray(WHOLE)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"^model file '.*'") as refusal:
        load(path)
    assert "\n" not in str(refusal.value)


@given(st.integers(0, 100_000))
def test_a_file_that_ends_too_early_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    path.write_bytes(WHOLE[: length % len(WHOLE)])
    with pytest.raises(ValueError, match=r"^model file '.*'"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"a,b\n1,2\n", "another format"),
        (b"\x80\x04\x95pickle" * 9, "another format"),
        (struct.pack("<Q", 2**60) + b"{" * 20, "another format"),
        (
            struct.pack("<Q", 5000) + b'{"a":1}',
            "is incomplete: the end of the file is missing",
        ),
        (struct.pack("<Q", 4) + b"{[[]", "is damaged: its header cannot be read"),
        (dump_tensors({"a": torch.zeros(2)}), "a safetensors file of another program"),
        (
            dump_tensors({"a": torch.zeros(2)}, {"format": FORMAT}),
            "its header lacks 'version'",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "m.cirm"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_newer_version_is_refused(saved):
    metadata = {"format": FORMAT, "version": "5", "model": "{}", "sha256": "0" * 64}
    saved.write_bytes(dump_tensors({"a": torch.zeros(1)}, metadata))
    with pytest.raises(
        ValueError, match=r"version '5', but .* reads only versions 1 to 4"
    ):
        load(saved)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "m.cirm")
    with pytest.raises(ValueError, match="is a folder"):
        load(tmp_path)


def reseal(path, change, tensors=None, bind=True):
    """A file with another description and a checksum that holds."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    metadata = json.loads(whole[8 : 8 + length])["__metadata__"]
    described = json.loads(metadata["model"])
    change(described)
    metadata |= {"model": json.dumps(described), "sha256": "0" * 64}
    parts = load_tensors(whole) | (tensors or {})
    if bind:
        digest = hashlib.sha256(metadata["model"].encode()).digest()
        parts["description"] = torch.tensor([list(digest)], dtype=torch.uint8)
    path.write_bytes(add_digest_and_signature_to_file(dump_tensors(parts, metadata)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("plan"), r"description of the model is invalid \(plan: "),
        (
            lambda d: d["plan"].update(learner="nope"),
            "the learner 'nope', which .* is not installed",
        ),
        (lambda d: d["plan"]["settings"].update(nope=1), "is damaged"),
        (lambda d: d["plan"]["settings"].update(epochs=-1), "epochs must be positive"),
        (lambda d: d["plan"].update(learner="ewc"), "is damaged"),
        (lambda d: d["plan"].update(learner="erm"), "is damaged"),
        (
            lambda d: d["plan"]["network"].update(sizes=[10**9, 10**9, 2]),
            "one prediction would need",
        ),
        (
            lambda d: d["plan"]["network"].update(sizes=[7, 9, 2]),
            "its tensors do not match its description",
        ),
        (
            lambda d: d["schema"]["treatment"].update(shape=[10**12]),
            "shape: does not match the columns",
        ),
        (
            lambda d: d["schema"]["target"].update(scale=0.0),
            "column 'outcome': the scale must be positive",
        ),
        (lambda d: d["schema"]["task"].update(classes=["a"]), "Classification needs"),
    ],
)
def test_an_invalid_description_is_refused(saved, change, message):
    reseal(saved, change)
    with pytest.raises(ValueError, match=message) as refusal:
        load(saved)
    assert "\n" not in str(refusal.value)


def test_leftovers_of_a_killed_writer_are_removed_in_time(files, quick):
    old, young = (files / f".m.cirm.{digit * 16}" for digit in "ab")
    for path in (old, young):
        path.write_bytes(b"half a model")
    os.utime(old, (0, 0))
    save(model_of(files, quick), files / "m.cirm")
    assert not old.exists()
    assert young.exists()


def test_a_file_with_a_new_checksum_and_the_same_description_is_read(saved):
    reseal(saved, lambda described: None)
    assert load(saved).plan.learner == "irmv1"


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.cirm")), ids=lambda p: p.stem)
def test_models_of_every_released_version_predict_as_they_did(path):
    stored = json.loads(path.with_suffix(".json").read_text())
    model = load(path)
    frame = predict(model, pd.DataFrame(stored["rows"]))
    assert frame["prediction"].astype(str).tolist() == stored["prediction"]
    probabilities = pytest.approx(stored["probability"], abs=1e-4)
    assert frame["probability"].tolist() == probabilities
    first, second = model.history
    assert (first.rows, second.rows, second.stage) == (100, 80, 1)
    names = {"accuracy", "calibration_error", "log_loss"}
    for metrics in (first.metrics_after, second.metrics_before):
        assert set(metrics) - {"roc_auc"} == names  # the oldest files have none
    assert len(first.fingerprint) == 16
    assert set(first.importance) == {"category", "date", "flag", "number"}
    assert model.plan.adaptive_epochs == (model.plan.learner == "steady")


def test_there_is_a_file_of_this_version():
    assert (RELEASED / f"version-{VERSION}-virmv1.cirm").exists()


def _whole():
    x = list(range(40))
    frame = pd.DataFrame({"a": [n % 7 for n in x], "y": [n % 2 for n in x]})
    return encode_model_file(fit(frame, "y", settings={"hidden": (4,), "epochs": 1}))


WHOLE = _whole()
