"""`cirm data` through the command line."""

import dataclasses
import struct

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from cirm import cli
from cirm.cli.data import app
from cirm.data import idx
from cirm.data.image_sets import IMAGE_SETS, DownloadableImageSet, get_data_cache_folder
from cirm.paper import example_images

TINY = DownloadableImageSet("tiny", "CC0", "this test", (4, 2), 10, ("",) * 4, side=5)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(folder):
    folder.mkdir()
    for name, shape in zip(
        idx.IDX_PARTS, ((4, 5, 5), (4,), (2, 5, 5), (2,)), strict=True
    ):
        header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
        content = header + bytes(int(np.prod(shape)))
        (folder / name).write_bytes(content)
    return folder


def test_the_list_names_every_data_set_and_the_cache():
    output = call("list").output
    for name in ("digits", *IMAGE_SETS):
        assert name in output
    assert str(get_data_cache_folder()) in output.replace("\n", "")


def test_a_data_set_is_fetched_and_then_listed_with_its_size(tmp_path, monkeypatch):
    installed = str(write(tmp_path / "installed"))
    source = dataclasses.replace(TINY, installed=installed)
    monkeypatch.setitem(IMAGE_SETS, "tiny", source)
    result = call("fetch", "tiny")
    assert result.exit_code == 0
    assert (
        f"tiny: 4 training and 2 test images in {get_data_cache_folder() / 'tiny'}"
        in result.output
    )
    assert "verified by SHA-256, except train-images-idx3-ubyte" in result.output
    line = next(row for row in call("list").output.splitlines() if "tiny" in row)
    assert line.split()[-4:] == ["0", "MB", "4", "2"]


def test_a_data_set_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    places = {
        "gone": str(tmp_path / "nowhere"),
        "tiny": str(write(tmp_path / "installed")),
        "lost": str(tmp_path / "nowhere"),
    }
    for name, place in places.items():
        source = dataclasses.replace(TINY, name=name, installed=place)
        monkeypatch.setitem(IMAGE_SETS, name, source)
    monkeypatch.setattr("sys.argv", ["cirm", "data", "fetch", *places])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out.startswith("tiny: 4 training and 2 test images in")
    for line, name in zip(printed.err.splitlines()[-2:], ("gone", "lost"), strict=True):
        assert line.startswith(f"cirm: {name}: the download failed")
    assert [path.name for path in get_data_cache_folder().iterdir()] == ["tiny"]


def test_a_folder_is_imported(tmp_path, monkeypatch):
    monkeypatch.setitem(IMAGE_SETS, "tiny", TINY)
    result = call("import", "tiny", write(tmp_path / "mine"))
    assert result.exit_code == 0 and (get_data_cache_folder() / "tiny").is_dir()


def test_unknown_names_and_wrong_files_are_one_sentence(tmp_path):
    unknown = call("fetch", "mnist", "minst").exception
    assert isinstance(unknown, ValueError)
    assert str(unknown) == (
        "There is no data set 'minst' to download or import. Choose one of mnist, "
        "fashion-mnist, kmnist, emnist-letters, kmnist-part, emnist-letters-part, "
        "pacs, gas-drift, gas-turbine, brain-age, gusto, breast-cancer, covertype."
    )
    wrong = call("import", "mnist", write(tmp_path / "mine")).exception
    assert isinstance(wrong, ValueError) and "mnist it has [60000, 28, 28]" in str(
        wrong
    )
    assert not (get_data_cache_folder() / "mnist").exists()


@pytest.mark.integration
def test_the_figure_has_both_schemes_with_coloured_figures_and_backgrounds(tmp_path):
    out = tmp_path / "figure.png"
    result = call("show", "--out", out, "--seed", 3)
    assert result.exit_code == 0 and str(out) in result.output
    pixels = np.asarray(Image.open(out).convert("RGB"), float) / 255
    half = pixels.shape[1] // 2
    for color in (example_images.GREEN, example_images.RED):
        near = np.abs(pixels - color).max(-1) < 0.02
        assert near[:, half:].mean() > 2 * near[:, :half].mean() > 0


def test_a_scheme_can_be_chosen_and_gray_has_no_colour(tmp_path):
    out = tmp_path / "gray.png"
    assert call("show", "--scheme", "gray", "--out", out).exit_code == 0
    pixels = np.asarray(Image.open(out).convert("RGB")).astype(int)
    assert np.ptp(pixels, axis=-1).max() == 0 and pixels.min() == 0


def test_the_figure_can_be_of_a_folder_and_of_any_setting(tmp_path):
    folder = write(tmp_path / "mine")
    out = tmp_path / "figure.svg"
    result = call("show", "--source", folder, "--set", "environments=1", "--out", out)
    assert result.exit_code == 0 and out.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--out", "figure.doc"], "ends with one of .png, .pdf, .svg"),
        (["--scheme", "blue"], "is 'blue'. Use one of b01, b11, gray"),
        (
            ["--set", "colour=1"],
            "there is no setting 'colour'. Choose one of source, scheme",
        ),
        (["--source", "mnist"], "cirm data fetch mnist"),
    ],
)
def test_what_cannot_be_shown_is_refused_and_nothing_is_written(
    tmp_path, monkeypatch, arguments, reason
):
    monkeypatch.chdir(tmp_path)
    result = call("show", *arguments)
    assert isinstance(result.exception, ValueError | FileNotFoundError)
    assert reason in str(result.exception) and not list(tmp_path.iterdir())


def test_show_replaces_a_file_only_if_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("show", "--scheme", "gray").exit_code == 0
    picture = (tmp_path / "coloured.png").read_bytes()
    result = call("show", "--scheme", "b01")
    assert result.exit_code
    assert "'coloured.png' already exists. Use --overwrite" in str(result.exception)
    assert (tmp_path / "coloured.png").read_bytes() == picture
    assert call("show", "--scheme", "b01", "--overwrite").exit_code == 0
    assert (tmp_path / "coloured.png").read_bytes() != picture


def test_what_both_channels_share_is_shown_white():
    inputs = np.zeros((1, 2, 1, 4), np.float32)
    inputs[0, 0, 0], inputs[0, 1, 0] = [0, 1, 0, 1], [0, 0, 1, 1]
    shown = example_images.convert_inputs_to_rgb(inputs)[0, 0]
    np.testing.assert_allclose(
        shown, [(0, 0, 0), example_images.GREEN, example_images.RED, (1, 1, 1)]
    )
