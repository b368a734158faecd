"""The user's own arrays, from NPZ files."""

from __future__ import annotations

import math
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from cirm.data import supplied
from cirm.data.base import Dataset
from cirm.data.supplied import KINDS, Array, TaskName
from cirm.environments import Environment, Problem

INPUTS = ("X", "x", "inputs", "data", "features", "images")
TARGETS = ("y", "Y", "targets", "target", "labels", "label")
ENVIRONMENTS = ("environment", "environments", "env", "envs", "groups", "domains")
CORRUPT = (
    *(ValueError, OSError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(TypeError, SyntaxError, tokenize.TokenError, struct.error),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True)
class Arrays(Dataset):
    """Arrays X [n, ...], y [n] and environment [n] of an NPZ file.

    `path` is a file, or several separated by commas. `inputs`, `targets` and
    `environment` name the arrays; left empty, the usual names are tried. Without an
    environment array each file is one environment, named after the file. Values are
    taken as they are, except that bytes (uint8) are divided by 255. Environments
    come in order of appearance; `test` names those to hold out, separated by commas:
    left empty the last one, "none" for none. Files of more than `gigabytes`, unpacked,
    are refused. Draws are the same for every seed.
    """

    path: str = ""
    inputs: str = ""
    targets: str = ""
    environment: str = ""
    task: TaskName = "auto"
    test: str = ""
    gigabytes: float = 4.0

    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """The environments of the files, [n, *features], shared by all seeds."""
        paths = supplied.files(self.path, "arrays")
        read = [self._read(path) for path in paths]
        wanted = read[0][0].shape[1:]
        for path, (own, *_) in zip(paths, read, strict=True):
            if own.shape[1:] != wanted:
                raise ValueError(
                    f"file {str(path)!r}: inputs must be [n, *{list(wanted)}] as in "
                    f"{str(paths[0])!r}; got {list(own.shape)}"
                )
        inputs, values, names = (
            part[0] if len(read) == 1 else np.concatenate(part)
            for part in zip(*read, strict=True)
        )
        targets, task = supplied.encoded_targets(values, self.task, "arrays: targets")
        x = torch.from_numpy(inputs)
        environments = []
        for name in dict.fromkeys(names.tolist()):
            rows = torch.from_numpy(np.flatnonzero(names == name))
            environments.append(Environment(name, x[rows], targets[rows], task))
        return supplied.problem(environments, self.test, "arrays")

    def files(self) -> tuple[Path, ...]:
        """Return the files that `path` names."""
        return tuple(supplied.split_paths(self.path))

    def describe(self) -> str:
        """The task, and the environments with their examples."""
        return supplied.described_problem(self.draw((0,)), self.task)

    def _read(self, path: Path) -> tuple[Array, Array, Array]:
        """Inputs (float32), targets as they are, and environments as text."""
        where = f"file {str(path)!r}"
        choices = [
            (self.inputs, INPUTS, True),
            (self.targets, TARGETS, True),
            (self.environment, ENVIRONMENTS, False),
        ]
        inputs, targets, names = npz(path, choices, self.gigabytes, where)
        assert inputs is not None and targets is not None
        if names is None:
            names = np.array([path.stem] * len(inputs))
        if inputs.dtype.kind in "US":
            raise ValueError(f"{where}: inputs must be numbers; got text")
        if targets.ndim == 2 and targets.shape[1] == 1:
            targets = targets[:, 0]
        shapes = [inputs.shape, targets.shape, names.shape]
        if inputs.ndim < 2 or any(s != inputs.shape[:1] for s in shapes[1:]):
            raise ValueError(
                f"{where}: inputs must be [n, ...], targets [n] and environments [n]; "
                f"got {', '.join(str(list(shape)) for shape in shapes)}"
            )
        if not len(inputs):
            raise ValueError(f"{where}: there must be examples; got none")
        scale = 255 if inputs.dtype == np.uint8 else 1
        with np.errstate(over="ignore"):  # the environment reports what is infinite
            return inputs.astype(np.float32) / scale, targets, supplied.texts(names)


def npz(
    path: Path,
    choices: Sequence[tuple[str, tuple[str, ...], bool]],
    gigabytes: float,
    where: str,
) -> list[Array | None]:
    """The arrays chosen by name, each by the user or among usual names, or None."""
    try:
        archive = zipfile.ZipFile(path)
    except CORRUPT as error:
        raise ValueError(
            f"{where}: it must be an NPZ archive; got {_first(error)}"
        ) from None
    with archive:
        members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        chosen = [_member(members, *choice, where) for choice in choices]
        size = sum(member.file_size for member in chosen if member)
        if size > gigabytes * 1e9:
            raise ValueError(
                f"{where}: its arrays must take at most {gigabytes:g} gigabytes; "
                f"got {size / 1e9:.3g}"
            )
        return [_array(archive, m, where) if m else None for m in chosen]


def _member(
    members: dict[str, zipfile.ZipInfo],
    name: str,
    usual: tuple[str, ...],
    needed: bool,
    where: str,
) -> zipfile.ZipInfo | None:
    found = [key for key in ((name,) if name else usual) if key in members]
    if found:
        return members[found[0]]
    if name or needed:
        raise ValueError(
            f"{where}: it must hold an array called "
            f"{name or ' or '.join(usual)}; got {', '.join(members) or 'none'}"
        )
    return None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Array:
    """One array, after its header was found to promise no more than there is."""
    where = f"{where}, array {member.filename.removesuffix('.npy')!r}"
    try:
        with archive.open(member) as file:
            major, _ = npy.read_magic(file)
            header = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}
            shape, _, dtype = header.get(major, header[2])(file)
    except CORRUPT as error:
        raise ValueError(f"{where}: it must be readable; got {_first(error)}") from None
    if dtype.kind not in KINDS:
        raise ValueError(f"{where}: it must be numbers or text; got {dtype}")
    if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize > (
        member.file_size
    ):
        raise ValueError(
            f"{where}: its shape must fit its {member.file_size} bytes; "
            f"got {list(shape)} of {dtype}"
        )
    try:
        with archive.open(member) as file:
            array: Array = npy.read_array(file, allow_pickle=False)
    except CORRUPT as error:
        raise ValueError(f"{where}: it must be readable; got {_first(error)}") from None
    if dtype.kind == "U" and array.nbytes:
        points = np.ascontiguousarray(array).view(f"{dtype.byteorder}u4")
        if points.max() > sys.maxunicode:  # numpy itself does not check
            raise ValueError(f"{where}: its text must be Unicode; got {points.max()}")
    return array


def _first(error: BaseException) -> str:
    """The beginning of what an error says."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]
