"""The page and the tables of a benchmark, made from its bench.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cirm.report.page import PageSection, render_html_page, render_shell_command
from cirm.report.table import ReportTable, render_table_as_markdown
from cirm.wording import join_words

Results = Mapping[str, Any]


def build_benchmark_page(results: Results, command: str = "") -> str:
    """Build the page of a benchmark as one HTML document."""
    sections = [
        PageSection(table.title, [*table.notes, replace(table, notes=())])
        for table in build_benchmark_tables(results)
    ]
    if command:
        sections.append(PageSection("Command", [render_shell_command(command)]))
    return render_html_page("Benchmark of cirm", _write_lead(results), sections)


def render_benchmark_markdown(results: Results) -> str:
    """Render all tables of a benchmark in Markdown."""
    tables = map(render_table_as_markdown, build_benchmark_tables(results))
    return "\n".join([_write_lead(results), "", *tables])


def build_benchmark_tables(results: Results) -> list[ReportTable]:
    """Build the tables of the parts that were measured."""
    builders = {
        "tables": _build_tables_table,
        "adapt": _build_adapt_table,
        "learners": _build_learner_table,
        "growth": _build_growth_table,
        "start": _build_start_table,
        "peers": _build_peer_table,
    }
    return [
        build(results[part]) for part, build in builders.items() if results.get(part)
    ]


def _write_lead(results: Results) -> str:
    machine = results["machine"]
    quick = (
        " Quick mode: the sizes are too small for meaningful numbers."
        if results["quick"]
        else ""
    )
    return (
        f"{machine['processor']}, one thread; Python {machine['python']}, PyTorch "
        f"{machine['torch']}; commit {results['commit']}. The contenders took turns in "
        f"{results['rounds']} rounds; the numbers are medians, with quartiles in "
        f"brackets.{quick}"
    )


def _build_table(
    title: str, note: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> ReportTable:
    return ReportTable(title, headings, rows, [note])


def _build_tables_table(results: Sequence[Results]) -> ReportTable:
    note = (
        "Processor time of fitting a table of 29 numbers in memory, also as a multiple "
        "of gradient boosting's (scikit-learn); accuracy on other rows of the same "
        "kind; and rows predicted in a second of processor time."
    )
    headings = ("contender, rows", "fit", "multiple of boosting", "accuracy, %")
    rows = [
        [
            f"{one['contender']}, {one['rows']:,}",
            _format_time(one["fit"]["median"]),
            f"{one['ratio']['median']:.2g}",
            f"{one['accuracy']:.1f}",
            f"{round(one['rows_per_second'], -4):,.0f}",
        ]
        for one in results
    ]
    return _build_table("Tables", note, (*headings, "predicts, rows / s"), rows)


def _build_adapt_table(results: Sequence[Results]) -> ReportTable:
    note = (
        "Processor time of adapting the default learner to unlabelled rows of a new "
        "place, also as a multiple of predicting them; 28 columns, one of which "
        "changes from place to place."
    )
    headings = ("rows", "adapt", "multiple of predicting")
    rows = [
        [
            f"{one['rows']:,}",
            _format_time(one["adapt"]["median"]),
            f"{one['ratio']['median']:.2g}",
        ]
        for one in results
    ]
    return _build_table("Adapting", note, headings, rows)


def _build_learner_table(results: Sequence[Results]) -> ReportTable:
    note = (
        "Processor time of a training step, as a multiple of the time of its matrix "
        "products alone (the floor), and how many times longer the same method takes "
        "in the usual style (modules, autograd, loops)."
    )
    headings = ["learner, task", "time of a step", "multiple of the floor", "target"]
    headings += ["usual style takes", "target for that"]
    rows = []
    for one in results:
        floor, usual, aim, faster = (
            one[n] for n in ("floor", "usual", "aim", "faster")
        )
        rows.append(
            [
                f"{one['learner']}, {one['cell']}",
                _format_time(one["ours_step"]["median"]),
                _format_quartiles(floor),
                f"< {aim:g} {_choose_mark(floor['median'] < aim)}"
                if floor and aim
                else "",
                _format_quartiles(usual),
                f"≥ {faster:g} {_choose_mark(usual['median'] >= faster)}"
                if usual
                else "",
            ]
        )
    return _build_table("A training step", note, headings, rows)


def _build_growth_table(results: Sequence[Results]) -> ReportTable:
    note = (
        "Exponents fitted to time and memory: 1 means proportional growth, 0 no "
        "growth. Memory is what a backward pass keeps or, for earlier environments, "
        "what the state holds."
    )
    headings = ("grows with, learner", "sizes", "time", "memory", "longest")
    rows = [
        [
            f"{one['axis']}, {one['learner']}",
            f"{one['sizes'][0]} to {one['sizes'][-1]}",
            f"{one['time_power']:.2f}",
            f"{one['memory_power']:.2f}",
            _format_time(max(one["seconds"])),
        ]
        for one in results
    ]
    return _build_table("Growth", note, headings, rows)


def _build_start_table(results: Sequence[Results]) -> ReportTable:
    rows = [
        [
            one["what"],
            _format_time(one["median"]),
            f"{_format_time(one['low'])} to {_format_time(one['high'])}",
            _format_time(one["processor"]),
        ]
        for one in results
    ]
    note = "Wall-clock time of a new process, and its processor time."
    headings = ("command", "median", "quartiles", "processor time")
    return _build_table("Cold start", note, headings, rows)


def _build_peer_table(results: Sequence[Results]) -> ReportTable:
    data = join_words(list(dict.fromkeys(r["data"] for r in results if "data" in r)))
    note = (
        "Processor time of training with the same data, network, epochs and batches"
        + (f"; images: {data}." if data else ".")
    )
    headings = ("learner, package", "ours", "theirs", "ratio", "result")
    rows = [_build_peer_row(one) for one in results]
    return _build_table("Other packages", note, headings, rows)


def _build_peer_row(result: Results) -> list[str]:
    if "failed" in result:
        name = f"{result['learner']}, {result['peer']}"
        return [name, "", "", "", f"failed: {result['failed']}"]
    if "our_accuracy" in result:
        ours, theirs = (
            sum(values) / len(values)
            for values in (result["our_accuracy"], result["their_accuracy"])
        )
        outcome = f"unseen accuracy {ours:.1f} %, theirs {theirs:.1f} %"
    else:
        is_same = result["our_features"] == result["their_features"]
        outcome = "the same features" if is_same else "other features"
    return [
        f"{result['learner']}, {result['peer']} ({result['version']})",
        _format_time(result["ours"]["median"]),
        _format_time(result["theirs"]["median"]),
        _format_quartiles(result["ratio"]),
        outcome,
    ]


def _choose_mark(is_reached: bool) -> str:
    return "✓" if is_reached else "✗"


def _format_quartiles(values: Mapping[str, float] | None) -> str:
    if values is None:
        return ""
    return f"{values['median']:.2f} ({values['low']:.2f} to {values['high']:.2f})"


def _format_time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
