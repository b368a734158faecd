"""Inferring how to read a user's data from the first environment.

Data are read in chunks, so that memory does not grow with them. At most 100,000 rows
of the first environment, drawn uniformly, decide how columns are encoded; the classes
are those of all rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cirm.data.array_files import convert_array_to_text
from cirm.data.cell_errors import (
    check_table_has_columns,
    raise_error_for_first_bad_value,
)
from cirm.data.columns import ColumnEncoding, TableEncoding
from cirm.data.encoded_chunks import (
    SYNONYMS,
    check_file_names_its_place_alone,
    check_no_target_is_missing,
    check_some_row_has_weight,
    drop_rows_of_zero_weight,
    encode_classes_as_indices,
    prefetch_items_in_thread,
    read_environment_names,
)
from cirm.data.encoders import EncoderIdentity
from cirm.data.schema import (
    SCHEMA_ROWS,
    InputEncoding,
    Schema,
    TaskName,
    check_columns_have_one_role,
    check_source_matches_schema,
)
from cirm.data.sources import (
    DataSource,
    Progress,
    ignore_progress_message,
    report_progress_of_reading_rows,
)
from cirm.data.values import (
    ColumnValueKind,
    Flags,
    Numbers,
    Values,
    convert_values_to_numbers,
    convert_values_to_text,
    detect_kind_of_column_values,
    detect_number_or_date_format,
    is_word_for_missing_value,
)
from cirm.randomness import Randomness
from cirm.tasks import Task

CODE = re.compile(r"\s*(\+|-?0\d|.*[eE])")  # numbers that may be names of classes
PEEK_ROWS = 1_000  # rows that show which columns look like numbers
PEEK_CELLS = 1_000_000  # cells that are looked at for this, in a second or two
MOST_COLUMNS = 50_000  # a fit to so many takes about 40 s, a model file 0.5 GB
FEWEST_DIFFERENT_TARGETS = 20  # of so many rows, classes never all differ
MOST_CLASSES = 10  # whole numbers with more different values are quantities


@dataclass(frozen=True)
class ReadOptions:
    """What the user says about the data at the first fit."""

    target: str = ""
    environment: str = ""
    task: TaskName = "auto"
    classes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    standardise: bool = True
    names: bool = True
    weight: str = ""
    texts: tuple[str, ...] = ()
    encoder: EncoderIdentity | None = None


@dataclass(frozen=True, eq=False)
class SchemaWithFirstRows:
    """A schema, with the rows and targets [m] of the first environment behind it.

    `count` is the number of all rows.
    """

    schema: Schema
    frame: pd.DataFrame
    targets: Tensor
    count: int = 0


class RandomRowReservoir:
    """Uniformly drawn rows of one environment, and their positions among all rows."""

    def __init__(self, size: int, environment: str = "") -> None:
        self.size, self.seen, self.environment = size, 0, environment
        self.frame, self.rows = pd.DataFrame(), np.zeros(0, np.int64)
        self._keys = np.zeros(0)
        self._draws = Randomness((0,), ("sample",)).start_draws()

    def offer_rows_of_environments(
        self, frame: pd.DataFrame, names: NDArray[np.object_]
    ) -> Flags:
        """Offer rows of the named environments [n]; return which are of this one.

        If no environment was chosen, it is that of the first row.
        """
        self.environment = self.environment or str(names[0])
        member: Flags = names == self.environment
        keys = self._draws.uniform(len(frame))[0].double().numpy()
        rows = self.seen + np.flatnonzero(member)
        self.seen += len(frame)
        keys = np.concatenate([self._keys, keys[member]])
        kept = np.sort(np.argsort(keys, kind="stable")[: self.size])
        old, new = kept[kept < len(self._keys)], kept[kept >= len(self._keys)]
        chosen = frame.iloc[np.flatnonzero(member)[new - len(self._keys)]]
        if len(chosen):
            held = self.frame.iloc[old]
            self.frame = pd.concat([held, chosen]) if len(held) else chosen
        self.rows = np.concatenate([self.rows, rows])[kept]
        self._keys = keys[kept]
        return member


def infer_schema(
    sources: Sequence[DataSource],
    options: ReadOptions,
    progress: Progress = ignore_progress_message,
    first_environment: str = "",
) -> SchemaWithFirstRows:
    """Infer how to read the data from the environment `first_environment`.

    Without it this is the earliest period, or else the environment of row one.
    """
    source = sources[0]
    first_environment = first_environment or min(
        (min(s.periods) for s in sources if s.periods), default=""
    )
    for other in sources:
        check_source_matches_schema(other, source.kind)
    if not isinstance(options.target, str):
        raise ValueError(
            "target: give the name of the column to predict, not its values. Add them "
            "to the table as a column, or use InvariantClassifier or "
            "InvariantRegressor, whose fit takes X and y."
        )
    target = options.target or source.target
    if not target:
        raise ValueError(
            f"{source.where}: no target is given, so it is unclear what to predict. "
            "For a table, name the column to predict with --target (in Python "
            "target=); for an NPZ file, save an array named y; for images, use one "
            "folder for each class."
        )
    column = options.environment or source.environment
    weight = options.weight or source.weight
    check_columns_have_one_role(target, column, weight)
    others = (target, column, weight, *options.ids, *options.ignore)
    other_columns = [name for name in others if name]
    is_table = source.kind == "table"
    needed = [*other_columns, *(options.categories if is_table else ())]
    text_columns = {*other_columns, *options.categories, *options.texts}
    text_columns -= {target, weight}
    numbers = guess_numeric_columns(source, text_columns, target)
    reservoir = RandomRowReservoir(SCHEMA_ROWS, first_environment)
    report_progress_of_reading_rows(progress, "reading", sources, 0)
    targets: list[Values] = []
    member: list[Flags] = []
    named: list[DataSource] = []
    for other in sources:
        if not column:
            check_file_names_its_place_alone(other, named)
        for frame in prefetch_items_in_thread(other.iterate_frames(numbers)):
            check_table_has_columns(frame, needed, other.where)
            if is_table:
                _check_number_of_columns(frame, other.where)
            frame = drop_rows_of_zero_weight(frame, weight)
            if frame.empty:
                continue
            names = read_environment_names(frame, column, other.name)
            member.append(reservoir.offer_rows_of_environments(frame, names))
            # A column on its own would keep all columns of its chunk in memory.
            targets.append(frame[target].copy())
            report_progress_of_reading_rows(
                progress, "reading", sources, reservoir.seen
            )
    check_some_row_has_weight(len(targets), weight)
    progress("inferring types of columns", 1)
    if source.kind == "images" and options.task == "auto":  # folders name classes
        options = replace(options, task="classification")
    encoded, task, target_column = infer_task_and_encode_targets(
        pd.concat(targets), np.concatenate(member), options
    )
    treatment = InputEncoding(
        source.kind,
        source.shape,
        encoder=source.encoder,
        has_bytes=source.has_bytes,
    )
    if is_table:
        treatment = _infer_table_encoding(reservoir, other_columns, options)
    schema = Schema(
        treatment,
        task,
        target_column,
        column,
        options.ids,
        options.ignore,
        options.weight,
    )
    rows = torch.from_numpy(reservoir.rows)
    return SchemaWithFirstRows(schema, reservoir.frame, encoded[rows], reservoir.seen)


def _check_number_of_columns(frame: pd.DataFrame, where: str) -> None:
    if len(frame.columns) > MOST_COLUMNS:
        raise ValueError(
            f"{where}: the table has {len(frame.columns):,} columns, but at most "
            f"{MOST_COLUMNS:,} can be used. Keep those that matter, or summarise them "
            "first, for example by principal components."
        )


def _infer_table_encoding(
    reservoir: RandomRowReservoir,
    columns_to_skip: Collection[str],
    options: ReadOptions,
) -> InputEncoding:
    """Return the treatment of a table whose inputs are all but the other columns."""
    inputs = reservoir.frame.drop(columns=list(dict.fromkeys(columns_to_skip)))
    encoding = TableEncoding.fit(
        inputs, options.categories, options.names, options.texts, options.encoder
    )
    if options.encoder and all(column.kind != "text" for column in encoding.columns):
        raise ValueError(
            f"encoder {options.encoder.name}: no column looks like text in the rows "
            f"of the place {reservoir.environment!r}. Name the column of text with "
            "--text, or remove --encoder."
        )
    if not encoding.features:
        columns = encoding.describe().replace("\n", "; ") or "there is no other column"
        raise ValueError(
            f"place {reservoir.environment!r}: no column besides the target can be "
            f"used for prediction ({columns}). Add a column whose values differ "
            "between the rows of this place."
        )
    return InputEncoding("table", (len(encoding.features),), encoding)


def infer_task_and_encode_targets(
    values: Values, is_in_first_environment: Flags, options: ReadOptions
) -> tuple[Tensor, Task, ColumnEncoding]:
    """Return targets [n], the task and the target's column.

    Text, booleans and at most ten different whole numbers are classes, in alphabetical
    or numerical order; other numbers are standardised by the rows
    `is_in_first_environment` [n] of the first environment.
    """
    check_no_target_is_missing(values)
    name, task = str(values.name), options.task
    if options.classes:
        declared = Task(options.classes)
        column = ColumnEncoding(name, "category", categories=options.classes)
        indices = encode_classes_as_indices(values, column)
        return torch.from_numpy(indices), declared, column
    parsed, written = _parse_targets_as_numbers(values, task)
    is_numeric = parsed.dtype.kind == "f"
    if is_numeric and (
        task == "regression"
        or (task == "auto" and _do_numbers_look_like_quantities(parsed))
    ):
        column = ColumnEncoding(name, "number", format=written)
        if options.standardise:
            known = ColumnValueKind("number", written)
            fitted = ColumnEncoding.fit(
                values[is_in_first_environment], known_kind=known
            )
            column = fitted if fitted.kind == "number" else column
        scaled = column.standardise(parsed, values)
        return torch.from_numpy(scaled), Task.regression(), column
    if written:  # classes keep the names that the file has
        parsed = convert_values_to_text(values).to_numpy(dtype=str)
    elif is_numeric:
        raise_error_for_first_bad_value(
            values,
            np.mod(parsed, 1) != 0,
            "which is neither a whole number nor text",
            "Use --task regression to predict numbers.",
        )
        text = convert_values_to_text(values).to_numpy(dtype=str)
        if (text != convert_array_to_text(parsed)).any():
            parsed = text  # codes such as 01 keep their zero
    classes, indices = np.unique(parsed, return_inverse=True)
    names = tuple(convert_array_to_text(classes).tolist())
    if len(names) < 2:
        raise ValueError(
            f"column {name!r}: the target is {names[0]!r} in every row, but "
            "classification needs two or more classes. If other classes come later, "
            "declare all of them with --classes, such as --classes a,b."
        )
    if len(names) == len(values) >= FEWEST_DIFFERENT_TARGETS:
        raise ValueError(
            f"column {name!r}: the target is different in each of the {len(values):,} "
            "rows, so no class can be learned. Name another column as the target, or "
            "use --task regression if it contains quantities."
        )
    column = ColumnEncoding(name, "category", categories=names)
    return torch.from_numpy(indices.astype(np.int64)), Task(names), column


def guess_numeric_columns(
    source: DataSource, columns_to_skip: Collection[str], target: str = ""
) -> list[str]:
    """Return the columns that look like numbers in the first rows of a table.

    A target whose numbers are written as codes, such as 01 or +1, is no such column: as
    names of classes they stay what they are.
    """
    if source.kind != "table":
        return []
    names, cells = source.read_first_cells(PEEK_ROWS, PEEK_CELLS)
    if len(set(names)) < len(names):
        return []  # refused where columns are checked
    # All columns at once: thousands of them would take long one by one.
    flat = [None if cell is None else str(cell) for cell in cells.ravel()]
    numbers = np.asarray(pd.to_numeric(pd.Series(flat, dtype=object), errors="coerce"))
    is_number = ~np.isnan(numbers.astype(float)).reshape(cells.shape)
    missing = np.zeros(cells.shape, bool)
    for place in np.flatnonzero(~is_number):
        cell = flat[place]
        missing.flat[place] = cell is None or is_word_for_missing_value(cell)
    numeric = (is_number | missing).all(0) & ~missing.all(0)
    if target in names:
        target_place = names.index(target)
        column = cells[:, target_place]
        numeric[target_place] &= not any(CODE.match(str(cell)) for cell in column)
    return [
        name
        for name, is_numeric in zip(names, numeric, strict=True)
        if is_numeric and name and name not in columns_to_skip
    ]


def _parse_targets_as_numbers(
    values: Values, task: TaskName
) -> tuple[NDArray[Any], str]:
    """Return targets as numbers or, if they are classes, also as text.

    With numbers comes how they are written, if that is not as usual.
    """
    text: NDArray[np.str_] = convert_values_to_text(values).to_numpy(dtype=str)
    written = ""
    if task == "classification":
        try:
            numbers = convert_values_to_numbers(values, "number")
        except ValueError:
            return _convert_boolean_words_to_digits(text), ""
    else:
        remedy = "use --task classification"
        kind, written = ColumnValueKind(
            "number", detect_number_or_date_format(values, "number").format
        )
        if task == "auto":
            kind, written = detect_kind_of_column_values(values, remedy)
        if kind == "date":
            raise ValueError(
                f"column {values.name!r}: the target contains dates, which cannot be "
                "predicted. Convert the dates to numbers, such as days since a "
                "start, or use --task classification."
            )
        if kind != "number":
            return _convert_boolean_words_to_digits(text), ""
        numbers = convert_values_to_numbers(values, "number", remedy, written)
    raise_error_for_first_bad_value(
        values, ~np.isfinite(numbers), "which is not a finite number"
    )
    return numbers, written


def _convert_boolean_words_to_digits(text: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return true as 1 and false as 0 if some sources have the words, some the digits.

    Otherwise they would be four classes.
    """
    names = set(map(str.lower, pd.unique(text.astype(object))))
    has_both = bool(names & {"0", "1"}) and bool(names & {"false", "true"})
    if not has_both or not names <= SYNONYMS.keys():
        return text
    return np.where(np.isin(np.char.lower(text), ("1", "true")), "1", "0")


def _do_numbers_look_like_quantities(numbers: Numbers) -> bool:
    """Whether numbers look like quantities rather than the numbers of classes."""
    is_whole = bool((np.mod(numbers, 1) == 0).all())
    return not is_whole or len(np.unique(numbers)) > MOST_CLASSES
