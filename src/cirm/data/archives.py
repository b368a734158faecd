"""Files taken out of zip archives and tar packages, whatever else these hold."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from pathlib import Path

LARGEST = 2**28  # bytes that are taken out of an archive


def zip_members(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Bytes of the wanted files, plain or .gz, by the last part of their path."""
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = Path(info.filename).name.removesuffix(".gz")
                if name in wanted and info.file_size <= LARGEST:
                    found[name] = archive.read(info)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"it must be a whole zip archive; got {error}") from None
    return found


def tar_members(path: Path, wanted: tuple[str, ...]) -> dict[str, bytes]:
    """Bytes of the wanted files, by the last part of their path."""
    found: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                size += member.size
                if size > LARGEST:
                    raise ValueError(f"it must hold at most {LARGEST} bytes; got more")
                name = Path(member.name).name
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None and name in wanted:
                    found[name] = file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"it must be a whole tar package; got {error}") from None
    return found
