"""PACS from a folder: domains as environments, images resized, decoded once."""

import numpy as np
import pytest
import torch
from PIL import Image

from cirm.data.image_sets import get_data_cache_folder
from cirm.data.pacs import CLASSES, DOMAINS, Pacs
from cirm.data.public import import_public_dataset


def write_pictures(folder, domains=DOMAINS, each=2):
    """Pictures whose grey level says which domain, class and number they have."""
    for d, domain in enumerate(domains):
        for c, name in enumerate(CLASSES):
            (folder / domain / name).mkdir(parents=True)
            for number in range(each):
                level = 40 * d + 5 * c + number
                picture = Image.new("RGB", (12, 9), (level,) * 3)
                picture.save(folder / domain / name / f"pic_{number}.png")
    return folder


def test_a_domain_is_an_environment_and_the_sketches_are_unseen(tmp_path):
    problem = Pacs(path=str(write_pictures(tmp_path)), side=6).draw_problem((0, 1))
    assert [e.name for e in problem.train] == ["photo", "art_painting", "cartoon"]
    assert [e.name for e in problem.test] == ["sketch"]
    assert problem.train[0].features == (3, 6, 6)
    assert problem.train[0].task.classes == CLASSES
    examples = problem.train[1].take_all(2)
    assert examples.x.shape == (2, 14, 3, 6, 6)
    levels = (examples.x[0, :, 0, 0, 0] * 255).round().long()
    assert levels.tolist() == [40 + 5 * c + n for c in range(7) for n in range(2)]
    assert examples.y[0].tolist() == [c for c in range(7) for _ in range(2)]


def test_domains_can_arrive_in_any_order_and_any_can_be_unseen(tmp_path):
    folder = str(write_pictures(tmp_path))
    chosen = Pacs(path=folder, train=("sketch", "cartoon"), test="photo", side=4)
    problem = chosen.draw_problem((0,))
    assert [e.name for e in problem.train] == ["sketch", "cartoon"]
    assert [e.name for e in problem.test] == ["photo"]
    few = Pacs(path=folder, examples=5, side=4).draw_problem((0, 1)).train[0]
    assert few.targets.shape == (2, 5)
    grey = Pacs(path=folder, channels=1, side=4).draw_problem((0,)).train[0]
    assert grey.features == (1, 4, 4)


@pytest.mark.parametrize("root", ["", "kfold", "PACS/kfold"])
def test_the_domains_are_found_where_archives_keep_them(tmp_path, root):
    write_pictures(tmp_path / "mine" / root, each=1)
    home, rows = import_public_dataset("pacs", tmp_path / "mine")
    assert home == get_data_cache_folder() / "pacs"
    assert rows == dict.fromkeys(DOMAINS, 7)
    assert (home / "photo" / "dog" / "pic_0.png").is_file()


def test_cached_images_are_decoded_once_for_each_size(tmp_path):
    home, _ = import_public_dataset("pacs", write_pictures(tmp_path / "mine"))
    first = Pacs(side=4).draw_problem((0,)).train[0].take_all(1).x
    for file in (home / "photo").rglob("*.png"):
        file.write_bytes(b"damaged")
    again = Pacs(side=4).draw_problem((0,)).train[0].take_all(1).x
    torch.testing.assert_close(first, again)
    with pytest.raises(ValueError, match="the image cannot be read"):
        Pacs(side=5).draw_problem((0,))
    assert len(Pacs().list_local_input_files()) == 4 * 7 * 2  # none of the decoded ones


def test_a_part_of_the_domains_can_be_imported(tmp_path):
    folder = write_pictures(tmp_path / "mine", domains=("photo", "cartoon"))
    _, rows = import_public_dataset("pacs", folder)
    assert rows == {"photo": 14, "cartoon": 14}
    assert [e.name for e in Pacs(side=4).draw_problem((0,)).test] == ["cartoon"]


def test_folders_without_domains_classes_or_readable_images_are_refused(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="none of the folders photo, art_paint"):
        import_public_dataset("pacs", tmp_path / "none")
    (tmp_path / "empty" / "photo" / "dog").mkdir(parents=True)
    with pytest.raises(
        ValueError, match="this folder contains no images in folders named dog"
    ):
        import_public_dataset("pacs", tmp_path / "empty")
    folder = write_pictures(tmp_path / "bad", domains=("photo",))
    (folder / "photo" / "dog" / "pic_0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"pic_0.png.*the image cannot be read"):
        import_public_dataset("pacs", folder)
    assert not list(get_data_cache_folder().iterdir())


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match=r"side is 0\. Use 1 or more"):
        Pacs(side=0)
    with pytest.raises(ValueError, match=r"channels is 2\. Use 1 or 3"):
        Pacs(channels=2)


def test_decoded_images_keep_every_byte(tmp_path):
    home, _ = import_public_dataset("pacs", write_pictures(tmp_path / "mine"))
    Pacs(side=4).draw_problem((0,))
    stored = np.load(home / ".pixels" / "photo-4-3.npy")
    assert stored.dtype == np.uint8 and stored.shape == (14, 3, 4, 4)


def count_bright_pixels(images):
    """An encoder of two features."""
    return torch.stack([images.mean((1, 2, 3)), images.amax((1, 2, 3))], 1)


def test_an_encoder_turns_the_images_into_features(tmp_path):
    folder = str(write_pictures(tmp_path))
    path = f"{__name__}:count_bright_pixels"
    dataset = Pacs(path=folder, encoder=path, side=4)
    shares = []
    dataset.fill_feature_cache(lambda what, share: shares.append(share))
    assert shares[-1] == 1 and list(dataset.list_setting_checksums()) == ["encoder"]
    environment = dataset.draw_problem((0,)).train[0]
    assert environment.features == (2,)
    pixels = Pacs(path=folder, side=4).draw_problem((0,)).train[0].take_all(1).x
    torch.testing.assert_close(
        environment.take_all(1).x[0, :, 0], pixels[0].mean((1, 2, 3))
    )
