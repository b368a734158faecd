"""The user's cache of real images.

A data set in it is a folder with four unpacked IDX files, which appears at once and
only after its content was verified, so that a reader sees all of it or nothing, also
while other processes fetch the same.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cirm.data import image_catalog as sources
from cirm.data.image_catalog import Contents, Source


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


def import_folder(source: Source, path: Path) -> Path:
    """The data set's folder in the cache, filled with a folder's four IDX files."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: it must be a folder; got none")
    contents = sources.read(source, path)
    sources.check(source, contents)
    with workspace() as work:
        return install(source, contents, work)


def check(source: Source, target: Path) -> None:
    """Refuse a copy in the cache that is damaged or not all there."""
    try:
        sources.check(source, sources.read(source, target))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"{source.name}: the copy in the cache must be whole; got {error}: remove "
            f"the folder {target} and fetch again"
        ) from None


@contextmanager
def workspace() -> Iterator[Path]:
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


def install(source: Source, contents: Contents, work: Path) -> Path:
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
        if sources.read(source, target) != contents:
            raise ValueError(
                f"{source.name}: the cache must not hold other files of that name; "
                f"got some: remove the folder {target} first"
            ) from None
    return target
