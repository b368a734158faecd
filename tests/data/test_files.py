"""Data sets declare the files of the user that they read."""

from pathlib import Path

import numpy as np
import pytest

from cirm.data import REGISTRY, create_dataset, get_dataset_class
from cirm.data.colored import Colored
from cirm.data.scm import SCM
from cirm.data.user_data import Arrays, ImageFolder, Table


@pytest.mark.parametrize("kind", [Table, Arrays])
def test_tables_and_arrays_declare_the_files_of_their_path(kind):
    assert kind("a.csv, b.csv").list_local_input_files() == (
        Path("a.csv"),
        Path("b.csv"),
    )
    assert kind().list_local_input_files() == ()


def test_a_folder_declares_its_images(tmp_path):
    images = [tmp_path / place / "red" / "1.png" for place in "ab"]
    for image in images:
        image.parent.mkdir(parents=True)
        image.write_bytes(b"")
    (tmp_path / "a" / "red" / "notes.txt").write_text("no image")
    assert ImageFolder(str(tmp_path)).list_local_input_files() == tuple(images)
    assert ImageFolder(str(tmp_path / "none")).list_local_input_files() == ()


def test_coloured_images_declare_the_idx_files_of_a_folder(tmp_path):
    for name in ("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(np.zeros(3, np.uint8).tobytes())
    assert [path.name for path in Colored(str(tmp_path)).list_local_input_files()] == [
        "train-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte",
    ]


@pytest.mark.parametrize("dataset", [Colored(), Colored("mnist"), SCM()])
def test_built_in_and_downloaded_data_sets_declare_no_files(dataset):
    assert dataset.list_local_input_files() == ()


def test_a_data_set_is_created_from_a_key_an_import_path_or_an_instance():
    path = "cirm.data.scm:SCM"
    assert create_dataset("scm", {"dimension": 4}) == SCM(dimension=4)
    assert create_dataset(path, {"dimension": 4}) == SCM(dimension=4)
    own = SCM(examples=3)
    assert create_dataset(own) is own
    message = "settings examples cannot be changed .* Pass them to its constructor"
    with pytest.raises(ValueError, match=message):
        create_dataset(own, {"examples": 3})
    with pytest.raises(ValueError, match=r"no dataset 'nope'\. Choose one of colored"):
        get_dataset_class("nope")


@pytest.mark.parametrize("key", ["colored", "scm", "table", "arrays", "images"])
def test_a_data_set_is_described_by_the_first_line_of_its_class(key):
    assert REGISTRY.describe(key) == get_dataset_class(key).__doc__.partition("\n")[0]
