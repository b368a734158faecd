"""Compare two tables: did the inputs move, the base rate, or what a column means?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cirm.data.columns import (
    ColumnEncoding,
    TableEncoding,
    check_columns_present,
    list_column_names,
)
from cirm.data.schema import (
    SCHEMA_ROWS,
    ReadOptions,
    RowReservoir,
    TaskName,
    guess_numeric_columns,
    infer_target_encoding,
)
from cirm.data.sources import (
    Data,
    Progress,
    Source,
    ignore_progress,
    open_data_sources,
    prefetch_items,
)
from cirm.data.values import (
    convert_values_to_numbers,
    convert_values_to_text,
    is_missing,
)
from cirm.environments import Task
from cirm.model.compare_answer import write_answer
from cirm.model.compare_columns import (
    ColumnChange,
    compare_categories,
    compare_columns,
    compare_values,
)
from cirm.model.compare_relations import compare_jointly, compare_meaning
from cirm.model.model import Model
from cirm.model.predict import predict_inputs_in_chunks
from cirm.model.units import detect_unit_changes

FEWEST_ROWS = 5  # of a table, to test anything
FEW_ROWS = 50  # of a table, below which a note says that little can be seen
FEWEST_OF_UNIT = 20  # values whose quartiles tell a unit
MANY_SHARED = 0.1  # share of rows in both tables that is worth a note
SHARES = {"inputs": 0.3, "joint": 0.1, "base_rate": 0.2, "meaning": 0.4}
"""How the probability of a false alarm is divided among the questions."""


@dataclass(frozen=True, eq=False)
class TablePair:
    """Two tables, and how their columns are read.

    Attributes:
        names: What the tables are called.
        frames: Their rows.
        encoding: How the inputs are encoded.
        target: The target column; empty if there is none.
        targets: Targets [n] of both, if both have them.
        task: The task of the targets, if both have them.
        notes: What a user should know.
        shared: Share of the second table's rows that are in the first; 1 only if both
            have the same rows.
    """

    names: tuple[str, str]
    frames: tuple[pd.DataFrame, pd.DataFrame]
    encoding: TableEncoding
    target: str
    targets: tuple[Tensor, Tensor] | None
    task: Task | None
    notes: tuple[str, ...]
    shared: float = 0.0


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
    progress: Progress = ignore_progress,
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
        level: Probability that anything is called changed if nothing has. It is
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
            f"--level: {level:g} is not between 0 and 1. Use for example 0.05."
        )
    options = ReadOptions(
        target, task=task, categories=tuple(categories), ignore=tuple(ignore)
    )
    pair = read_table_pair(first, second, options, model, progress)
    report: dict[str, Any] = {
        "names": list(pair.names),
        "rows": [len(frame) for frame in pair.frames],
        "target": pair.target,
        "level": level,
        "same_rows": pair.shared == 1.0,
    }
    progress("comparing", 1)
    report |= _compare_pair(pair, model, level)
    return {"answer": write_answer(report), **report, "notes": list(pair.notes)}


def _compare_pair(pair: TablePair, model: Model | None, level: float) -> dict[str, Any]:
    if min(map(len, pair.frames)) < FEWEST_ROWS:
        names = ("joint", "base_rate", "meaning", "predictions")
        return {"inputs": [], "units": []} | dict.fromkeys(names)
    shares = {name: level * share for name, share in SHARES.items()}
    if pair.targets is None:  # then the questions about inputs have the whole level
        shares = {"inputs": 0.75 * level, "joint": 0.25 * level}
    inputs = tuple(pair.encoding.encode(frame) for frame in pair.frames)
    joint = compare_jointly(*inputs)
    if joint is not None:
        joint["significant"] = joint["p_value"] <= shares["joint"]
    changes = compare_columns(pair.encoding.columns, *pair.frames)
    base_rate = meaning = None
    if pair.targets is not None and pair.task is not None:
        base_rate = _compare_targets(pair).as_dict(shares["base_rate"])
        widths = {c.name: len(c.features) for c in pair.encoding.columns if c.features}
        meaning = compare_meaning(
            (inputs[0], inputs[1]), pair.targets, pair.task, widths, shares["meaning"]
        )
    return {
        "inputs": [change.as_dict(shares["inputs"]) for change in changes],
        "joint": joint,
        "base_rate": base_rate,
        "meaning": meaning,
        "units": _find_other_units(pair),
        "predictions": model and _compare_predictions(model, inputs),
    }


def read_table_pair(
    first: Data,
    second: Data,
    options: ReadOptions,
    model: Model | None,
    progress: Progress,
) -> TablePair:
    """Read two tables; at most 100,000 rows of each, drawn uniformly, are compared."""
    sources = [_open_table(data) for data in (first, second)]
    names = [source.name for source in sources]
    if names[0] == names[1]:
        names = ["the first table", "the second table"]
    target = options.target or (model.schema.target.name if model else "")
    target = target or sources[0].target
    numbers = guess_numeric_columns(sources[0], {target, *options.categories})
    notes: list[str] = []
    frames = [_read_frame(source, numbers, notes, progress) for source in sources]
    if options.target:
        check_columns_present(frames[0], [target], sources[0].where)
    has_targets = all(target in frame.columns for frame in frames)
    if not has_targets:
        text = f"not both tables have the target {target!r}" if target else "no target"
        remedy = "" if target else "; name it with --target"
        notes.append(
            f"{text}{'' if target else ' is given'}, so neither the base rate nor the "
            f"meaning of columns is compared{remedy}."
        )
    encoding = _choose_encoding(frames, target, options, model, notes)
    targets, task = None, None
    if has_targets and _is_constant(frames, target):
        notes.append(
            f"the target {target!r} is the same in all rows, so that nothing depends "
            "on it."
        )
        has_targets = False
    if has_targets:
        frames = [_drop_missing_targets(frame, target, notes) for frame in frames]
        values = pd.concat([frame[target] for frame in frames])
        is_first = np.arange(len(values)) < len(frames[0])
        known = model.schema.task if model else None
        if known is not None and options.task == "auto":
            name: TaskName = "classification" if known.classes else "regression"
            options = replace(options, task=name)
        encoded, task, _ = infer_target_encoding(values, is_first, options)
        targets = (encoded[: len(frames[0])], encoded[len(frames[0]) :])
    columns = [column.name for column in encoding.columns]
    columns += [target] if has_targets else []
    shared = _measure_shared_rows([frame[columns] for frame in frames])
    if MANY_SHARED <= shared < 1:
        text = f"{100 * shared:.0f} % of the rows of {names[1]} are in {names[0]}, too."
        notes.append(text)
    if (fewest := min(map(len, frames))) < FEW_ROWS:
        notes.append(f"with {fewest} rows only large changes can be seen.")
    return TablePair(
        (names[0], names[1]),
        (frames[0], frames[1]),
        encoding,
        target if has_targets else "",
        targets,
        task,
        tuple(notes),
        shared,
    )


def _open_table(data: Data) -> Source:
    sources = open_data_sources(data)
    if len(sources) > 1 or sources[0].kind != "table":
        raise ValueError(
            f"{sources[0].where}: only single tables can be compared. Give two CSV, "
            "TSV, Parquet or NPZ files with columns."
        )
    return sources[0]


def _read_frame(
    source: Source, numbers: Sequence[str], notes: list[str], progress: Progress
) -> pd.DataFrame:
    reservoir = RowReservoir(SCHEMA_ROWS)
    for frame in prefetch_items(source.frames(numbers)):
        reservoir.add_rows(frame, np.full(len(frame), source.name, dtype=object))
        progress("reading", reservoir.seen)
    check_columns_present(reservoir.frame, [], source.where)
    if reservoir.seen > SCHEMA_ROWS:
        notes.append(
            f"{source.name}: {SCHEMA_ROWS:,} of {reservoir.seen:,} rows, drawn at "
            "random, are compared."
        )
    return reservoir.frame


def _is_constant(frames: Sequence[pd.DataFrame], target: str) -> bool:
    values = pd.concat([frame[target] for frame in frames])
    return convert_values_to_text(values[~is_missing(values)]).nunique() == 1


def _drop_missing_targets(
    frame: pd.DataFrame, target: str, notes: list[str]
) -> pd.DataFrame:
    gaps = is_missing(frame[target])
    if gaps.all():
        raise ValueError(
            f"column {target!r}: all targets of a table are missing. Remove the column "
            "from it, or fill it in."
        )
    if gaps.any():
        notes.append(f"{int(gaps.sum()):,} rows without a target are left out.")
    return frame[~gaps]


def _choose_encoding(
    frames: Sequence[pd.DataFrame],
    target: str,
    options: ReadOptions,
    model: Model | None,
    notes: list[str],
) -> TableEncoding:
    """Return how the columns that both tables have are encoded."""
    shared = [name for name in frames[0].columns if name in frames[1].columns]
    for place, (one, other) in enumerate((frames, frames[::-1])):
        only = [name for name in one.columns if name not in other.columns]
        if only := [name for name in only if name != target]:
            which = ("first", "second")[place]
            notes.append(f"only the {which} table has {list_column_names(only)}.")
    others = {target, *options.ignore}
    if model is not None:
        schema = model.schema
        if schema.treatment.encoding is None:
            raise ValueError(
                "--model: the model was not trained on tables. Leave it out, or give "
                "another."
            )
        others |= {schema.environment, *schema.ids, *schema.ignored}
        columns = [c for c in schema.treatment.encoding.columns if c.name in shared]
        used = [column for column in columns if column.name not in others]
        return _require_columns(TableEncoding(tuple(used)))
    inputs = frames[0][[name for name in shared if name not in others]]
    kept = [name for name in options.categories if name in inputs.columns]
    return _require_columns(TableEncoding.fit(inputs, kept))


def _require_columns(encoding: TableEncoding) -> TableEncoding:
    if not encoding.features:
        raise ValueError(
            "The tables have no column in common that varies in the first. Check that "
            "they are of the same kind."
        )
    return encoding


def _measure_shared_rows(frames: Sequence[pd.DataFrame]) -> float:
    """Return the share of the second table's rows that are in the first.

    It is 1 only if both have the same rows, in whatever order.
    """
    hashes = []
    for frame in frames:
        columns = {
            name: values if values.dtype.kind == "f" else convert_values_to_text(values)
            for name, values in frame.items()
        }
        hashes.append(pd.util.hash_pandas_object(pd.DataFrame(columns), index=False))
    if sorted(hashes[0]) == sorted(hashes[1]):
        return 1.0
    return min(float(hashes[1].isin(hashes[0]).mean()), 0.99)


def _compare_targets(pair: TablePair) -> ColumnChange:
    assert pair.targets is not None
    assert pair.task is not None
    if not pair.task.classes:
        first, second = (
            convert_values_to_numbers(frame[pair.target], "number")
            for frame in pair.frames
        )
        return compare_values(pair.target, first, second)
    names = np.array(pair.task.classes, dtype=object)
    one, other = (pd.Series(names[targets.numpy()]) for targets in pair.targets)
    return compare_categories(pair.target, one, other)


def _find_other_units(pair: TablePair) -> list[dict[str, Any]]:
    """Return columns of numbers that seem to be in another unit in the second table."""
    columns: list[ColumnEncoding] = []
    quartiles = []
    for column in pair.encoding.numbers:
        numbers = [
            convert_values_to_numbers(
                frame[column.name], "number", written=column.format
            )
            for frame in pair.frames
        ]
        first, second = (values[~np.isnan(values)] for values in numbers)
        if min(len(first), len(second)) >= FEWEST_OF_UNIT:
            low, middle, high = np.quantile(first, (0.25, 0.5, 0.75)).tolist()
            columns.append(replace(column, fill=middle, quartiles=(low, high)))
            quartiles.append(np.quantile(second, (0.25, 0.5, 0.75)))
    changes = detect_unit_changes(columns, np.array(quartiles).reshape(-1, 3))
    return [
        {
            "column": change.column,
            "certain": change.is_certain,
            "sentence": change.text.replace("the first environment", "the first table"),
        }
        for change in changes
    ]


def _compare_predictions(model: Model, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    """Return how often each class is predicted, or the mean prediction, of both."""
    means = []
    for part in inputs:
        means.append(predict_inputs_in_chunks(model, part.numpy()).mean.double())
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
