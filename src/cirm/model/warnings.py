"""Warnings about data that a user should read before trusting a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.columns import ColumnEncoding
from cirm.data.schema import Schema
from cirm.data.values import Flags, Numbers
from cirm.model.units import ColumnUnitChange, detect_columns_in_other_units

if TYPE_CHECKING:
    from torch import Tensor

    from cirm.data.rows import EncodedRows
    from cirm.data.schema_inference import SchemaWithFirstRows
    from cirm.model.model import Model

FEWEST_ROWS = 20  # with fewer rows, means and coincidences say little
SOME_ROWS = 1000  # rows that show that nearly any column does not determine the target
FEWEST_ORDERED = 200  # rows; fewer may happen to be in order by a column of many values
NEW_CATEGORIES = 0.05  # fraction of rows with new categories that is worth a warning
FAR_MEAN = 10.0  # standard deviations from the first mean that are worth a warning


def warn_of_leaking_columns(draft: SchemaWithFirstRows) -> list[str]:
    """Warn of columns that alone determine the target in every row."""
    encoding, classes = draft.schema.treatment.encoding, draft.schema.task.classes
    if encoding is None or len(draft.frame) < FEWEST_ROWS:
        return []
    # With few rows of each class, any column of different values determines it.
    if classes and not 2 <= len(draft.targets.unique()) <= len(draft.frame) / 5:
        return []
    targets = draft.targets.numpy()
    features = encoding.encode(draft.frame)
    ends = np.cumsum([len(column.features) for column in encoding.columns])
    names = [
        column.name
        for column, own in zip(
            encoding.columns, np.split(features, ends[:-1], axis=1), strict=True
        )
        if own.shape[1]
        and _does_column_alone_determine_target(own, targets, bool(classes))
    ]
    return [
        f"column {name!r} alone determines the target in every row of the first "
        f"place. If it was derived from the target, exclude it (--ignore {name}, in "
        f"Python ignore=[{name!r}])."
        for name in names
    ]


def _does_column_alone_determine_target(
    features: np.ndarray, targets: np.ndarray, is_classification: bool
) -> bool:
    """Return whether the features [n, k] of one column determine the targets [n]."""
    if not is_classification:
        spread = features.std(0)
        if (spread == 0).all() or targets.std() == 0:
            return False
        widest = features[:, spread.argmax()]
        return bool(abs(np.corrcoef(widest, targets)[0, 1]) > 0.99999)
    if features.shape[1] > 1:  # a category, or a number with marked missing values
        codes = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
        groups = pd.Series(targets).groupby(codes)
        return bool(len(groups) <= len(targets) / 5 and (groups.nunique() == 1).all())
    # Along the sorted column, each class must form one block.
    values = features[:, 0]
    if len(values) < FEWEST_ORDERED and len(np.unique(values)) > len(values) / 5:
        return False
    # What some of the rows contradict need not be looked for in all of them.
    some = slice(None, None, -(-len(values) // SOME_ROWS))
    return _are_rows_sorted_by_class(values[some], targets[some]) and (
        _are_rows_sorted_by_class(values, targets)
    )


def _are_rows_sorted_by_class(values: np.ndarray, targets: np.ndarray) -> bool:
    """Return whether classes [n] are adjacent when values [n] are sorted."""
    order = np.lexsort((targets, values))
    classes, ordered = targets[order], values[order]
    changes = classes[1:] != classes[:-1]
    # No value may occur with two classes.
    separate = (ordered[1:] != ordered[:-1])[changes].all()
    return bool(changes.sum() == len(np.unique(targets)) - 1 and separate)


def list_input_warnings(
    schema: Schema, inputs: NDArray[np.float32], missing: Flags | None = None
) -> list[str]:
    """Warn of everything unusual about inputs [n, *shape] that are to be predicted."""
    doubts = [
        f"{change.text}. Check the unit before you use these predictions."
        for change in find_columns_in_other_units(schema, inputs, missing)
    ]
    return doubts + list_unusual_value_warnings(schema, inputs, missing)


def list_warnings_of_environment_inputs(
    schema: Schema,
    environment_name: str,
    inputs: NDArray[np.float32],
    missing: Flags | None,
    accept_units: bool,
) -> list[str]:
    """Return notes on unusual inputs [n, *shape]; those in another unit are refused."""
    changes = find_columns_in_other_units(schema, inputs, missing)
    certain = [change for change in changes if change.is_certain]
    if certain and not accept_units:
        raise ValueError(
            f"place {environment_name!r}: {certain[0].text}. Convert the column, or "
            "use --accept-units (in Python accept_units=True) to use its values as "
            "they are."
        )
    remedy = "Check the unit. If it differs, convert the column and run the command "
    remedy += "again with the model as it was before (`cirm rollback` restores it)."
    unusual = [f"{change.text}. {remedy}" for change in changes]
    unusual += list_unusual_value_warnings(schema, inputs, missing)
    return [f"place {environment_name!r}: {text}" for text in unusual]


def find_columns_in_other_units(
    schema: Schema, inputs: NDArray[np.float32], missing: Flags | None = None
) -> list[ColumnUnitChange]:
    """Return the columns of inputs [n, d] that seem to be in another unit."""
    columns, quartiles = [], []
    for column, values in _iterate_numeric_columns(schema, inputs, missing):
        if len(values) >= FEWEST_ROWS:
            columns.append(column)
            own = np.quantile(values, (0.25, 0.5, 0.75))
            with np.errstate(over="ignore"):
                quartiles.append(column.centre + column.scale * own)
    if not columns:  # as for the few rows of most requests to a server
        return []
    return detect_columns_in_other_units(columns, np.array(quartiles).reshape(-1, 3))


def list_unusual_value_warnings(
    schema: Schema, inputs: NDArray[np.float32], missing: Flags | None = None
) -> list[str]:
    """Warn of columns of inputs [n, d] that are shifted, empty or mostly unknown."""
    shifted, empty = [], []
    for column, values in _iterate_numeric_columns(schema, inputs, missing):
        if not len(values):
            empty.append(
                f"column {column.name!r}: all values are missing. Check that "
                "the column was exported."
            )
        elif len(values) >= FEWEST_ROWS and abs(float(values.mean())) > FAR_MEAN:
            mean = column.centre + column.scale * float(values.mean())
            shifted.append(
                f"column {column.name!r} is far from the data of the first place: its "
                f"mean is {mean:.4g}, but was {column.centre:.4g} with a standard "
                f"deviation of {column.scale:.4g}. Predictions may be poor. Check the "
                "values of this column."
            )
    return shifted + empty + _list_new_category_warnings(schema, inputs)


def _list_new_category_warnings(
    schema: Schema, inputs: NDArray[np.float32]
) -> list[str]:
    encoding = schema.treatment.encoding
    if encoding is None or len(inputs) < FEWEST_ROWS:
        return []
    warnings, start = [], 0
    for column in encoding.columns:
        if column.kind == "category":
            fraction = float(inputs[:, start + len(column.categories)].mean())
            if fraction >= NEW_CATEGORIES:
                warnings.append(
                    f"column {column.name!r}: {100 * fraction:.0f} % of the rows have "
                    "categories that the model does not know. All of these are "
                    "treated as one category, 'other'. Check their spelling. If they "
                    "are right, fit a new model whose first place has them."
                )
        start += len(column.features)
    return warnings


def _iterate_numeric_columns(
    schema: Schema, inputs: NDArray[np.float32], missing: Flags | None
) -> Iterator[tuple[ColumnEncoding, Numbers]]:
    """Yield each column of numbers with its standardised values that are not missing.

    `missing` [n, columns of numbers] says which are, since an encoded value does not:
    the median, which replaces missing values, may be a frequent value itself.
    """
    encoding = schema.treatment.encoding
    if encoding is None or len(inputs) < FEWEST_ROWS:
        return
    start = position = 0
    for column in encoding.columns:
        if column.kind == "number":
            values = inputs[:, start].astype(np.float64)
            yield column, values if missing is None else values[~missing[:, position]]
            position += 1
        start += len(column.features)


def warn_of_single_class(classes: tuple[str, ...], targets: Tensor) -> list[str]:
    """Warn if all targets [n] of an environment are of one class."""
    if classes and len(targets.unique()) == 1:
        only = classes[int(targets.flatten()[0])]
        return [
            f"all rows have the class {only!r}, so the accuracy says little. Evaluate "
            "the model on rows of every class."
        ]
    return []


def check_rows_were_not_seen_in_training(model: Model, rows: EncodedRows) -> None:
    """Raise an error if the model was trained on the rows of an environment before."""
    history = {entry.fingerprint: entry for entry in model.history}
    for name in rows.rows:
        if entry := history.get(rows.fingerprint(name)):
            raise ValueError(
                f"place {name!r}: the model was already trained on these rows on "
                f"{entry.time[:10]}, under the name {entry.name!r}. Give other rows, "
                "or use --again (in Python again=True) to train on these once more."
            )
