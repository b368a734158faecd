"""The user's own tables, arrays and images as data sets for experiments."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd

from cirm.data.base import Dataset
from cirm.data.encoded_chunks import read_environment_names
from cirm.data.encoders import open_frozen_encoder
from cirm.data.example_draws import draw_training_examples
from cirm.data.image_files import list_image_files_in_folder
from cirm.data.open_sources import (
    compute_encoder_features_of_sources,
    list_encoder_checksums,
    open_image_folder_source,
    open_npz_source,
)
from cirm.data.periods import (
    divide_sources_into_time_periods,
    list_time_periods_of_sources,
)
from cirm.data.rows import read_rows
from cirm.data.schema import Schema, TaskName
from cirm.data.schema_inference import MOST_CLASSES, ReadOptions, infer_schema
from cirm.data.sources import DataFrameSource, DataSource, ImageFolderSource, Progress
from cirm.data.table_files import TableFileSource
from cirm.environments import Problem, Task
from cirm.randomness import Randomness


@dataclass(frozen=True)
class PreparedEnvironments:
    """The environments of a user's data, and how they were encoded."""

    problem: Problem
    schema: Schema


@dataclass(frozen=True)
class Table(Dataset):
    """Rows of CSV, TSV or Parquet files with a target column.

    The first training environment alone decides how columns are encoded (see
    `cirm.data.columns`) and standardised; only the classes are those of all rows.
    Every seed gets the same environments, unless `examples` or `fraction` is set.
    Messages count rows from 1.

    Args:
        path: A file, or several separated by commas.
        target: The column to predict.
        environment: The column that names the environments, which come in order of
            appearance. Without it each file is one environment, named after the file.
        task: "classification", "regression", or "auto": text, booleans and at most ten
            different whole numbers are classes.
        test: The environments to hold out, separated by commas; empty for the last
            one, "none" for none.
        categories: Columns whose numbers are codes of categories.
        ignore: Columns to ignore.
        standardise: Whether the target of a regression is standardised.
        encoder: A frozen encoder of columns of text, such as minilm; empty for hashed
            words.
        time: The column of dates, if environments are periods in order of time; the
            dates are not used as an input.
        every: How long a period is: "day", "week", "month", "quarter" or "year"; a
            month if empty.
        examples: Rows of each training environment, drawn for each seed; None for all.
        fraction: Largest part of a training environment that is drawn for each seed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "clinics.csv")
        >>> _ = path.write_text("site,age,ill\\na,30,no\\na,50,yes\\nb,40,no\\n")
        >>> table = Table(str(path), target="ill", environment="site")
        >>> problem = table.draw_problem((0,))
        >>> problem.train[0].name, problem.train[0].inputs.tolist()
        ('a', [[-1.0], [1.0]])
        >>> problem.test[0].name
        'b'
    """

    path: str = ""
    target: str = ""
    environment: str = ""
    task: TaskName = "auto"
    test: str = ""
    categories: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    standardise: bool = True
    encoder: str = ""
    time: str = ""
    every: str = ""
    examples: int | None = None
    fraction: float = 1.0

    def __post_init__(self) -> None:
        self._check_examples_and_fraction()

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments of the files; rows are drawn if `examples` is set.

        Columns are encoded and standardised by all rows of the first environment.
        """
        problem = self.prepare_data(n_replicas=len(seeds)).problem
        draws = Randomness(tuple(seeds)).at("table")
        return draw_training_examples(problem, self.examples, self.fraction, draws)

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the files that `path` names."""
        return split_comma_separated_paths(self.path)

    def list_setting_checksums(self) -> dict[str, str]:
        """Return the checksum of the encoder's weights."""
        return list_encoder_checksums(self.encoder, "text")

    def describe(self) -> str:
        """Return the task, the environments, and the encoding of each column."""
        prepared = self.prepare_data()
        schema, problem = prepared.schema, prepared.problem
        lines = [describe_task_and_environments(problem, self.task)]
        if schema.target.kind == "number":
            lines.append(
                f"target: {schema.target.name}, standardised (mean "
                f"{schema.target.centre:.4g}, standard deviation "
                f"{schema.target.scale:.4g})"
            )
        if self.ignore:
            lines.append(f"ignored as requested: {', '.join(self.ignore)}")
        lines.append(
            "columns, with means and categories of the environment "
            f"{problem.train[0].name}:"
        )
        assert schema.treatment.encoding is not None
        return "\n".join([*lines, schema.treatment.encoding.describe()])

    def prepare_data(
        self, frame: pd.DataFrame | None = None, n_replicas: int = 1
    ) -> PreparedEnvironments:
        """Return the encoded files or, in their place, an encoded DataFrame."""
        if not self.target:
            raise ValueError(
                "table: the column to predict is not given. Name it with the setting "
                "target, such as target=outcome."
            )
        sources: list[DataSource] = []
        if frame is not None:
            sources.append(DataFrameSource(frame))
        else:
            paths = parse_paths_of_existing_files(self.path, "table")
            stems = [path.stem for path in paths]
            unique = len(set(stems)) == len(stems)
            sources += [TableFileSource(p, p.stem if unique else str(p)) for p in paths]
            _check_columns_of_files_match(sources)
        sources = divide_sources_into_time_periods(
            sources, self.environment, self.time, self.every
        )
        options = ReadOptions(
            self.target,
            self.environment,
            self.task,
            categories=self.categories,
            ignore=self.ignore,
            standardise=self.standardise,
            encoder=open_frozen_encoder(self.encoder, "text").identity
            if self.encoder
            else None,
        )
        return prepare_environments_of_sources(
            sources, options, self.test, "table", n_replicas
        )


@dataclass(frozen=True)
class Arrays(Dataset):
    """Arrays X [n, ...], y [n] and environment [n] of NPZ files.

    Values are not scaled, except that bytes (uint8) are divided by 255. Every
    seed gets the same environments.

    Args:
        path: A file, or several separated by commas.
        inputs: The name of the array of inputs; empty for a usual one such as X.
        targets: The name of the array of targets; empty for a usual one such as y.
        environment: The name of the array of environments, which come in order of
            appearance; empty for a usual one. Without such an array each file is one
            environment, named after the file.
        task: "classification", "regression", or "auto": text, booleans and at most ten
            different whole numbers are classes.
        test: The environments to hold out, separated by commas; empty for the last
            one, "none" for none.
        gigabytes: The most that the unpacked arrays of a file may take.

    Example:
        >>> import numpy as np, tempfile
        >>> path = Path(tempfile.mkdtemp(), "data.npz")
        >>> np.savez(path, X=np.eye(4), y=[0, 1, 0, 1], environment=list("aabb"))
        >>> problem = Arrays(str(path)).draw_problem((0,))
        >>> [environment.name for environment in (*problem.train, *problem.test)]
        ['a', 'b']
    """

    path: str = ""
    inputs: str = ""
    targets: str = ""
    environment: str = ""
    task: TaskName = "auto"
    test: str = ""
    gigabytes: float = 4.0

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments of the files, the same ones for every seed."""
        names = (self.inputs, self.targets, self.environment)
        sources = [
            open_npz_source(path, names, self.gigabytes, require_targets=True)
            for path in parse_paths_of_existing_files(self.path, "arrays")
        ]
        options = ReadOptions(task=self.task, standardise=False)
        return prepare_environments_of_sources(
            sources, options, self.test, "arrays", len(seeds)
        ).problem

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the files that `path` names."""
        return split_comma_separated_paths(self.path)

    def describe(self) -> str:
        """Return the task, and the environments with their sizes."""
        return describe_task_and_environments(self.draw_problem((0,)), self.task)


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """Images in a folder for each environment, and in it one for each class.

    Images are turned as their camera noted, stretched to a square and freed of
    transparency; 16 bits become 8. Environments, classes and images come in
    alphabetical order. Hidden files and files that are no images are ignored. Every
    seed gets the same environments.

    Args:
        path: The folder.
        side: The width and height of the images in pixels; None for 32, or for what
            the encoder was made for.
        channels: 1 for grey images, 3 for coloured ones.
        test: The environments to hold out, separated by commas; empty for the last
            one, "none" for none.
        encoder: A frozen encoder that turns images into features, such as
            efficientnet-lite0; empty for pixels.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a/cat", "a/dog", "b/cat"):
        ...     (folder / name).mkdir(parents=True)
        ...     Image.new("RGB", (9, 9)).save(folder / name / "1.png")
        >>> ImageFolder(str(folder), side=8).draw_problem((0,)).train[0].features
        (3, 8, 8)
    """

    has_images: ClassVar[bool] = True

    path: str = ""
    side: int | None = None
    channels: int = 3
    test: str = ""
    encoder: str = ""

    def __post_init__(self) -> None:
        if self.side is not None and self.side < 1:
            raise ValueError(
                "images: side, the height and width of images in pixels, is "
                f"{self.side}. Use 1 or more."
            )
        if self.channels not in (1, 3):
            raise ValueError(
                f"images: channels is {self.channels}. Use 1 for grey or 3 for colour."
            )

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return the environments of the folder, the same ones for every seed."""
        source, table = self._open_folder()
        classes = tuple(sorted(set(table["class"])))
        options = ReadOptions(classes=classes)
        return prepare_environments_of_sources(
            [source], options, self.test, "images", len(seeds)
        ).problem

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the images below `path`."""
        return tuple(list_image_files_in_folder(Path(self.path))) if self.path else ()

    def list_setting_checksums(self) -> dict[str, str]:
        """Return the checksum of the encoder's weights."""
        return list_encoder_checksums(self.encoder, "images", self.side)

    def fill_feature_cache(self, progress: Progress) -> None:
        """Compute the features of all images, if there is an encoder."""
        if self.encoder:
            compute_encoder_features_of_sources([self._open_folder()[0]], progress)

    def describe(self) -> str:
        """Return the classes, and the environments with their numbers of images."""
        source, table = self._open_folder()
        counts = dict(Counter(table["environment"]))
        held_out = choose_test_environments(list(counts), self.test, "images")
        task = Task(tuple(sorted(set(table["class"]))))
        return describe_environment_sizes(task, source.shape, counts, held_out)

    def _open_folder(self) -> tuple[ImageFolderSource, pd.DataFrame]:
        """Return the folder, and the environment and class of each image."""
        folder = Path(self.path)
        if not self.path or not folder.exists():
            raise FileNotFoundError(
                f"images: there is no folder {self.path!r}. Set path to the folder of "
                "the images, such as path=photos."
            )
        if not folder.is_dir():
            raise ValueError(
                f"images: {self.path!r} is a file. Set path to a folder of images."
            )
        source = open_image_folder_source(
            folder, self.channels, self.side, self.encoder
        )
        if source.depth != 3:
            raise ValueError(
                f"{source.where}: the images in this folder are not sorted by "
                "environment and class. Put each image into a folder "
                "ENVIRONMENT/CLASS/."
            )
        used = {parent for image in source.images for parent in image.parents}
        for path in sorted([*folder.glob("[!._]*"), *folder.glob("[!._]*/[!._]*")]):
            if path.is_dir() and path not in used:
                raise ValueError(
                    f"folder {str(path)!r}: the folder contains no images. Add "
                    "images, or remove the folder."
                )
        (table,) = source.iterate_frames()
        if table["class"].nunique() < 2:
            raise ValueError(
                f"{source.where}: all images are of the class {table['class'][0]!r}, "
                "but two or more classes are needed. Add a folder for another class."
            )
        return source, table


def prepare_environments_of_sources(
    sources: Sequence[DataSource],
    options: ReadOptions,
    test_setting: str,
    dataset_key: str,
    n_replicas: int,
) -> PreparedEnvironments:
    """Return the environments of the sources; those of `test_setting` are held out.

    The first training environment decides how columns are encoded.
    """
    first = ""
    if test_setting not in ("", "none"):  # else the first environment is never held out
        column = options.environment or sources[0].environment
        names = list_time_periods_of_sources(sources) or list(
            dict.fromkeys(
                name
                for source in sources
                for frame in source.iterate_frames()
                for name in read_environment_names(frame, column, source.name)
            )
        )
        held_out = choose_test_environments(names, test_setting, dataset_key)
        first = next(name for name in names if name not in held_out)
    schema = infer_schema(sources, options, first_environment=first).schema
    rows = read_rows(sources, schema)
    held_out = choose_test_environments(list(rows.rows), test_setting, dataset_key)
    environments = [
        rows.build_environment(name, own, schema, n_replicas)
        for name, own in rows.rows.items()
    ]
    problem = Problem(
        train=tuple(e for e in environments if e.name not in held_out),
        test=tuple(e for e in environments if e.name in held_out),
    )
    return PreparedEnvironments(problem, schema)


def choose_test_environments(
    names: Sequence[str], test_setting: str, dataset_key: str
) -> tuple[str, ...]:
    """Return the environments to hold out: those of `test_setting`, or the last one."""
    if test_setting == "none" or (not test_setting and len(names) == 1):
        return ()
    if not test_setting:
        return (names[-1],)
    chosen = (
        [test_setting]
        if test_setting in names
        else [part.strip() for part in test_setting.split(",")]
    )
    for name in chosen:
        if name not in names:
            raise ValueError(
                f"{dataset_key}: there is no environment {name!r}, which the setting "
                "`test` names. Set `test` to none, or to one or more of "
                f"{', '.join(names)}."
            )
    if len(set(chosen)) == len(names):
        raise ValueError(
            f"{dataset_key}: test={test_setting!r} holds out every environment. Leave "
            "at least one environment to train on."
        )
    return tuple(dict.fromkeys(chosen))


def describe_task_and_environments(problem: Problem, task: TaskName) -> str:
    """Return the task, whether it was detected, and the environments."""
    environments = [*problem.train, *problem.test]
    return describe_environment_sizes(
        environments[0].task,
        environments[0].features,
        {e.name: len(e) for e in environments},
        [e.name for e in problem.test],
        " (detected)" if task == "auto" else "",
    )


def describe_environment_sizes(
    task: Task,
    input_shape: tuple[int, ...],
    rows_by_environment: Mapping[str, int],
    test_names: Collection[str],
    note: str = "",
) -> str:
    """Return lines on the task, the inputs, and the environments' sizes."""
    lines = [task.kind + note]
    if task.classes:
        more = ", ..." if len(task.classes) > MOST_CLASSES else ""
        listed = ", ".join(task.classes[:MOST_CLASSES]) + more
        lines[0] += f", {len(task.classes)} classes: {listed}"
    lines.append(f"inputs: {' x '.join(map(str, input_shape))}")
    sizes = {
        name: f"{name} ({count} examples)"
        for name, count in rows_by_environment.items()
    }
    for title, held in (("train", False), ("test", True)):
        group = [text for name, text in sizes.items() if (name in test_names) == held]
        lines.append(f"{title}: {', '.join(group) or 'none'}")
    return "\n".join(lines)


def split_comma_separated_paths(path: str) -> tuple[Path, ...]:
    """Return the paths of a setting: one, or several separated by commas."""
    parts = [path] if os.path.isfile(path) else path.split(",")
    return tuple(Path(part.strip()) for part in parts if part.strip())


def parse_paths_of_existing_files(path: str, dataset_key: str) -> tuple[Path, ...]:
    """Return the files that a setting names, after a check that they exist."""
    paths = split_comma_separated_paths(path)
    if not paths:
        raise ValueError(
            f"{dataset_key}: no file is given. Set path to one or more files, such as "
            "path=clinics.csv."
        )
    for file in paths:
        if not os.path.exists(file):
            raise FileNotFoundError(
                f"{dataset_key}: there is no file {str(file)!r}. Check the path."
            )
        if file.is_dir():
            raise ValueError(
                f"{dataset_key}: {str(file)!r} is a folder. Set path to a file."
            )
    return paths


def _check_columns_of_files_match(sources: Sequence[DataSource]) -> None:
    """Refuse a file whose columns are not those of the first."""
    first: list[str] = []
    for source in sources if len(sources) > 1 else ():
        columns = list(next(source.iterate_frames()).columns)
        first = first or columns
        absent = [repr(name) for name in first if name not in columns]
        new = [repr(name) for name in columns if name not in first]
        if absent or new:
            parts = [f"lacks {', '.join(absent)}"] if absent else []
            parts += [f"also has {', '.join(new)}"] if new else []
            raise ValueError(
                f"{source.where}: the columns of this file differ from those of "
                f"{sources[0].where}: this file {' and '.join(parts)}. Give all files "
                "the same columns."
            )
