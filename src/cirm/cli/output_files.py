"""Files that a command writes: checked before any work, and written all or none.

One rule holds for all commands: an input is never replaced, and another existing file
only with --overwrite.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cirm.model.model import Model

LEAST_FREE = 2**20  # bytes; a model of a table with its page takes about as much


def check_output_paths_before_work(
    outputs: Mapping[str, Path | None],
    inputs: Sequence[Path] = (),
    overwrite: bool = False,
    advice: str = "choose another name",
) -> None:
    """Raise an error before any work if a file cannot or must not be written.

    `outputs` are files by the option that names them; `advice` says what to do with the
    first one, if it exists, instead of replacing it.
    """
    files = {option: path for option, path in outputs.items() if path is not None}
    known = dict.fromkeys(inputs, "is an input of this command")
    for option, path in files.items():
        if str(path) == "-":
            raise ValueError(
                f"{option}: - stands for standard output, which is not possible here. "
                "Give the name of a file."
            )
        if option == "--report" and path.suffix.lower() not in (".html", ".htm"):
            raise ValueError(
                f"--report: the page is written as HTML, but the name {str(path)!r} "
                "does not end in .html. Give a name that ends in .html."
            )
        check_file_can_be_written(path, option)
        for other, use in known.items():
            if _are_paths_of_same_file(path, other):
                raise ValueError(
                    f"{option}: the file {str(path)!r} {use}. Choose another name."
                )
        if path.exists() and not overwrite:
            raise ValueError(
                f"{option}: the file {str(path)!r} already exists. Use --overwrite to "
                f"replace it, or {advice}."
            )
        known[path] = f"is also named by {option}"
        advice = "choose another name"


def check_file_can_be_written(path: Path, option: str) -> None:
    """Raise an error before any work if a file could not be written."""
    if path.is_dir():
        raise ValueError(
            f"{option}: {str(path)!r} is a folder. Give the name of a file in that "
            "folder."
        )
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise ValueError(
            f"{option}: the folder {str(folder)!r} does not exist. Create the folder "
            "first, or choose another one."
        )
    # Permissions alone do not tell, neither for root nor on a read-only disk.
    trial = folder / f".{secrets.token_hex(8)}"
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"{option}: no file can be written to the folder {str(folder)!r}: "
            f"{reason}. Choose another folder."
        ) from None
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE:
        raise ValueError(
            f"{option}: the disk that holds the folder {str(folder)!r} has only "
            f"{free:,} bytes left. Free some space, or choose another folder."
        )


def check_signed_model_has_key(path: Path, key: bytes) -> None:
    """Raise an error if a signed model would be replaced by one that is not."""
    from cirm.model.container import is_model_file_signed

    if is_model_file_signed(path) and not key:
        raise ValueError(
            f"model file {str(path)!r} is signed, but the file that replaces it would "
            "not be signed. Give the key of the signed file with --key."
        )


def check_model_file_is_unchanged(path: Path, checksum: str) -> None:
    """Raise an error if a model is no longer the one that was read."""
    from cirm.model.container import read_model_checksum

    if read_model_checksum(path) != checksum:
        raise ValueError(
            f"model {str(path)!r}: another command changed the file while this one was "
            "running, so nothing was written. Run this command again."
        )


def write_model_file_and_page(
    model: Model, path: Path, report: Path | None, key: bytes = b"", **details: str
) -> dict[str, Any]:
    """Write a model, signed if there is a key, and its page; return its description."""
    from cirm.cli.output import format_command_line_as_typed
    from cirm.model.explain import describe_model
    from cirm.model.file import encode_model_file, remove_leftover_temporary_files
    from cirm.records import write_files_atomically
    from cirm.report.model_page import build_model_page

    content = {"model": str(path), **details, **describe_model(model)}
    files = {}
    if report is not None:
        files[report] = build_model_page(
            content, format_command_line_as_typed()
        ).encode()
    # The model comes last: if it has changed, everything else is written.
    write_files_atomically({**files, path: encode_model_file(model, key)})
    remove_leftover_temporary_files(path)
    return content


def _are_paths_of_same_file(first: Path, second: Path) -> bool:
    if first.exists() and second.exists():
        return first.samefile(second)
    return os.path.abspath(first) == os.path.abspath(second)
