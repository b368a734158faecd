"""Diagnostics in words: whether a model can be trusted, without an unseen place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cirm.records import Record, Score
from cirm.report import blocks
from cirm.report.blocks import Cell
from cirm.report.markup import Markup
from cirm.report.page import Section
from cirm.report.summary import by_learner, over_seeds
from cirm.report.text import format_statistic

SPLIT = "diagnostic"
COLUMNS = {
    "worst group": "worst group",
    "agreement": "like the reference, %",
    "calibration": "calibration error, %",
    "calibration spread": "its spread",
    "slope penalty": "slope penalty",
}
"""What tables show of all environments together, with its heading."""

PLACES = {
    ("worst group", "group score"): "score, of an environment its worst group's",
    ("reference",): "the reference's own",
    ("agreement",): "like the reference, %",
    ("calibration", "group calibration"): "calibration error, %",
    ("slope penalty",): "slope penalty",
}
"""What tables show of environments and groups; these have metrics of their own."""

FAILURES = {
    "constant": (
        "Collapse to constant",
        "nearly every example gets the same answer, so that little was learned. A "
        "smaller penalty or rate, or a later anneal, may help.",
    ),
    "shortcut": (
        "Collapse to ERM",
        "the answers are those of a plain model, and fail where that one fails. If "
        "what a plain model goes by does not hold elsewhere, these will not either; "
        "another learner, or a stronger penalty, may help.",
    ),
}
"""The known failures: their names, what they mean and what to do."""

EXPLAINED = (
    "A small reference, a plain model of each environment, takes what is easiest to "
    "learn. Examples are grouped by their class and by whether it is right, values by "
    "how far it is off. A model that holds does as well in the worst group as "
    "elsewhere, is as sure as it is right in every environment and group, and does not "
    "just answer as the reference does."
)


class Found(NamedTuple):
    """A learner's diagnostics after the last stage, all environments together.

    `numbers` are statistics over seeds by metric; `failed` counts the seeds of each
    failure, out of `seeds`, and `succeeded` those of neither. `trained` says that
    training examples had to serve.
    """

    numbers: dict[str, dict[str, Any]]
    failed: dict[str, int]
    succeeded: int
    seeds: int
    trained: bool


def diagnosed(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """The diagnostics of each learner that has some, as plain values."""
    return {name: found._asdict() for name, found in found_in(records).items()}


def found_in(records: Sequence[Record]) -> dict[str, Found]:
    """The diagnostics of each learner that has some."""
    return {
        learner: _found([row for row in rows if row.environment == "all"])
        for learner, rows in _last(records).items()
    }


def remarks(found: Mapping[str, Found]) -> list[str]:
    """The failures that happened, to whom and what they mean; none if all did well."""
    said = []
    for key, (name, meaning) in FAILURES.items():
        whom = [
            f"{learner} in {one.failed[key]} of {one.seeds} seeds"
            for learner, one in found.items()
            if one.failed[key]
        ]
        if whom:
            said.append(f"{name} ({', '.join(whom)}): {meaning}")
    return said


def basis(found: Mapping[str, Found]) -> str:
    """Which examples the numbers come from."""
    if any(one.trained for one in found.values()):
        return (
            "Measured on the training examples, for want of others: what was learned "
            "by heart looks better than it is. `cirm select` holds a part out."
        )
    return "Measured on further examples of the training environments."


def headings(metric: str) -> list[str]:
    """The headings of the rows of `row_of`."""
    worst = f"worst group, {'%' if metric == 'accuracy' else 'squared error'}"
    return [worst, *list(COLUMNS.values())[1:], "seeds that did well"]


def row_of(found: Found, metric: str) -> list[str]:
    """A learner's numbers as text, and the share of seeds that succeeded."""
    nothing = over_seeds(())._asdict()
    texts = [
        format_statistic(found.numbers.get(name, nothing), kind(name, metric))
        for name in COLUMNS
    ]
    return [*texts, f"{found.succeeded} of {found.seeds}"]


def trust(records: Sequence[Record], metric: str) -> Section | None:
    """The section of a page; none without diagnostics."""
    found = found_in(records)
    if not found:
        return None
    rows = [_cells(name, row_of(one, metric)) for name, one in found.items()]
    said = remarks(found)
    content = [
        f"{basis(found)} {EXPLAINED}",
        blocks.table(_cells("learner", headings(metric)), rows),
        *([blocks.listing(said)] if said else []),
        *(_places(name, rows, metric) for name, rows in _last(records).items()),
    ]
    return Section("Can they be trusted?", tuple(content))


def _last(records: Sequence[Record]) -> dict[str, list[Score]]:
    """The diagnostic scores of each learner that has some, after its last stage."""
    found = {}
    for learner, scores in by_learner(records, Score).items():
        rows = [score for score in scores if score.split.startswith(SPLIT)]
        last = max((row.stage for row in rows), default=0)
        if rows:
            found[learner] = [row for row in rows if row.stage == last]
    return found


def _found(rows: list[Score]) -> Found:
    metrics: dict[str, list[Score]] = {}
    for row in rows:
        metrics.setdefault(row.metric, []).append(row)
    lost = {
        key: {row.seed for row in metrics.pop(key, []) if row.value > 0.5}
        for key in FAILURES
    }
    seeds = {row.seed for row in rows}
    return Found(
        {name: over_seeds(some)._asdict() for name, some in metrics.items()},
        {key: len(some) for key, some in lost.items()},
        len(seeds.difference(*lost.values())),
        len(seeds),
        any(row.split != SPLIT for row in rows),
    )


def _places(learner: str, rows: list[Score], metric: str) -> Markup:
    """A learner's environments and groups, folded away."""
    lines = []
    for place in dict.fromkeys(r.environment for r in rows if r.environment != "all"):
        own = [row for row in rows if row.environment == place]
        texts = [
            format_statistic(
                over_seeds(row for row in own if row.metric in names)._asdict(),
                kind(names[0], metric),
            )
            for names in PLACES
        ]
        lines.append(_cells(place, texts))
    table = blocks.table(_cells("environment: group", list(PLACES.values())), lines)
    return blocks.folded(f"{learner}: environments and groups", table)


def kind(name: str, metric: str) -> str:
    """How a number is written: as the learner's score, as percent, or as an error."""
    if name in ("worst group", "reference"):
        return metric
    return "error" if name == "slope penalty" else "accuracy"


def _cells(name: str, texts: Sequence[str]) -> list[Cell]:
    numbers = (Cell(blocks.number(text), numeric=True) for text in texts)
    return [Cell(name), *numbers]
