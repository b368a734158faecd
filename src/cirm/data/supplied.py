"""What data supplied by the user have in common: a table, arrays or images.

These are the files a setting names, targets and their task, environments to hold
out, and a description.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cirm.environments import Environment, Problem, Task

Array = NDArray[Any]
TaskName = Literal["auto", "classification", "regression"]
MOST_CLASSES = 10  # whole numbers with more different values are taken for quantities
KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}
KINDS |= {"U": "text", "S": "text"}


def files(path: str, where: str) -> list[Path]:
    """The files that a setting names: one, or several separated by commas."""
    found = split_paths(path)
    if not found:
        raise ValueError(f"{where}: path must name one or more files; got {path!r}")
    for file in found:
        if not os.path.exists(file):
            raise FileNotFoundError(f"{where}: path must exist; got {str(file)!r}")
        if file.is_dir():
            raise ValueError(f"{where}: path must be a file; got folder {str(file)!r}")
    return found


def split_paths(path: str) -> list[Path]:
    """Return the paths of a setting: one, or several separated by commas."""
    parts = [path] if os.path.isfile(path) else path.split(",")
    return [Path(part.strip()) for part in parts if part.strip()]


def texts(values: Array) -> Array:
    """Values as text: whole numbers without a point, bytes decoded."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f" and (np.mod(values, 1) == 0).all():
        values = values.astype(np.int64)
    return values.astype(str)


def encoded_targets(values: Array, task: TaskName, where: str) -> tuple[Tensor, Task]:
    """Targets [n] and their task, which is detected if it is "auto".

    Text, booleans and at most ten different whole numbers are classes, other numbers
    are values. Classes are in alphabetical or numerical order.
    """
    numeric = values.dtype.kind in "iuf"
    if numeric and not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        raise ValueError(
            f"{where} must be finite; got {len(bad)} missing or infinite values, "
            f"the first at position {bad[0]}"
        )
    if task == "regression" and not numeric:
        raise ValueError(
            f"{where} must be numbers for regression; got {KINDS[values.dtype.kind]}"
        )
    if task == "regression" or (task == "auto" and _quantity(values)):
        with np.errstate(over="ignore"):  # the environment reports what is infinite
            return torch.from_numpy(values.astype(np.float32)), Task.regression()
    if numeric and (np.mod(values, 1) != 0).any():
        fraction = values[np.mod(values, 1) != 0][0]
        raise ValueError(
            f"{where} must be whole numbers or text for classification; got {fraction}"
        )
    classes, indices = np.unique(values, return_inverse=True)
    names = texts(classes).tolist()
    if len(names) < 2:
        raise ValueError(
            f"{where} must have two or more classes; got only {names[0]!r} in all "
            f"{len(values)} examples"
        )
    return torch.from_numpy(indices.astype(np.int64)), Task(tuple(names))


def held_out(names: Sequence[str], test: str, where: str) -> tuple[str, ...]:
    """The unseen environments: those named in `test`, else the last of several."""
    if test == "none" or (not test and len(names) == 1):
        return ()
    if not test:
        return (names[-1],)
    chosen = [test] if test in names else [part.strip() for part in test.split(",")]
    for name in chosen:
        if name not in names:
            raise ValueError(
                f"{where}: test must be none or environments among "
                f"{', '.join(names)}; got {name!r}"
            )
    if len(set(chosen)) == len(names):
        raise ValueError(
            f"{where}: test must leave an environment to learn from; got {test!r}"
        )
    return tuple(dict.fromkeys(chosen))


def problem(environments: Sequence[Environment], test: str, where: str) -> Problem:
    """The problem of these environments, some of which are held out."""
    unseen = held_out([e.name for e in environments], test, where)
    return Problem(
        train=tuple(e for e in environments if e.name not in unseen),
        test=tuple(e for e in environments if e.name in unseen),
    )


def described(
    task: Task,
    features: tuple[int, ...],
    counts: Mapping[str, int],
    unseen: Collection[str],
    note: str = "",
) -> str:
    """Lines for the user: the task, the inputs, and the environments' examples."""
    lines = [task.kind + note]
    if task.classes:
        more = ", ..." if len(task.classes) > MOST_CLASSES else ""
        listed = ", ".join(task.classes[:MOST_CLASSES]) + more
        lines[0] += f", {len(task.classes)} classes: {listed}"
    lines.append(f"inputs: {' x '.join(map(str, features))}")
    sizes = {name: f"{name} ({count} examples)" for name, count in counts.items()}
    for what, held in (("train", False), ("unseen", True)):
        group = [text for name, text in sizes.items() if (name in unseen) == held]
        lines.append(f"{what}: {', '.join(group) or 'none'}")
    return "\n".join(lines)


def described_problem(problem: Problem, task: TaskName) -> str:
    """The description of a problem, and whether its task was detected."""
    environments = [*problem.train, *problem.test]
    return described(
        environments[0].task,
        environments[0].features,
        {e.name: len(e) for e in environments},
        [e.name for e in problem.test],
        " (detected)" if task == "auto" else "",
    )


def _quantity(values: Array) -> bool:
    """Whether numbers look like a quantity rather than like the numbers of classes."""
    if values.dtype.kind not in "iuf":
        return False
    whole = bool((np.mod(values, 1) == 0).all())
    return not whole or len(np.unique(values)) > MOST_CLASSES
