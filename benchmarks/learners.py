"""Our learners beside the floor of their products and beside usual code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks import cells, floors, usual, usual_variational
from benchmarks.cells import Cell, Ours
from benchmarks.timing import Tell, Work, interleaved, ratio, spread
from cirm.learners import get_preset, list_settings

Floor = Callable[[tuple[int, ...], int, int], Work]


@dataclass(frozen=True)
class Entry:
    """A learner in a cell: its preset, its floor, the usual code, and what we aim at.

    `aim` is the most that it may take of its floor, `faster` how many times faster
    than the usual code it should be.
    """

    key: str
    cell: Callable[[bool], Cell]
    preset: str = "paper"
    floor: Floor | None = None
    usual: Callable[[Cell, Any], object] | None = None
    aim: float | None = None
    faster: float = 1.0
    settings: dict[str, Any] = field(default_factory=dict)
    past: bool = True


def plain(sizes: tuple[int, ...], rows: int, samples: int) -> Work:
    """The floor of a learner that believes in one network."""
    return floors.plain(sizes, rows)


HEAD = {"constraint": "head", "rho0": 10.0, "rho1": 10.0}
ENTRIES = (
    Entry("erm", cells.table1, floor=plain, usual=usual.erm, aim=1.6),
    Entry("irmv1", cells.table1, floor=plain, usual=usual.irmv1, aim=1.6, faster=2),
    Entry("ewc", cells.whole, floor=plain, usual=usual.ewc, aim=1.6),
    Entry("gem", cells.table1, usual=usual.gem),
    Entry("mer", cells.once, usual=usual.mer, faster=5),
    Entry(
        "vcl", cells.table1, floor=floors.sums, usual=usual_variational.vcl,
        aim=2, faster=2,
    ),
    Entry(
        "virmv1", cells.table1, floor=floors.sums, usual=usual_variational.virmv1,
        aim=2, faster=2,
    ),
    Entry(
        "bvirm", cells.table1, floor=floors.constrained,
        usual=usual_variational.bvirm, aim=3, faster=2,
    ),
    Entry("irmv1", cells.pair, floor=plain, usual=usual.irmv1, aim=1.6, faster=2),
    Entry(
        "birm", cells.pair, usual=usual_variational.birm, faster=3, settings=HEAD,
    ),
    Entry(
        "irmv1", cells.full, preset="irm", floor=plain, usual=usual.irmv1,
        aim=1.6, faster=1, past=False,
    ),
    Entry(
        "virmv1", cells.full, preset="eiil", floor=floors.weights,
        usual=usual_variational.virmv1, aim=2, faster=1, past=False,
    ),
)  # fmt: skip


def measured(quick: bool, rounds: int, tell: Tell) -> list[dict[str, Any]]:
    """Each entry's time a step, and how it stands to its floor and to usual code."""
    found = []
    for entry in ENTRIES:
        cell = entry.cell(quick)
        tell(f"{entry.key}, {cell.name}")
        found.append(compared(entry, cell, rounds))
    return found


def compared(entry: Entry, cell: Cell, rounds: int) -> dict[str, Any]:
    """One entry, measured in a cell."""
    settings = settings_of(entry)
    works: dict[str, Work] = {}
    learner = cell.learner(entry.key, entry.preset, **entry.settings)
    works["ours"] = Ours(cell, learner, entry.past)
    if entry.floor is not None:
        step = entry.floor(cell.sizes, cell.rows, settings.get("samples", 1))
        works["floor"] = partial(repeated, step, cell.steps)
    if entry.usual is not None:
        works["usual"] = partial(entry.usual, cell, settings)
    times = interleaved(works, rounds)
    row: dict[str, Any] = {
        "learner": entry.key,
        "cell": cell.name,
        "title": cell.title,
        "aim": entry.aim,
        "faster": entry.faster,
        "floor": None,
        "usual": None,
    }
    for name, values in times.items():
        row[f"{name}_step"] = spread([value / cell.steps for value in values])
    if "floor" in times:
        row["floor"] = ratio(times["ours"], times["floor"])
    if "usual" in times:
        row["usual"] = ratio(times["usual"], times["ours"])
    return row


def settings_of(entry: Entry) -> dict[str, Any]:
    """All settings of an entry's learner as plain values."""
    defaults = {name: default for name, _, default in list_settings(entry.key)}
    return {**defaults, **get_preset(entry.key, entry.preset), **entry.settings}


def repeated(step: Work, times: int) -> None:
    """A step, so many times."""
    for _ in range(times):
        step()
