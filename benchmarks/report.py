"""The page and tables of a benchmark, made of its bench.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.report import blocks
from cirm.report.blocks import Cell
from cirm.report.page import Section, page
from cirm.report.text import join_words

Found = Mapping[str, Any]


class Table(NamedTuple):
    """A table with its heading, what to know about it, and rows of text."""

    heading: str
    note: str
    columns: tuple[str, ...]
    rows: list[list[str]]


def bench_report(found: Found, command: str = "") -> str:
    """The page of a benchmark as one HTML document."""
    sections = [_section(table) for table in tables(found)]
    if command:
        sections.append(Section("How to repeat it", (blocks.command(command),)))
    return page("Benchmark of cirm", _lead(found), sections)


def markdown(found: Found) -> str:
    """All tables as Markdown."""
    lines = [_lead(found), ""]
    for table in tables(found):
        lines += [f"**{table.heading}.** {table.note}", ""]
        lines.append(f"| {' | '.join(table.columns)} |")
        lines.append(f"| :-- {'| --: ' * (len(table.columns) - 1)}|")
        lines += [f"| {' | '.join(row)} |" for row in table.rows]
        lines.append("")
    return "\n".join(lines)


def tables(found: Found) -> list[Table]:
    """The tables of the parts that were measured."""
    makers = {
        "learners": _learners,
        "growth": _growth,
        "start": _start,
        "peers": _peers,
    }
    return [make(found[part]) for part, make in makers.items() if found.get(part)]


def _lead(found: Found) -> str:
    machine = found["machine"]
    quick = " Quick mode: sizes too small to mean anything." if found["quick"] else ""
    return (
        f"{machine['processor']}, one thread; Python {machine['python']}, PyTorch "
        f"{machine['torch']}; commit {found['commit']}. Contenders took turns, "
        f"{found['rounds']} rounds; medians, with quartiles in brackets.{quick}"
    )


def _learners(rows: Sequence[Found]) -> Table:
    note = (
        "Processor time of a step as a multiple of the step's bare matrix products "
        "(floor), and how many times longer the same method takes as it is usually "
        "written (modules, autograd, loops)."
    )
    own = ("learner, work", "a step", "times its floor", "aim")
    columns = (*own, "usual code takes", "aim there")
    return Table("A step of training", note, columns, [_learner(row) for row in rows])


def _learner(row: Found) -> list[str]:
    floor, usual, aim, faster = (row[n] for n in ("floor", "usual", "aim", "faster"))
    return [
        f"{row['learner']}, {row['cell']}",
        _time(row["ours_step"]["median"]),
        _times(floor),
        f"< {aim:g} {_reached(floor['median'] < aim)}" if floor and aim else "",
        _times(usual),
        f"≥ {faster:g} {_reached(usual['median'] >= faster)}" if usual else "",
    ]


def _reached(is_so: bool) -> str:
    return "✓" if is_so else "✗"


def _growth(rows: Sequence[Found]) -> Table:
    note = (
        "Fitted powers: 1 is proportional, 0 not at all. Memory is what a backward "
        "pass keeps, or, for environments so far, what the state holds."
    )
    columns = ("grows with, learner", "sizes", "time", "memory", "longest")
    return Table(
        "Growth",
        note,
        columns,
        [
            [
                f"{row['axis']}, {row['learner']}",
                f"{row['sizes'][0]} to {row['sizes'][-1]}",
                f"{row['time_power']:.2f}",
                f"{row['memory_power']:.2f}",
                _time(max(row["seconds"])),
            ]
            for row in rows
        ],
    )


def _start(rows: Sequence[Found]) -> Table:
    note = "Time on the clock of a new process."
    entries = [
        [
            row["what"],
            _time(row["median"]),
            f"{_time(row['low'])} to {_time(row['high'])}",
        ]
        for row in rows
    ]
    return Table("Cold start", note, ("what", "median", "quartiles"), entries)


def _peers(rows: Sequence[Found]) -> Table:
    data = join_words(list(dict.fromkeys(row["data"] for row in rows if "data" in row)))
    note = "Processor time of learning, the same data, network, epochs and batches"
    note += f"; images: {data}." if data else "."
    columns = ("learner, peer", "ours", "theirs", "theirs is longer", "outcome")
    return Table("Other packages", note, columns, [_peer(row) for row in rows])


def _peer(row: Found) -> list[str]:
    if "failed" in row:
        name = f"{row['learner']}, {row['peer']}"
        return [name, "", "", "", f"failed: {row['failed']}"]
    if "our_accuracy" in row:
        pair = [_mean(row["our_accuracy"]), _mean(row["their_accuracy"])]
        outcome = f"unseen accuracy {pair[0]:.1f} %, theirs {pair[1]:.1f} %"
    else:
        same = row["our_features"] == row["their_features"]
        outcome = "the same features" if same else "other features"
    return [
        f"{row['learner']}, {row['peer']} ({row['version']})",
        _time(row["ours"]["median"]),
        _time(row["theirs"]["median"]),
        _times(row["ratio"]),
        outcome,
    ]


def _section(table: Table) -> Section:
    headings = [
        Cell(name, numeric=place > 0) for place, name in enumerate(table.columns)
    ]
    body = [
        [Cell(text, numeric=place > 0) for place, text in enumerate(row)]
        for row in table.rows
    ]
    return Section(table.heading, (table.note, blocks.table(headings, body)))


def _times(values: Mapping[str, float] | None) -> str:
    if values is None:
        return ""
    return f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
