"""A model's file is one whole model, or it is refused in one sentence."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save as bytes_of

from cirm.learners import DEFAULT_LEARNER, LEARNERS
from cirm.memory import list_tensors
from cirm.model import fit, load, predict, save, update
from cirm.model.file import FORMAT, VERSION, content

RELEASED = Path(__file__).parent / "files"
SPECIAL = {"mer": {"memory": 10, "epochs": 2}, "vclc": {"coreset": 20}}


def model_of(files, quick, key="irmv1"):
    settings = {**quick, **SPECIAL.get(key, {})}
    return fit(files / "clinic-a.csv", "outcome", learner=key, settings=settings)


@pytest.fixture
def saved(files, quick):
    path = files / "m.cirm"
    save(model_of(files, quick), path)
    return path


@pytest.mark.parametrize("key", [key for key in LEARNERS if key != "icp"])
def test_an_update_after_load_is_that_of_an_uninterrupted_run(files, quick, key):
    first = model_of(files, quick, key)
    save(first, files / "m.cirm")
    later = update(load(files / "m.cirm"), files / "clinic-b.csv")
    whole = update(first, files / "clinic-b.csv")
    for a, b in zip(list_tensors(later.state), list_tensors(whole.state), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == b.dtype
    frames = [predict(model, files / "clinic-c.csv") for model in (later, whole)]
    assert frames[0].equals(frames[1])


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
    told = [{**vars(visit), "when": "", "seconds": 0} for visit in first.visits]
    back = [{**vars(visit), "when": "", "seconds": 0} for visit in second.visits]
    assert back == told


def test_the_file_describes_itself_to_any_reader_of_safetensors(saved):
    whole = saved.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    metadata = json.loads(whole[8 : 8 + length])["__metadata__"]
    assert metadata["format"] == FORMAT
    described = json.loads(metadata["model"])
    assert described["plan"]["learner"] == "irmv1"
    assert described["schema"]["target"]["columns"][0]["name"] == "outcome"


@given(st.data())
def test_a_change_of_any_byte_is_refused(tmp_path_factory, data):
    whole = bytearray(WHOLE)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"^model '.*': ") as refusal:
        load(path)
    assert "\n" not in str(refusal.value)


@given(st.integers(0, 100_000))
def test_a_file_that_ends_too_early_is_refused(tmp_path_factory, length):
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    path.write_bytes(WHOLE[: length % len(WHOLE)])
    with pytest.raises(ValueError, match=r"^model '.*': "):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file"),
        (b"a,b\n1,2\n", "got another format"),
        (b"\x80\x04\x95pickle" * 9, "got another format"),
        (struct.pack("<Q", 2**60) + b"{" * 20, "got another format"),
        (struct.pack("<Q", 5000) + b'{"a":1}', "got only its beginning"),
        (struct.pack("<Q", 4) + b"{[[]", "got an unreadable header"),
        (bytes_of({"a": torch.zeros(2)}), "got safetensors of something else"),
        (bytes_of({"a": torch.zeros(2)}, {"format": FORMAT}), "without 'version'"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "m.cirm"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_newer_version_is_refused(saved):
    metadata = {"format": FORMAT, "version": "2", "model": "{}", "sha256": "0" * 64}
    saved.write_bytes(bytes_of({"a": torch.zeros(1)}, metadata))
    with pytest.raises(ValueError, match=r"its version must be at most 1.*got '2'"):
        load(saved)


def test_a_file_that_is_not_there_is_missed(tmp_path):
    with pytest.raises(FileNotFoundError, match="the file must exist; got none"):
        load(tmp_path / "m.cirm")
    with pytest.raises(ValueError, match="it must be a file; got a folder"):
        load(tmp_path)


def resealed(path, change):
    """A file with another description and a checksum that holds."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    metadata = header["__metadata__"]
    described = json.loads(metadata["model"])
    change(described)
    import hashlib

    from safetensors.torch import load as tensors_from

    metadata |= {"model": json.dumps(described), "sha256": "0" * 64}
    whole = bytes_of(tensors_from(whole), metadata)
    mark = hashlib.sha256(whole).hexdigest().encode()
    path.write_bytes(whole.replace(b"0" * 64, mark, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("plan"), "it must be whole; got KeyError"),
        (
            lambda d: d["plan"].update(learner="nope"),
            "no learner 'nope'. Choose",
        ),
        (lambda d: d["plan"]["settings"].update(nope=1), "it must be whole"),
        (lambda d: d["plan"]["settings"].update(epochs=-1), "epochs and rate must be"),
        (lambda d: d["plan"].update(learner="ewc"), "its parts|it must be whole"),
        (lambda d: d["plan"].update(learner="erm"), "it must be whole"),
        (
            lambda d: d["plan"]["network"].update(sizes=[10**9, 10**9, 2]),
            "its parts must fit one another",
        ),
        (
            lambda d: d["plan"]["network"].update(sizes=[7, 9, 2]),
            "its parts must fit one another",
        ),
        (
            lambda d: d["schema"]["treatment"].update(shape=[10**12]),
            "its parts must fit one another",
        ),
        (
            lambda d: d["schema"]["target"]["columns"][0].update(scale=0.0),
            "a column's parts must have sense",
        ),
        (lambda d: d["schema"]["task"].update(classes=["a"]), "classes must be none"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(saved, change, message):
    resealed(saved, change)
    with pytest.raises(ValueError, match=message) as refusal:
        load(saved)
    assert "\n" not in str(refusal.value)


def test_what_a_killed_writer_left_behind_is_removed_in_time(files, quick):
    old, young = (files / f".m.cirm.{digit * 16}" for digit in "ab")
    for path in (old, young):
        path.write_bytes(b"half a model")
    os.utime(old, (0, 0))
    save(model_of(files, quick), files / "m.cirm")
    assert not old.exists()
    assert young.exists()


def test_a_resealed_file_that_says_the_same_is_read(saved):
    resealed(saved, lambda described: None)
    assert load(saved).plan.learner == "irmv1"


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.cirm")), ids=lambda p: p.stem)
def test_models_of_every_released_version_predict_as_they_did(path):
    told = json.loads(path.with_suffix(".json").read_text())
    import pandas as pd

    frame = predict(load(path), pd.DataFrame(told["rows"]))
    assert frame["prediction"].astype(str).tolist() == told["prediction"]
    assert frame["probability"].tolist() == pytest.approx(told["probability"], abs=1e-4)


@pytest.mark.parametrize("learner", ["virmv1", DEFAULT_LEARNER])
def test_there_are_files_of_this_version(learner):
    assert (RELEASED / f"version-{VERSION}-{learner}.cirm").exists()


def _whole():
    import pandas as pd

    x = list(range(40))
    frame = pd.DataFrame({"a": [n % 7 for n in x], "y": [n % 2 for n in x]})
    return content(fit(frame, "y", settings={"hidden": (4,), "epochs": 1}))


WHOLE = _whole()
