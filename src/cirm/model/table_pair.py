"""Read two tables that are to be compared, in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from torch import Tensor

from cirm.data.cell_errors import check_table_has_columns, quote_column_names
from cirm.data.columns import TableEncoding
from cirm.data.encoded_chunks import prefetch_items_in_thread
from cirm.data.open_sources import open_sources_of_user_data
from cirm.data.schema import SCHEMA_ROWS, TaskName
from cirm.data.schema_inference import (
    RandomRowReservoir,
    ReadOptions,
    guess_numeric_columns,
    infer_task_and_encode_targets,
)
from cirm.data.sources import (
    Data,
    DataSource,
    Progress,
    report_progress_of_reading_rows,
)
from cirm.data.values import convert_values_to_text, find_missing_values
from cirm.environments import Task
from cirm.model.model import Model

FEW_ROWS = 50  # of a table, below which a note says that little can be seen
MANY_SHARED = 0.1  # share of rows in both tables that is worth a note


@dataclass(frozen=True, eq=False)
class TablesToCompare:
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


def read_tables_to_compare(
    first: Data,
    second: Data,
    options: ReadOptions,
    model: Model | None,
    progress: Progress,
) -> TablesToCompare:
    """Read two tables; at most 100,000 rows of each, drawn uniformly, are compared."""
    sources = [_open_table_to_compare(data) for data in (first, second)]
    names = (sources[0].name, sources[1].name)
    if names[0] == names[1]:
        names = ("the first table", "the second table")
    target = options.target or (model.schema.target.name if model else "")
    target = target or sources[0].target
    numbers = guess_numeric_columns(sources[0], {target, *options.categories})
    notes: list[str] = []
    frames = [
        _read_rows_to_compare(source, numbers, notes, progress) for source in sources
    ]
    if options.target:
        check_table_has_columns(frames[0], [target], sources[0].where)
    encoding = _choose_encoding_of_shared_columns(frames, target, options, model, notes)
    target = target if _do_both_tables_have_targets(frames, target, notes) else ""
    targets, task = None, None
    if target:
        frames = [
            _drop_missing_targets(frame, name, target, notes)
            for frame, name in zip(frames, names, strict=True)
        ]
        targets, task = _encode_targets_of_tables(frames, target, options, model)
    columns = [column.name for column in encoding.columns]
    columns += [target] if target else []
    shared = _measure_share_of_common_rows([frame[columns] for frame in frames])
    if MANY_SHARED <= shared < 1:
        text = (
            f"{100 * shared:.0f} % of the rows of {names[1]} are also in {names[0]}, "
            "so the tables are not independent and the p-values are not reliable. "
            "Remove the shared rows from one table."
        )
        notes.append(text)
    if (fewest := min(map(len, frames))) < FEW_ROWS:
        notes.append(
            f"with {fewest} rows, only large changes can be detected. Compare more "
            "rows to find smaller changes."
        )
    tables = (frames[0], frames[1])
    return TablesToCompare(
        names, tables, encoding, target, targets, task, tuple(notes), shared
    )


def _open_table_to_compare(data: Data) -> DataSource:
    sources = open_sources_of_user_data(data)
    if len(sources) > 1 or sources[0].kind != "table":
        is_one = len(sources) == 1
        problem = "this is not a table" if is_one else "these are several tables"
        raise ValueError(
            f"{sources[0].where}: only two tables can be compared, but {problem}. "
            "Give two files with one table each."
        )
    return sources[0]


def _read_rows_to_compare(
    source: DataSource, numbers: Sequence[str], notes: list[str], progress: Progress
) -> pd.DataFrame:
    reservoir = RandomRowReservoir(SCHEMA_ROWS)
    for frame in prefetch_items_in_thread(source.iterate_frames(numbers)):
        reservoir.offer_rows_of_environments(
            frame, np.full(len(frame), source.name, dtype=object)
        )
        report_progress_of_reading_rows(progress, "reading", [source], reservoir.seen)
    check_table_has_columns(reservoir.frame, [], source.where)
    if reservoir.seen > SCHEMA_ROWS:
        notes.append(
            f"{source.name}: {SCHEMA_ROWS:,} of {reservoir.seen:,} rows, drawn at "
            "random, are compared."
        )
    return reservoir.frame


def _do_both_tables_have_targets(
    frames: Sequence[pd.DataFrame], target: str, notes: list[str]
) -> bool:
    """Return whether both tables have targets that vary; otherwise add a note."""
    if all(target in frame.columns for frame in frames):
        if not _is_target_constant(frames, target):
            return True
        notes.append(
            f"the target {target!r} is the same in all rows, so the meaning of "
            "columns cannot be compared."
        )
        return False
    reason = f"only one of the tables, or none, has the target column {target!r}"
    remedy = ""
    if not target:
        reason, remedy = "no target is given", "; name it with --target"
    notes.append(
        f"{reason}, so neither the base rate nor the meaning of columns is compared"
        f"{remedy}."
    )
    return False


def _encode_targets_of_tables(
    frames: Sequence[pd.DataFrame],
    target: str,
    options: ReadOptions,
    model: Model | None,
) -> tuple[tuple[Tensor, Tensor], Task]:
    """Return the targets of both tables, and the task, by default the model's."""
    values = pd.concat([frame[target] for frame in frames])
    count = len(frames[0])
    if model is not None and options.task == "auto":
        is_regression = not model.task.classes
        kind: TaskName = "regression" if is_regression else "classification"
        options = replace(options, task=kind)
    is_first = np.arange(len(values)) < count
    encoded, task, _ = infer_task_and_encode_targets(values, is_first, options)
    return (encoded[:count], encoded[count:]), task


def _is_target_constant(frames: Sequence[pd.DataFrame], target: str) -> bool:
    values = pd.concat([frame[target] for frame in frames])
    return convert_values_to_text(values[~find_missing_values(values)]).nunique() == 1


def _drop_missing_targets(
    frame: pd.DataFrame, table_name: str, target: str, notes: list[str]
) -> pd.DataFrame:
    gaps = find_missing_values(frame[target])
    if gaps.all():
        raise ValueError(
            f"table {table_name!r}: the target column {target!r} is empty in every "
            "row. Fill it in, or remove the column from this table."
        )
    if gaps.any():
        notes.append(
            f"{table_name}: {int(gaps.sum()):,} rows without a target are left out."
        )
    return frame[~gaps]


def _choose_encoding_of_shared_columns(
    frames: Sequence[pd.DataFrame],
    target: str,
    options: ReadOptions,
    model: Model | None,
    notes: list[str],
) -> TableEncoding:
    """Return how the columns that both tables have are encoded."""
    shared = [name for name in frames[0].columns if name in frames[1].columns]
    for which, frame in zip(("first", "second"), frames, strict=True):
        only = [n for n in frame.columns if n not in shared and n != target]
        if only:
            notes.append(f"only the {which} table has {quote_column_names(only)}.")
    others = {target, *options.ignore}
    if model is not None:
        schema = model.schema
        if schema.treatment.encoding is None:
            raise ValueError(
                "--model: the model was trained on images or arrays, not on a table. "
                "Leave out the option, or give a model of tables."
            )
        others |= {schema.environment, *schema.ids, *schema.ignored}
        columns = [c for c in schema.treatment.encoding.columns if c.name in shared]
        used = [column for column in columns if column.name not in others]
        return _check_tables_share_columns(TableEncoding(tuple(used)))
    inputs = frames[0][[name for name in shared if name not in others]]
    kept = [name for name in options.categories if name in inputs.columns]
    return _check_tables_share_columns(TableEncoding.fit(inputs, kept))


def _check_tables_share_columns(encoding: TableEncoding) -> TableEncoding:
    if not encoding.features:
        raise ValueError(
            "There is nothing to compare: the tables share no column that varies in "
            "the first table. Check that both tables use the same column names, and "
            "that at least one shared column has more than one value."
        )
    return encoding


def _measure_share_of_common_rows(frames: Sequence[pd.DataFrame]) -> float:
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
