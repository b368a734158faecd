"""A model file from anywhere is refused in one sentence, or means what it says.

Every field of the description is replaced in turn. Whoever can also write the digests
anew (`bind`) may change what a model predicts, which only a signature shows, but no
file may end in a traceback, steer the terminal or exhaust the machine.
"""

import copy
import hashlib
import json
import re
import struct
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors

from cirm import fit, load, save
from cirm.model.file import encode_model_file
from cirm.model.signature import add_digest_and_signature_to_file

ESCAPE = "\x1b[2J\x07\r\u202e"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
KEY = b"0123456789abcdef0123"


def make_table(seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 9, 40).round(1),
            "sex": ["f", "m"] * 20,
            "ill": np.where(rng.random(40) < 0.5, "no", "yes"),
        }
    )


SETTINGS = {"epochs": 2, "hidden": (4,)}
MODEL = fit(make_table(), "ill", learner="erm", settings=SETTINGS)
CONTENT = encode_model_file(MODEL)
LENGTH = struct.unpack("<Q", CONTENT[:8])[0]
METADATA = json.loads(CONTENT[8 : 8 + LENGTH])["__metadata__"]
DESCRIPTION = json.loads(METADATA["model"])


def craft(description=None, tensors=None, bind=True, text=None, **metadata):
    """A file with parts replaced, and a checksum that holds."""
    text = text or json.dumps(DESCRIPTION if description is None else description)
    parts = load_tensors(CONTENT) | (tensors or {})
    if bind:
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        parts["description"] = torch.tensor([list(digest)], dtype=torch.uint8)
    return add_digest_and_signature_to_file(
        dump_tensors(parts, {**METADATA, "model": text, "sha256": "0" * 64, **metadata})
    )


def list_places(part, path=()):
    """Yield the path of each value in nested lists and dictionaries."""
    items = part.items() if isinstance(part, dict) else enumerate(part)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from list_places(value, (*path, key))


def replace_at(path, new):
    """The description with one value replaced, or removed if `new` is ..."""
    whole = copy.deepcopy(DESCRIPTION)
    part = whole
    for key in path[:-1]:
        part = part[key]
    if new is ...:
        del part[path[-1]]
    else:
        old = part[path[-1]]
        part[path[-1]] = old + ESCAPE if new == "+" and isinstance(old, str) else new
    return whole


INSPECT = ["inspect", "m.cirm"]
PREDICT = ["predict", "new.csv", "--model", "m.cirm"]
PLACES = list(list_places(DESCRIPTION))
REPLACEMENTS = [..., None, "text", -1, 10**30, 1e308, True, [], {}, [[[]]], "+"]
CRAFTED = {
    "a tensor of NaN": craft(
        tensors={
            n: t * torch.nan
            for n, t in load_tensors(CONTENT).items()
            if t.is_floating_point()
        }
    ),
    "infinite weights": craft(
        tensors={
            n: t / 0 for n, t in load_tensors(CONTENT).items() if t.is_floating_point()
        }
    ),
    "a tensor more": craft(tensors={"more": torch.zeros(1, 3)}),
    "a tensor of another type": craft(
        tensors={n: t.to(torch.int64) for n, t in load_tensors(CONTENT).items()}
    ),
    "a tensor without axes": craft(
        tensors={n: torch.tensor(1.0) for n in load_tensors(CONTENT)}
    ),
    "no description": craft(text="null"),
    "a list as description": craft(text="[]"),
    "broken JSON": craft(text="{"),
    "NaN in JSON": craft(text=json.dumps({**DESCRIPTION, "created": float("nan")})),
    "deep nesting": craft(text="[" * 100_000),
    "a lone surrogate": craft(text=json.dumps({**DESCRIPTION, "created": "\ud800"})),
    "a version of letters": craft(version="three"),
    "a huge version": craft(version="9" * 5000),
    "a version with control characters": craft(version=ESCAPE),
    "an empty file": b"",
    "eight bytes": CONTENT[:8],
    "half of it": CONTENT[: len(CONTENT) // 2],
    "all but a byte": CONTENT[:-1],
}


@pytest.fixture
def hold(cirm, monkeypatch, tmp_path):
    """Holds that commands on a file end well, or with status 2 and one sentence."""
    monkeypatch.chdir(tmp_path)
    make_table(1).to_csv("new.csv", index=False)

    def run(content, commands=(INSPECT, PREDICT)):
        Path("m.cirm").write_bytes(content)
        results = []
        for words in commands:
            status, out, error = cirm(*words)
            assert status in (0, 2)
            assert not STEERING.search(out + error)
            if status == 2:
                assert error.startswith("cirm: ")
                assert error.count("\n") == 1
                assert "Traceback" not in error
            results.append((status, out))
        return results

    return run


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused_in_one_sentence(hold, name):
    assert [status for status, _ in hold(CRAFTED[name])] == [2, 2]


def test_there_are_many_crafted_files():
    assert len(PLACES) * len(REPLACEMENTS) + len(CRAFTED) > 760


@pytest.mark.integration
@pytest.mark.parametrize("new", REPLACEMENTS, ids=str)
def test_no_field_can_cause_more_than_one_sentence(hold, new):
    for path in PLACES:
        commands = [INSPECT] if path[0] == "history" else [INSPECT, PREDICT]
        hold(craft(replace_at(path, new)), commands)


@pytest.mark.integration
def test_every_edit_of_the_description_is_noticed(tmp_path):
    path = tmp_path / "m.cirm"
    for place in PLACES:
        for new in REPLACEMENTS:
            description = replace_at(place, new)
            if json.dumps(description) == json.dumps(DESCRIPTION):
                continue
            path.write_bytes(craft(description, bind=False))
            with pytest.raises(ValueError, match=r"^model file '.*'"):
                load(path)


@pytest.mark.parametrize("bind", [False, True])
def test_swapped_classes_do_not_flip_labels(hold, bind):
    swapped = copy.deepcopy(DESCRIPTION)
    swapped["schema"]["task"]["classes"].reverse()
    assert [status for status, _ in hold(craft(swapped, bind=bind))] == [2, 2]
    swapped["schema"]["target"]["categories"].reverse()
    statuses = [status for status, _ in hold(craft(swapped, bind=bind))]
    assert statuses == ([0, 0] if bind else [2, 2])  # only a signature shows the first


def test_a_signature_shows_what_digests_cannot(hold):
    Path("key").write_bytes(KEY + b"\n")
    Path("other").write_bytes(KEY[::-1])
    commands = [
        ["inspect", "m.cirm", "--key", "key"],
        ["predict", "new.csv", "--model", "m.cirm", "--key", "key"],
        ["evaluate", "new.csv", "--model", "m.cirm", "--key", "key"],
        ["update", "new.csv", "--model", "m.cirm", "--key", "key"],
    ]
    signed = encode_model_file(MODEL, KEY)
    assert [status for status, _ in hold(signed, commands)] == [0] * 4
    assert load("m.cirm", key=KEY).stages == 2  # the updated file is signed, too
    other = [[*words[:-1], "other"] for words in commands]
    assert [status for status, _ in hold(signed, other)] == [2] * 4
    unsigned = hold(CONTENT, commands)
    assert [status for status, _ in unsigned] == [2] * 4
    parts = {n: -t for n, t in load_tensors(CONTENT).items() if t.is_floating_point()}
    assert [status for status, _ in hold(craft(tensors=parts), commands)] == [2] * 4
    forged = craft(tensors=parts, hmac="0" * 64)
    assert [status for status, _ in hold(forged, commands)] == [2] * 4


def test_a_signed_file_is_not_replaced_by_one_that_is_not(cirm, hold):
    signed = encode_model_file(MODEL, KEY)
    update = ["update", "new.csv", "--model", "m.cirm"]
    assert hold(signed, [update])[0][0] == 2
    assert Path("m.cirm").read_bytes() == signed


def test_fit_and_adapt_sign(cirm, hold):
    Path("key").write_bytes(KEY)
    words = ("--model", "n.cirm", "--key", "key")
    assert cirm("fit", "new.csv", "--target", "ill", *words)[0] == 0
    assert cirm("adapt", "new.csv", "--out", "o.cirm", *words)[0] == 0
    for name in ("n.cirm", "o.cirm"):
        assert load(name, key=KEY).task.classes == ("no", "yes")
        with pytest.raises(ValueError, match="was not signed with the given key"):
            load(name, key=KEY[::-1])


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000])
def test_a_key_that_is_none_is_refused(cirm, hold, content):
    Path("key").write_bytes(content)
    Path("m.cirm").write_bytes(CONTENT)
    status, _, error = cirm("inspect", "m.cirm", "--key", "key")
    assert status == 2
    assert "must contain a secret of 16 to 4,096 bytes" in error
    with pytest.raises(ValueError, match=r"The key has 3 bytes"):
        save(MODEL, "n.cirm", key=b"abc")


@given(st.binary(max_size=300), st.integers(0, len(CONTENT)), st.integers(0, 300))
def test_bytes_from_anywhere_are_refused_in_one_sentence(
    tmp_path_factory, patch, start, length
):
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    content = CONTENT[:start] + patch + CONTENT[start + length :]
    for whole in (content, content[:8] + patch, patch):
        if whole == CONTENT:
            continue
        path.write_bytes(whole)
        with pytest.raises(ValueError, match=r"^model file '.*'") as refusal:
            load(path)
        assert "\n" not in str(refusal.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text(), part),
    max_leaves=5,
)


@given(st.sampled_from(PLACES), JSON)
def test_any_value_in_any_field_is_refused_or_read(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("m") / "m.cirm"
    path.write_bytes(craft(replace_at(place, value)))
    try:
        load(path)
    except ValueError as error:
        assert str(error).startswith("model file")
