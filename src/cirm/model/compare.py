"""Compare two tables: did the inputs move, the base rate, or what a column means?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from cirm.data.columns import ColumnEncoding
from cirm.data.schema import TaskName
from cirm.data.schema_inference import ReadOptions
from cirm.data.sources import Data, Progress, ignore_progress_message
from cirm.data.values import convert_values_to_numbers
from cirm.model.compare_answer import FEWEST_ROWS, summarise_table_comparison
from cirm.model.compare_columns import (
    ColumnDistributionChange,
    compare_category_frequencies,
    compare_column_distributions,
    compare_numeric_values,
)
from cirm.model.compare_relations import (
    compare_meaning_of_columns,
    run_classifier_two_sample_test,
)
from cirm.model.compute import predict_inputs_in_chunks
from cirm.model.model import Model
from cirm.model.table_pair import TablesToCompare, read_tables_to_compare
from cirm.model.units import detect_columns_in_other_units

FEWEST_OF_UNIT = 20  # values whose quartiles tell a unit
SHARES = {"inputs": 0.3, "joint": 0.1, "base_rate": 0.2, "meaning": 0.4}
"""How the probability of a false alarm is divided among the questions."""


def compare(
    first: Data,
    second: Data,
    *,
    target: str = "",
    model: Model | None = None,
    task: TaskName = "auto",
    categories: Sequence[str] = (),
    ignore: Sequence[str] = (),
    level: float = 0.05,
    progress: Progress = ignore_progress_message,
) -> dict[str, Any]:
    """Compare two tables: inputs, base rate, and the meaning of columns.

    Args:
        first: A table: a path to a CSV, TSV, Parquet or NPZ file, or a DataFrame.
        second: The table to compare with it.
        target: Column to predict. If both tables have it, base rate (or mean) and the
            meaning of columns are compared as well. By default the model's.
        model: A trained model. Its treatment of columns is used, and its predictions
            for both tables are compared.
        task: "classification", "regression", or "auto" to infer it from the target.
        categories: Columns of numbers that are codes of categories.
        ignore: Columns to leave out.
        level: Probability of reporting any change although nothing has changed. It is
            divided among the questions and, within each, among the columns.
        progress: Called with a description and how far it is.

    Returns:
        Plain values that JSON can hold: `answer`, one or two sentences; `rows`;
        `inputs`, a dictionary for each column with its `p_value` (adjusted for all
        columns), size of the change and a `sentence`; `joint`, whether a classifier can
        tell the tables apart; `base_rate`; `meaning`; `units`, columns that seem to be
        in another unit; `predictions`, how those of the model shift; and `notes`. Parts
        that cannot be compared are None.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the data cannot be read as tables, or an option is invalid.

    Example:
        >>> import pandas as pd
        >>> from cirm import compare
        >>> first = pd.DataFrame({"age": range(30, 70), "ill": ["no", "yes"] * 20})
        >>> older = first.assign(age=first["age"] + 20)
        >>> compare(first, older)["answer"]
        '`age` moved up by 1.63 standard deviations.'
        >>> compare(first, older, target="ill")["base_rate"]["significant"]
        False
    """
    if not 0 < level < 1:
        raise ValueError(
            f"--level: {level:g} is not between 0 and 1. Give the level of "
            "significance, for example 0.05."
        )
    options = ReadOptions(
        target, task=task, categories=tuple(categories), ignore=tuple(ignore)
    )
    pair = read_tables_to_compare(first, second, options, model, progress)
    report: dict[str, Any] = {
        "names": list(pair.names),
        "rows": [len(frame) for frame in pair.frames],
        "target": pair.target,
        "level": level,
        "same_rows": pair.shared == 1.0,
    }
    progress("comparing", 1)
    report |= _compare_columns_and_targets(pair, model, level)
    return {
        "answer": summarise_table_comparison(report),
        **report,
        "notes": list(pair.notes),
    }


def _compare_columns_and_targets(
    tables: TablesToCompare, model: Model | None, level: float
) -> dict[str, Any]:
    if min(map(len, tables.frames)) < FEWEST_ROWS:
        names = ("joint", "base_rate", "meaning", "predictions")
        return {"inputs": [], "units": []} | dict.fromkeys(names)
    shares = SHARES
    if tables.targets is None:  # then the questions about inputs have the whole level
        shares = {"inputs": 0.75, "joint": 0.25}
    inputs = tuple(
        torch.from_numpy(tables.encoding.encode(frame)) for frame in tables.frames
    )
    joint = run_classifier_two_sample_test(*inputs)
    if joint is not None:
        joint["p_value"] = min(1.0, joint["p_value"] / shares["joint"])
        joint["significant"] = joint["p_value"] <= level
    changes = compare_column_distributions(tables.encoding.columns, *tables.frames)
    base_rate = meaning = None
    if tables.targets is not None and tables.task is not None:
        base_rate = _compare_targets_of_tables(tables).as_dict(
            level, shares["base_rate"]
        )
        meaning = compare_meaning_of_columns(
            (inputs[0], inputs[1]),
            tables.targets,
            tables.task,
            tables.encoding,
            level * shares["meaning"],
        )
    return {
        "inputs": [change.as_dict(level, shares["inputs"]) for change in changes],
        "joint": joint,
        "base_rate": base_rate,
        "meaning": meaning,
        "units": _find_columns_in_other_units(tables),
        "predictions": model and _compare_predictions_on_both_tables(model, tables),
    }


def _compare_targets_of_tables(tables: TablesToCompare) -> ColumnDistributionChange:
    assert tables.targets is not None
    assert tables.task is not None
    if not tables.task.classes:
        first, second = (
            convert_values_to_numbers(frame[tables.target], "number")
            for frame in tables.frames
        )
        return compare_numeric_values(tables.target, first, second)
    names = np.array(tables.task.classes, dtype=object)
    one, other = (pd.Series(names[targets.numpy()]) for targets in tables.targets)
    return compare_category_frequencies(tables.target, one, other)


def _find_columns_in_other_units(tables: TablesToCompare) -> list[dict[str, Any]]:
    """Return columns of numbers that seem to be in another unit in the second table."""
    columns: list[ColumnEncoding] = []
    quartiles = []
    for column in tables.encoding.numeric_columns:
        numbers = [
            convert_values_to_numbers(
                frame[column.name], "number", text_format=column.format
            )
            for frame in tables.frames
        ]
        first, second = (values[~np.isnan(values)] for values in numbers)
        if min(len(first), len(second)) >= FEWEST_OF_UNIT:
            low, middle, high = np.quantile(first, (0.25, 0.5, 0.75)).tolist()
            columns.append(replace(column, fill=middle, quartiles=(low, high)))
            quartiles.append(np.quantile(second, (0.25, 0.5, 0.75)))
    changes = detect_columns_in_other_units(columns, np.array(quartiles).reshape(-1, 3))
    return [
        {
            "column": change.column,
            "certain": change.is_certain,
            "sentence": change.text.replace("at the first place", "in the first table"),
        }
        for change in changes
    ]


def _compare_predictions_on_both_tables(
    model: Model, tables: TablesToCompare
) -> dict[str, Any]:
    """Return how often each class is predicted, or the mean prediction, of both.

    Columns that a table lacks count as missing values.
    """
    encoding = model.schema.treatment.encoding
    assert encoding is not None
    means = []
    for frame in tables.frames:
        names = [column.name for column in encoding.columns if column.features]
        absent = [name for name in names if name not in frame.columns]
        inputs = encoding.encode(frame.assign(**dict.fromkeys(absent, np.nan)))
        means.append(predict_inputs_in_chunks(model, inputs).mean.double())
    if model.task.classes:
        k = len(model.task.classes)
        shares = [
            torch.bincount(mean.argmax(1), minlength=k) / len(mean) for mean in means
        ]
        found = zip(model.task.classes, *(s.tolist() for s in shares), strict=True)
        return {"classes": {name: [one, other] for name, one, other in found}}
    target = model.schema.target
    return {
        "mean": [target.centre + target.scale * float(mean.mean()) for mean in means]
    }
