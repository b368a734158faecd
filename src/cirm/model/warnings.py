"""What a user should be told of the data before they are trusted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirm.data.columns import Column, Encoding
from cirm.data.rows import SchemaDraft
from cirm.data.schema import Schema

FEW = 20  # rows with which nothing is said of leaks or units
UNIT = 10.0  # a spread so many times another is taken for another unit
OFTEN = 0.05  # of the rows that must have a new category to be worth a word
FAR = 10.0  # deviations from the first mean that are worth a word


def leaks(survey: SchemaDraft) -> list[str]:
    """Warnings of columns that alone tell the target in every row."""
    encoding, classes = survey.schema.treatment.encoding, survey.schema.task.classes
    if encoding is None or len(survey.sample) < FEW:
        return []
    if classes and len(survey.targets.unique()) < 2:
        return []
    found = []
    for column in encoding.columns:
        if column.features:
            own = column.encode(survey.sample[column.name])
            if _tells(own, survey.targets.numpy(), bool(classes)):
                found.append(column.name)
    return [
        f"column {name!r} alone tells the target in every row of the first "
        f"environment; if it is made from the target, leave it out (--ignore {name})"
        for name in found
    ]


def _tells(features: np.ndarray, targets: np.ndarray, classes: bool) -> bool:
    """Whether features [n, k] of one column determine the targets [n]."""
    if not classes:
        spread = features.std(0)
        if (spread == 0).all() or targets.std() == 0:
            return False
        own = features[:, spread.argmax()]
        return bool(abs(np.corrcoef(own, targets)[0, 1]) > 0.99999)
    if features.shape[1] > 1:  # a category, or a number with gaps that are marked
        codes = pd.MultiIndex.from_arrays(list(features.T)).factorize()[0]
        groups = pd.Series(targets).groupby(codes)
        return bool(len(groups) <= len(targets) / 5 and (groups.nunique() == 1).all())
    # Along the sorted column, each class must be in one piece.
    order = np.lexsort((targets, features[:, 0]))
    changes = int((np.diff(targets[order]) != 0).sum())
    return changes == len(np.unique(targets)) - 1 and _apart(features[:, 0], targets)


def _apart(values: np.ndarray, targets: np.ndarray) -> bool:
    """Whether no value occurs with two targets."""
    return bool((pd.Series(targets).groupby(values).nunique() == 1).all())


def units(schema: Schema, inputs: Tensor) -> list[str]:
    """Columns of an environment's inputs [n, d] that look like another unit.

    Numbers are in deviations of the first environment, so another unit shows as a
    spread far from one.
    """
    encoding = schema.treatment.encoding
    if encoding is None or len(inputs) < FEW:
        return []
    found = (odd(column, own) for column, own in numbers(encoding, inputs))
    return [text for text in found if text]


def numbers(encoding: Encoding, inputs: Tensor) -> list[tuple[Column, Tensor]]:
    """The columns of numbers and their scaled values [n]; filled gaps are left out."""
    found, start = [], 0
    for column in encoding.columns:
        if column.kind == "number":
            own = inputs[:, start].double()
            filled = torch.tensor((column.fill - column.centre) / column.scale)
            # A gap is the median exactly; few other values are.
            found.append((column, own[own != filled.float().double()]))
        start += len(column.features)
    return found


def odd(column: Column, own: Tensor) -> str:
    """What is odd about a column's scaled values [n]; nothing if nothing is."""
    if len(own) < FEW:
        return ""
    mean, spread = float(own.mean()), float(own.std(correction=0))
    here = f"mean {column.centre + column.scale * mean:.4g}"
    here += f", deviation {column.scale * spread:.4g}"
    there = f"mean {column.centre:.4g}, deviation {column.scale:.4g}"
    if spread > UNIT or 0 < spread < 1 / UNIT:
        return (
            f"column {column.name!r}: its unit must be that of the first environment "
            f"({there}); got {here}"
        )
    return ""


def far(schema: Schema, inputs: Tensor) -> list[str]:
    """Columns of inputs [n, d] whose mean is far from the first environment's."""
    encoding = schema.treatment.encoding
    if encoding is None or len(inputs) < FEW:
        return []
    return [
        f"column {column.name!r} is far from where the model has learned: its mean is "
        f"{column.centre + column.scale * float(own.mean()):.4g}, that of the first "
        f"environment {column.centre:.4g} with a deviation of {column.scale:.4g}"
        for column, own in numbers(encoding, inputs)
        if len(own) >= FEW and abs(float(own.mean())) > FAR
    ]


def unknown(schema: Schema, inputs: Tensor) -> list[str]:
    """Columns of inputs [n, d] with nothing in them, or with many new categories."""
    encoding = schema.treatment.encoding
    if encoding is None or len(inputs) < FEW:
        return []
    found = [
        f"column {column.name!r}: all of its values are missing"
        for column, own in numbers(encoding, inputs)
        if not len(own)
    ]
    start = 0
    for column in encoding.columns:
        if column.kind == "category":
            part = float(inputs[:, start + len(column.categories)].mean())
            if part >= OFTEN:
                found.append(
                    f"column {column.name!r}: {100 * part:.0f} % of the rows have "
                    "categories that the model does not know by name, which count as "
                    "one"
                )
        start += len(column.features)
    return found
