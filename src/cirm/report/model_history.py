"""Tables and sentences on a model's history: environments, files, earlier versions.

They are made from plain values, those that the commands print as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cirm.report.table import ReportColumn, ReportTable
from cirm.report.text import format_bytes

Content = Mapping[str, Any]
DIGITS = 12  # of a digest in a table; JSON has all of them


def build_model_history_table(history: Sequence[Content]) -> ReportTable:
    """Build the table of environments: when they were learned, and from what."""
    metric = _choose_metric_of_history_entry(history[-1])
    rows = [
        [
            str(entry["stage"] + 1),
            entry["name"],
            entry["time"][:16].replace("T", " "),
            f"{entry['rows']:,}",
            _format_score(entry["metrics_before"].get(metric)),
            _format_score(entry["metrics_after"].get(metric)),
            ", ".join(f"{n} {d[:DIGITS]}" for n, d in entry["files"].items()) or "none",
            entry["fingerprint"],
        ]
        for entry in history
    ]
    columns: list[ReportColumn | str] = [
        ReportColumn("stage"),
        ReportColumn("place"),
        ReportColumn("learned on"),
        "rows",
        f"{metric} before training there",
        f"{metric} after",
        ReportColumn("files, SHA-256"),
        ReportColumn("fingerprint of the rows"),
    ]
    return ReportTable("History", columns, rows)


def build_earlier_versions_table(versions: Sequence[Content]) -> ReportTable:
    """Build the table of the earlier versions that a model file keeps."""
    rows = [
        [
            version["version"],
            version["time"][:16].replace("T", " "),
            ", ".join(version["environments"]),
            version["adapted_to"],
            format_bytes(version["bytes"]),
        ]
        for version in versions
    ]
    headings = ("version", "learned on", "places", "adapted to")
    columns: list[ReportColumn | str] = [*map(ReportColumn, headings), "size"]
    return ReportTable("Earlier versions, kept in the file", columns, rows)


def describe_scores_on_past_environments(entry: Content) -> str:
    """Say how well the environments before an update are predicted now."""
    past = entry["past"]
    if not past:
        return (
            "The scores at earlier places after this update are not known, because "
            "the model keeps no data from the earlier places."
        )
    if _choose_metric_of_history_entry(entry) == "accuracy":
        before, after = (f"{past[name]:.1f} %" for name in ("before", "after"))
        name = "accuracy"
    else:
        before, after = (f"{past[name]:.4g}" for name in ("before", "after"))
        name = "root mean squared error"
    rows = f"{past['rows']:,.0f}"
    kept = f"measured on {rows} rows that the model keeps"
    estimated = f"estimated from the statistics that the model keeps of {rows} rows"
    return (
        f"At the earlier places, the {name} was {before} before this update and is "
        f"{after} now, {kept if past['stored'] else estimated}."
    )


def _choose_metric_of_history_entry(entry: Content) -> str:
    return "accuracy" if "accuracy" in entry["metrics_after"] else "rmse"


def _format_score(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
