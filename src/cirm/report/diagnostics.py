"""Diagnostics: whether a model can be trusted, judged without unseen environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.records import Record, ScoreRecord
from cirm.report import page
from cirm.report.markup import EscapedHtml
from cirm.report.page import PageSection
from cirm.report.summary import average_values_over_seeds, group_records_by_learner
from cirm.report.table import (
    ReportTable,
    Row,
    build_mean_and_std_cell,
    render_table_as_html,
)

SPLIT = "diagnostic"
COLUMNS = {
    "worst group": "worst group",
    "agreement": "agreement with the reference model, %",
    "calibration": "calibration error, %",
    "calibration spread": "spread of the calibration error between groups",
    "slope penalty": "slope penalty",
}
"""What tables show for all environments together, with the headings."""

GROUP_COLUMNS = {
    ("worst group", "group score"): "score (environments: of the worst group)",
    ("reference",): "score of the reference model",
    ("agreement",): "agreement with the reference model, %",
    ("calibration", "group calibration"): "calibration error, %",
    ("slope penalty",): "slope penalty",
}
"""What tables show for environments and groups, which have metrics of their own."""

FAILURES = {
    "constant": (
        "Collapse to a constant",
        "examples of every class get the same prediction, so the model has learned "
        "little. Try a smaller penalty or learning rate (--set), where the learner has "
        "one.",
    ),
}
"""The known failures: name, meaning, and what to try."""

EXPLANATION = (
    "The reference is a small plain model, fitted to each environment, that learns the "
    "easiest features. Examples are grouped by their class and by whether the "
    "reference is right (in regression: by its error). A model that generalises does "
    "as well in the worst group as in the others, is calibrated in every environment "
    "and group, and does not merely repeat the predictions of the reference."
)


class LearnerDiagnostics(NamedTuple):
    """A learner's diagnostics after the last stage, for all environments together.

    `numbers` are statistics over seeds by metric; `failed` counts the seeds with each
    failure, `succeeded` those without any, out of `seeds`. `trained` says that the
    numbers come from training examples, because there were no others.
    """

    numbers: dict[str, dict[str, Any]]
    failed: dict[str, int]
    succeeded: int
    seeds: int
    trained: bool


def collect_diagnostics_by_learner(
    records: Sequence[Record],
) -> dict[str, LearnerDiagnostics]:
    """Collect the diagnostics of each learner that has some."""
    return {
        learner: _build_learner_diagnostics(
            [row for row in rows if row.environment == "all"]
        )
        for learner, rows in _select_last_diagnostic_scores(records).items()
    }


def summarise_diagnostics_by_learner(
    records: Sequence[Record],
) -> dict[str, dict[str, Any]]:
    """Return the diagnostics of each learner as plain values, for summary.json."""
    return {
        name: one._asdict()
        for name, one in collect_diagnostics_by_learner(records).items()
    }


def describe_failed_diagnostics(
    diagnoses: Mapping[str, LearnerDiagnostics],
) -> list[str]:
    """Return a sentence for each failure: where it happened and what it means."""
    sentences = []
    for key, (name, meaning) in FAILURES.items():
        learners = [
            f"{learner} in {one.failed[key]} of {one.seeds} seeds"
            for learner, one in diagnoses.items()
            if one.failed[key]
        ]
        if learners:
            sentences.append(f"{name} ({', '.join(learners)}): {meaning}")
    return sentences


def describe_examples_of_diagnostics(
    diagnoses: Mapping[str, LearnerDiagnostics],
) -> str:
    """Say which examples the diagnostics come from."""
    if any(one.trained for one in diagnoses.values()):
        return (
            "Measured on the training examples, because the data set has no other "
            "examples of the training environments. This is too optimistic for a "
            "model that overfits; use `cirm select` to hold out examples."
        )
    return "Measured on new examples of the training environments."


def build_learner_diagnostics_table(
    diagnoses: Mapping[str, LearnerDiagnostics], metric: str
) -> ReportTable:
    """Build the table of diagnostics, a row for each learner."""
    unit = "%" if metric == "accuracy" else "squared error"
    headings = [f"worst group, {unit}", *list(COLUMNS.values())[1:]]
    rows: list[Row] = []
    for learner, one in diagnoses.items():
        cells = [
            build_mean_and_std_cell(
                one.numbers.get(n), _find_metric_with_same_number_format(n, metric)
            )
            for n in COLUMNS
        ]
        rows.append([learner, *cells, f"{one.succeeded} of {one.seeds}"])
    columns = ["learner", *headings, "seeds without failure"]
    return ReportTable("Diagnostics, without the unseen environments", columns, rows)


def build_learner_diagnostics_section(
    records: Sequence[Record], metric: str
) -> PageSection | None:
    """Build the section of a page; None without diagnostics."""
    diagnoses = collect_diagnostics_by_learner(records)
    if not diagnoses:
        return None
    content: list[str | ReportTable] = [
        f"{EXPLANATION} {describe_examples_of_diagnostics(diagnoses)}",
        build_learner_diagnostics_table(diagnoses, metric),
        page.render_notes_as_list(describe_failed_diagnostics(diagnoses)),
        *(
            _render_scores_by_group(learner, rows, metric)
            for learner, rows in _select_last_diagnostic_scores(records).items()
        ),
    ]
    return PageSection("Can the models be trusted?", content)


def _select_last_diagnostic_scores(
    records: Sequence[Record],
) -> dict[str, list[ScoreRecord]]:
    """The diagnostic scores of each learner that has some, after its last stage."""
    selected = {}
    for learner, scores in group_records_by_learner(records, ScoreRecord).items():
        rows = [score for score in scores if score.split.startswith(SPLIT)]
        last = max((row.stage for row in rows), default=0)
        if rows:
            selected[learner] = [row for row in rows if row.stage == last]
    return selected


def _build_learner_diagnostics(rows: list[ScoreRecord]) -> LearnerDiagnostics:
    metrics: dict[str, list[ScoreRecord]] = {}
    for row in rows:
        metrics.setdefault(row.metric, []).append(row)
    failed = {
        key: {row.seed for row in metrics.pop(key, []) if row.value > 0.5}
        for key in FAILURES
    }
    seeds = {row.seed for row in rows}
    return LearnerDiagnostics(
        {
            name: average_values_over_seeds(scores)._asdict()
            for name, scores in metrics.items()
        },
        {key: len(some) for key, some in failed.items()},
        len(seeds.difference(*failed.values())),
        len(seeds),
        any(row.split != SPLIT for row in rows),
    )


def _render_scores_by_group(
    learner: str, scores: list[ScoreRecord], metric: str
) -> EscapedHtml:
    """A learner's environments and groups, in a block that opens with a click."""
    rows: list[Row] = []
    for place in dict.fromkeys(s.environment for s in scores if s.environment != "all"):
        here = [score for score in scores if score.environment == place]
        cells = [
            build_mean_and_std_cell(
                average_values_over_seeds(s for s in here if s.metric in names),
                _find_metric_with_same_number_format(names[0], metric),
            )
            for names in GROUP_COLUMNS
        ]
        rows.append([place, *cells])
    columns = ["environment: group", *GROUP_COLUMNS.values()]
    table = render_table_as_html(ReportTable("Environments and groups", columns, rows))
    return page.render_collapsible_html_block(
        f"{learner}: environments and groups", table
    )


def _find_metric_with_same_number_format(diagnostic: str, metric: str) -> str:
    """The metric whose digits a diagnostic is written with."""
    if diagnostic in ("worst group", "reference"):
        return metric
    return "error" if diagnostic == "slope penalty" else "accuracy"
