"""A model, and how good it is, as text on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from cirm.report.model import HEADINGS

SHOWN = 12  # columns in a list of the most relied on


def learned(content: Mapping[str, Any], detected: bool, first: bool) -> None:
    """What a fit or an update found and learned."""
    if first:
        typer.echo(task_line(content, detected))
        listed("columns, as the first environment has them", content["columns"])
    last = content["environments"][-1]["stage"]
    environments([e for e in content["environments"] if e["stage"] == last])
    kept_line(content)
    relied(content)
    shortcut(content)
    notes(content["environments"][-1]["notes"])


def described(content: Mapping[str, Any]) -> None:
    """All that is known of a model."""
    typer.echo(task_line(content))
    settings = ", ".join(f"{k}={v}" for k, v in content["settings"].items())
    typer.echo(f"learner {content['learner']}: {content['method']}")
    typer.echo(f"settings: {settings}; seed={content['seed']}")
    typer.echo(f"network: {network_line(content['network'])}")
    environments(content["environments"])
    ledger(content["kept"])
    kept_line(content)
    listed("columns", content["columns"])
    relied(content)
    shortcut(content)
    for visit in content["environments"]:
        notes([f"{visit['name']}: {note}" for note in visit["notes"]])


def judged(content: Mapping[str, Any]) -> None:
    """How good a model is."""
    groups = {"all rows": {"": {"rows": content["rows"], **content["overall"]}}}
    groups["environment"] = content["environments"]
    if "classes" in content:
        groups["class"] = content["classes"]
    scores(groups | content["groups"])
    if "within_interval" in content:
        share = content["within_interval"]
        typer.echo(f"within the 90 % interval: {share:.1f} % of the rows")
    typer.echo(content["verdict"])
    notes(content["notes"])


def task_line(content: Mapping[str, Any], detected: bool = False) -> str:
    """What is predicted."""
    text = f"target {content['target']}: {content['task']}"
    text += " (detected)" if detected else ""
    classes = content["classes"]
    if classes:
        more = ", ..." if len(classes) > 10 else ""
        text += f", {len(classes)} classes: {', '.join(classes[:10])}{more}"
    return text


def network_line(network: Mapping[str, Any]) -> str:
    """A network in words."""
    if network["kind"] == "mlp":
        return "-".join(map(str, network["sizes"])) + f", {network['activation']}"
    return f"your own, {network['name']}"


def environments(visits: Sequence[Mapping[str, Any]]) -> None:
    """The environments that were learned, and what was measured."""
    table = _table("environments")
    for heading in ("environment", "learned", "rows", "held out"):
        table.add_column(heading, justify="left" if heading[0] in "el" else "right")
    names = list(dict.fromkeys(n for v in visits for n in (*v["before"], *v["after"])))
    for name in names:
        table.add_column(HEADINGS.get(name, name), justify="right")
    for visit in visits:
        for when in ("before", "after"):
            if not visit[when]:
                continue
            head = [
                visit["name"],
                visit["when"][:16].replace("T", " "),
                f"{visit['rows']:,}",
            ]
            head.append(f"{visit['held_out']:,}")
            if when == "before":
                head = [f"{visit['name']}, on arrival", "", f"{visit['rows']:,}", ""]
            numbers = [_number(visit[when].get(name)) for name in names]
            table.add_row(*head, *numbers)
    _print(table)
    diagnostics(visits)


def diagnostics(visits: Sequence[Mapping[str, Any]]) -> None:
    """The diagnostics after each environment."""
    names = list(dict.fromkeys(n for v in visits for n in v["diagnostics"]))
    if not names:
        return
    table = _table("diagnostics")
    table.add_column("environment")
    for name in names:
        table.add_column(name, justify="right")
    for visit in visits:
        numbers = [_number(visit["diagnostics"].get(name)) for name in names]
        table.add_row(visit["name"], *numbers)
    _print(table)


def scores(groups: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Scores by groups of rows."""
    table = _table("scores")
    table.add_column("rows of")
    first = next(iter(next(iter(groups.values())).values()))
    for name in first:
        table.add_column(HEADINGS.get(name, name), justify="right")
    for what, members in groups.items():
        for value, numbers in members.items():
            cells = [
                f"{numbers[n]:,.0f}" if n == "rows" else _number(numbers.get(n))
                for n in first
            ]
            table.add_row(f"{what} {value}".strip(), *cells)
    _print(table)


def ledger(kept: Mapping[str, Mapping[str, int]]) -> None:
    """What is kept of past data, by part."""
    table = _table("what is kept of past data")
    for heading in ("part", "raw examples", "numbers", "bytes"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for name, entry in kept.items():
        counts = (entry["examples"], entry["parameters"], entry["bytes"])
        table.add_row(name, *(f"{count:,}" for count in counts))
    _print(table)


def kept_line(content: Mapping[str, Any]) -> None:
    """What is kept of past data, in a line."""
    typer.echo(
        f"kept of past data: {content['raw_examples']:,} raw examples, "
        f"{content['bytes']:,} bytes in all"
    )


def relied(content: Mapping[str, Any]) -> None:
    """The columns that the model relies on, and those it turned away from."""
    found = list(content["relies_on"].items())
    if not found:
        return
    total = sum(value for _, value in found) or 1.0
    parts = [f"{name} {value / total:.0%}" for name, value in found[:SHOWN]]
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    typer.echo(f"relies on: {', '.join(parts)}{more}")
    if away := content["turned_away_from"]:
        parts = [
            f"{name} (to {left:.0%} of its first part)" for name, left in away.items()
        ]
        typer.echo(f"turned away from, since the first environment: {', '.join(parts)}")


def shortcut(content: Mapping[str, Any]) -> None:
    """Whether the model dropped what a plain one goes by, and why."""
    if said := content["shortcut"]:
        typer.echo(f"{said['verdict']}. {said['evidence']}")


def listed(title: str, columns: Sequence[Mapping[str, Any]]) -> None:
    """Columns with their treatment."""
    if columns:
        typer.echo(f"{title}:")
        for column in columns:
            typer.echo(f"  {column['name']}: {column['treatment']}")


def notes(texts: Sequence[str]) -> None:
    """Remarks, on the standard error."""
    for text in dict.fromkeys(texts):
        typer.echo(f"note: {text}", err=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(title: str) -> Any:  # noqa: ANN401  a rich table
    from rich.table import Table

    return Table(title=title, title_justify="left", box=None, header_style="bold")


def _print(table: Any) -> None:  # noqa: ANN401
    from rich.console import Console

    Console(width=None if Console().is_terminal else 160).print(table)
