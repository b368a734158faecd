"""The columns of the board: data sets, with the orders in which places arrive."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cirm.data import PUBLIC
from cirm.data.planted import parse_folder_target_and_files
from cirm.runs.plans import DrawnDataset, create_and_draw_dataset

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
FEATURES = {"encoder": "efficientnet-lite0", "side": "128", "examples": "300"}
"""Of PACS: images as large as they are stored, others of each domain for each seed."""

TABLE_ROWS = {"examples": "1000", "fraction": "0.8"}
"""What each seed draws of a place of a public table: as many rows as of images, and at
most four fifths, so that the seeds of small places differ as well."""

QUICK = {"source": "digits", "examples": "300"}
PUBLIC_TABLES = {
    "breast-cancer": "Rotterdam to gbsg",
    "gas-turbine": "gas turbine",
    "brain-age": "brain age",
    "gas-drift": "gas drift",
    "gusto": "GUSTO",
}
"""Public tables by key, those with fewer places first; which place is unseen is the
data set's own choice."""

ACCURACY = "accuracy"
RANKED = {"gusto": "average precision"}
"""Columns with few positives, where the accuracy of all learners is that of the most
frequent class: what is shown instead."""

IMAGES, PACS, TABLES = "Images", "PACS", "Tables"

OWN_TABLE = "table"  # the key of the data sets that the user gives
NO_SWEEP = {"sweep": ""}  # further unseen places, which the board does not show


DISPLAY_GROUPS = {
    "colored": IMAGES,
    "shortcuts": IMAGES,
    "rotated": IMAGES,
    "pacs": PACS,
}
"""In which of its tables the board shows a data set; the others are tables."""


class EnvironmentOrderVariant(NamedTuple):
    """One order in which the places of a data set arrive.

    Attributes:
        data: Settings of the data set, as text.
        order: Order of the environments, as `cirm.run` takes it.
    """

    data: dict[str, str]
    order: str = "sequential"


@dataclass(frozen=True)
class LeaderboardDataset:
    """A data set of the board.

    Attributes:
        name: Its name on the command line.
        title: Its name on the board.
        dataset: Key of the data set.
        variants: The orders; the scores of all of them count alike.
        rule: Key of the rule by which settings are chosen.
        measure: What is shown of a classification: accuracy or average precision.
    """

    name: str
    title: str
    dataset: str
    variants: tuple[EnvironmentOrderVariant, ...]
    rule: str = "worst-group"
    measure: str = ACCURACY

    @property
    def group(self) -> str:
        """The table of the board in which it is shown: images, PACS or tables."""
        return DISPLAY_GROUPS.get(self.dataset, TABLES)


@dataclass(frozen=True, eq=False)
class PreparedLeaderboardDataset:
    """A column whose data are there.

    Attributes:
        column: The column.
        data: The data set of each variant, drawn once.
    """

    column: LeaderboardDataset
    data: tuple[DrawnDataset, ...]

    @property
    def missing_part(self) -> str:
        """What a public data set lacks here, if it is not the whole."""
        drawn = self.data[0]
        return drawn.description if drawn.dataset in PUBLIC else ""

    @property
    def task(self) -> str:
        """Classification or regression."""
        return self.data[0].problem.train[0].task.kind


def list_leaderboard_datasets(
    quick: bool = False, user_tables: Iterable[str] = (), examples: int = 0
) -> list[LeaderboardDataset]:
    """List the columns of the board.

    Args:
        quick: Whether to use embedded data only, in small numbers.
        user_tables: The user's own tables as FOLDER:TARGET, with one file for each
            place, the last of which is unseen.
        examples: Number of examples of each place, drawn anew for each seed; 0 for the
            number of each column.

    Raises:
        ValueError: If a table is not of this form, or two of them have the same name.
        FileNotFoundError: If there is no such folder.
    """
    columns = list(
        _list_quick_leaderboard_datasets()
        if quick
        else _list_full_leaderboard_datasets()
    )
    for table in user_tables:
        names = {column.name for column in columns}
        columns.append(_build_dataset_of_user_table(table, names))
    if examples:
        columns = [_set_number_of_examples(column, examples) for column in columns]
    return columns


def prepare_leaderboard_datasets(
    columns: Sequence[LeaderboardDataset], progress: Callable[[str, float], None]
) -> tuple[list[PreparedLeaderboardDataset], dict[str, str]]:
    """Draw the data of all columns once; return also why some are left out."""
    prepared, absent = [], {}
    known: set[str] = set()  # data sets whose features need not be computed again
    for column in columns:
        try:
            data = []
            for variant in column.variants:
                show = None if column.dataset in known else progress
                data.append(create_and_draw_dataset(column.dataset, variant.data, show))
                known.add(column.dataset)
            prepared.append(PreparedLeaderboardDataset(column, tuple(data)))
        except (FileNotFoundError, ValueError) as error:
            if column.dataset == OWN_TABLE:
                raise
            absent[column.title] = str(error)
    return prepared, absent


def _list_quick_leaderboard_datasets() -> Iterator[LeaderboardDataset]:
    colored = {**QUICK, **NO_SWEEP}
    yield _build_leaderboard_dataset(
        "digits-b01", "coloured digits", "colored", colored
    )
    corner = {**QUICK, "kind": "corner"}
    yield _build_leaderboard_dataset(
        "digits-corner", "digits with corner", "shortcuts", corner
    )
    table = {"plant": "numeric", "examples": "1000"}
    yield _build_leaderboard_dataset("table", "table", "planted", table)
    regression = {**table, "task": "regression"}
    yield _build_leaderboard_dataset("regression", "regression", "planted", regression)


def _list_full_leaderboard_datasets() -> Iterator[LeaderboardDataset]:
    """Yield the columns in the order in which they are run, quick ones first."""
    mnist = {"source": "mnist", "examples": "1000"}
    colored = {**mnist, **NO_SWEEP}
    yield _build_leaderboard_dataset("mnist-b01", "MNIST b01", "colored", colored)
    for kind in ("corner", "stripes"):
        data = {**mnist, "kind": kind}
        yield _build_leaderboard_dataset(kind, f"MNIST {kind}", "shortcuts", data)
    background = {**colored, "scheme": "b11"}
    yield _build_leaderboard_dataset("mnist-b11", "MNIST b11", "colored", background)
    fashion = {**colored, "source": "fashion-mnist"}
    yield _build_leaderboard_dataset("fashion", "Fashion b01", "colored", fashion)
    yield _build_leaderboard_dataset(
        "rotated", "rotated MNIST", "rotated", mnist, "next"
    )
    for domain in DOMAINS:
        yield _build_pacs_leaderboard_dataset(domain)
    for name, title in PUBLIC_TABLES.items():
        column = _build_leaderboard_dataset(name, title, name, TABLE_ROWS, "next")
        yield replace(column, measure=RANKED.get(name, ACCURACY))


def _build_leaderboard_dataset(
    name: str, title: str, dataset: str, data: dict[str, str], rule: str = "worst-group"
) -> LeaderboardDataset:
    return LeaderboardDataset(
        name, title, dataset, (EnvironmentOrderVariant(data),), rule
    )


def _set_number_of_examples(
    column: LeaderboardDataset, n_examples: int
) -> LeaderboardDataset:
    """Return a column with so many examples of each place in all of its orders."""
    number = {"examples": str(n_examples)}
    variants = (v._replace(data={**v.data, **number}) for v in column.variants)
    return replace(column, variants=tuple(variants))


def _build_pacs_leaderboard_dataset(unseen: str) -> LeaderboardDataset:
    """Return PACS with one domain unseen and the others in three orders."""
    others = [domain for domain in DOMAINS if domain != unseen]
    orders = [[*others[start:], *others[:start]] for start in range(len(others))]
    variants = tuple(
        EnvironmentOrderVariant({"test": unseen, "train": ",".join(order), **FEATURES})
        for order in orders
    )
    title = f"PACS {unseen.partition('_')[0]}"
    return LeaderboardDataset(f"pacs-{unseen}", title, "pacs", variants, "next")


def _build_dataset_of_user_table(
    text: str, known_names: Container[str]
) -> LeaderboardDataset:
    """Return the user's own table, given as FOLDER:TARGET, with a name of its own."""
    folder, target, files = parse_folder_target_and_files(text)
    home, path = Path(folder).resolve(), ",".join(map(str, files))
    name = home.name
    if name in known_names:
        name = f"{home.parent.name}/{home.name}"
    if name in known_names:
        raise ValueError(
            f"--table: {text!r} would be called {name!r}, as another data set is. "
            "Rename its folder."
        )
    rule = "next" if len(files) > 2 else "held-out"
    data = {"path": path, "target": target, **TABLE_ROWS}
    return _build_leaderboard_dataset(name, name, OWN_TABLE, data, rule)
