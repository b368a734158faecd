"""Folders of images: read in a fixed order, as bytes, and with clear refusals."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cirm.data.open_sources import open_sources_of_user_data
from cirm.data.schema_inference import ReadOptions, infer_schema
from cirm.data.user_data import ImageFolder
from tests.data.sentences import has_remedy


def paint(path, color=(255, 0, 0), size=(4, 4), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **options)


@pytest.fixture
def tree(tmp_path):
    """Two places with red and blue images, and a third one of red ones only."""
    for place in ("a", "b", "c"):
        for name in ("2.png", "10.png"):
            paint(tmp_path / place / "red" / name)
    for place in ("a", "b"):
        paint(tmp_path / place / "blue" / "x.jpg", (0, 0, 255))
    return tmp_path


def pixel(path, channels=3, side=1):
    """The colour of the only environment's first image."""
    problem = ImageFolder(str(path), side, channels, test="none").draw_problem((0,))
    return problem.train[0].take_all(1).x[0, 0, :, 0, 0]


def test_folders_are_environments_and_classes_in_alphabetical_order(tree):
    problem = ImageFolder(str(tree), side=8).draw_problem((0, 1))
    assert [e.name for e in problem.train] == ["a", "b"]
    assert [e.name for e in problem.test] == ["c"]
    first = problem.train[0]
    assert first.task.classes == ("blue", "red")
    assert first.features == (3, 8, 8)
    assert first.targets.tolist() == [[0, 1, 1]] * 2
    assert problem.test[0].targets.tolist() == [[1, 1]] * 2


def test_taken_images_are_numbers_from_zero_to_one_for_each_replica(tree):
    first = ImageFolder(str(tree), side=8).draw_problem((0, 1)).train[0]
    taken = first.take(torch.tensor([[0, 1], [2, 0]]))
    assert taken.x.shape == (2, 2, 3, 8, 8)
    assert taken.y.tolist() == [[0, 1], [1, 0]]
    red = torch.tensor([1.0, 0.0, 0.0])
    assert torch.equal(taken.x[0, 1, :, 3, 5], red)
    assert torch.allclose(taken.x[1, 1, :, 3, 5], red.flip(0), atol=0.02)
    assert torch.equal(first.take_all(2).x[1, 2], taken.x[1, 0])


def test_images_stay_bytes_however_many_seeds_there_are(tree):
    inputs = (
        ImageFolder(str(tree), side=8).draw_problem(tuple(range(9))).train[0].inputs
    )
    assert inputs.shape == (9, 3, 3, 8, 8)
    stored = inputs.store.get_all_inputs()
    assert stored.dtype == np.uint8
    assert stored.shape == (8, 3, 8, 8)


@pytest.mark.parametrize(
    ("mode", "color", "channels", "expected"),
    [
        ("RGB", (255, 0, 51), 3, [1.0, 0.0, 0.2]),
        ("RGB", (255, 255, 255), 1, [1.0]),
        ("RGBA", (255, 0, 51, 0), 3, [1.0, 0.0, 0.2]),
        ("L", 51, 3, [0.2, 0.2, 0.2]),
        ("LA", (51, 255), 1, [0.2]),
        ("1", 1, 1, [1.0]),
        ("P", 0, 3, [0.0, 0.0, 0.0]),
        ("I;16", 51 * 256 + 200, 1, [0.2]),
        ("I;16", 65535, 3, [1.0, 1.0, 1.0]),
    ],
)
def test_every_kind_of_image_becomes_grey_or_coloured(
    tmp_path, mode, color, channels, expected
):
    paint(tmp_path / "a" / "x" / "1.png", color, mode=mode)
    paint(tmp_path / "a" / "y" / "1.png")
    assert pixel(tmp_path, channels).tolist() == pytest.approx(expected)


def test_an_image_is_turned_as_its_camera_noted(tmp_path):
    path = tmp_path / "a" / "x" / "1.png"
    paint(path)
    paint(tmp_path / "a" / "y" / "1.png")
    picture = Image.fromarray(np.array([[255, 0], [255, 0]], np.uint8))
    notes = Image.Exif()
    notes[0x0112] = 3  # upside down
    picture.save(path, exif=notes)
    first = ImageFolder(str(tmp_path), side=2, channels=1).draw_problem((0,)).train[0]
    assert first.take_all(1).x[0, 0, 0].tolist() == [[0, 1], [0, 1]]


def test_links_are_followed_and_hidden_or_other_files_left_out(tree, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    paint(elsewhere / "red" / "1.png")
    (tree / "d").symlink_to(elsewhere, target_is_directory=True)
    (tree / "a" / "red" / "notes.txt").write_text("no image")
    (tree / "a" / "red" / ".2.png").write_text("no image")
    (tree / ".hidden").mkdir()
    (tree / "__MACOSX").mkdir()
    (tree / "readme.md").write_text("no folder")
    problem = ImageFolder(str(tree), test="none").draw_problem((0,))
    assert [(e.name, len(e)) for e in problem.train] == [
        *[("a", 3), ("b", 3), ("c", 2), ("d", 1)]
    ]


def test_it_says_what_it_found_without_reading_images(tree):
    (tree / "a" / "red" / "2.png").write_text("no image")
    assert ImageFolder(str(tree), test="a").describe().splitlines() == [
        "classification, 2 classes: blue, red",
        "inputs: 3 x 32 x 32",
        "train: b (3 examples), c (2 examples)",
        "test: a (3 examples)",
    ]


def test_folders_named_by_numbers_are_classes_for_fit_too(tmp_path):
    for number in range(12):
        paint(tmp_path / str(number) / "1.png", (20 * number, 0, 0))
    schema = infer_schema(open_sources_of_user_data(tmp_path), ReadOptions()).schema
    assert len(schema.task.classes) == 12


def refused(path, message, kind=ValueError, **settings):
    with pytest.raises(kind, match=message) as caught:
        ImageFolder(str(path), **settings).draw_problem((0,))
    assert has_remedy(caught.value)


def test_a_path_that_is_no_folder_is_refused(tree):
    refused(tree / "gone", "there is no folder '.*gone'", FileNotFoundError)
    refused(tree / "a" / "red" / "2.png", "is a file. Set path to a folder")
    refused("", "there is no folder ''", FileNotFoundError)


def test_a_tree_of_another_shape_is_refused(tree, tmp_path_factory):
    refused(
        tmp_path_factory.mktemp("empty"), "the folder has no images. Sort the images"
    )
    refused(tree / "a", "not sorted by environment and class. Put each image")
    (tree / "a" / "green").mkdir()
    refused(tree, r"green'\: the folder contains no images. Add")
    (tree / "a" / "green").rmdir()
    (tree / "d").mkdir()
    refused(tree, r"d'\: the folder contains no images. Add")
    (tree / "d").rmdir()
    paint(tree / "a" / "1.png")
    refused(tree, "the folder has images at 2 different depths")


def test_one_class_alone_is_refused(tmp_path):
    paint(tmp_path / "a" / "red" / "1.png")
    refused(tmp_path, "all images are of the class 'red', but two or more")


def test_an_unknown_environment_to_hold_out_is_refused(tree):
    refused(
        tree,
        "images: there is no environment 'z', .* more of a, b, c",
        test="z",
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"side": 0}, "images: side, .* is 0. Use 1 or more"),
        ({"channels": 2}, "channels is 2. Use 1 for grey or 3"),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ImageFolder(**settings)


@pytest.mark.parametrize("content", [b"", b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_refused_with_its_path(tree, content):
    (tree / "b" / "blue" / "x.jpg").write_bytes(content)
    refused(tree, r"image '.*b/blue/x\.jpg'\: the image cannot be read \(")


def test_an_image_that_was_cut_off_is_refused(tree):
    path = tree / "a" / "red" / "2.png"
    path.write_bytes(path.read_bytes()[:-30])
    refused(tree, r"2\.png'\: the image cannot be read \(")


def test_floating_point_images_are_refused(tree):
    paint(tree / "a" / "red" / "1.tiff", 0.5, mode="F")
    refused(
        tree,
        r"1\.tiff'\: the image has 4 x 4 pixels and the Pillow mode F, .* 8 or 16 bits",
    )


@pytest.mark.parametrize("side", [8_000, 12_000, 50_000])
def test_a_small_file_that_unpacks_to_much_is_refused_unread(tree, side):
    def chunk(name, data):
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    content = b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    )
    content += chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tree / "a" / "red" / "1.png").write_bytes(content)
    refused(tree, r"1\.png'\: (the image has|the image cannot be read) .*pixels")


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    paint(folder / "a" / "y" / "1.png")
    paint(folder / "a" / "x" / "1.png")
    return folder


@given(st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"]), st.data())
def test_damaged_images_are_read_or_refused_in_one_sentence(damaged, format, data):
    file = io.BytesIO()
    Image.new("RGB", (5, 5), (9, 8, 7)).save(file, format)
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    (damaged / "a" / "x" / "1.png").write_bytes(content)
    try:
        problem = ImageFolder(str(damaged), side=4).draw_problem((0,))
    except ValueError as error:
        assert "1.png': the image" in str(error)
        assert has_remedy(error)
    else:
        assert len(problem.train[0]) == 2
