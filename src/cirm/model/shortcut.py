"""Whether a model dropped what a plain one goes by, in words and with the evidence."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.disagreement import UNLIKELY
from cirm.learners.cirm.learner import CIRM
from cirm.learners.cirm.state import State
from cirm.learners.cirm.values import STRONG
from cirm.model.model import Model

GROUPS = "right", "wrong"
LEAST = 0.1  # of a hidden direction that a column must have to be named


def decided(model: Model) -> dict[str, Any]:
    """The decision of the learner `cirm`, why, and the counts; {} of any other.

    `rows` are those judged, by whether the reference is right or wrong there, and
    `plain` and `invariant` how many of a hundred each model gets right. `strength` is
    that of the evidence between environments: for classes the probability that they
    disagree so much by chance, for values the squared slope of the misses over noise.
    `columns` are those of a table that are hidden from the invariant model, by part.
    """
    learner = model.learner
    if not isinstance(learner, CIRM):
        return {}
    dropped = bool(learner.drops(model.state)[0])
    said: dict[str, Any] = {
        "dropped": dropped,
        "verdict": f"{'dropped' if dropped else 'kept'} what a plain model goes by",
        "strength": _rounded(_strength(model)),
        "rows": {},
        "plain": {},
        "invariant": {},
        "columns": _columns(model),
    }
    if learner.classes:
        said |= _rates(model.state.tally[0])
    if learner.shortcut != "auto":
        said["evidence"] = f"This was asked for: shortcut={learner.shortcut}."
    elif learner.classes:
        sure = bool(learner.sure(model.state)[0])
        judged = _judged(learner, model.state, said)
        said["evidence"] = f"{judged} {_apart(model, sure)}"
    else:
        said["evidence"] = _sloping(model, said["strength"])
    if dropped and said["columns"]:
        named = [f"{name} {100 * part:.0f}%" for name, part in said["columns"].items()]
        said["evidence"] += f" Hidden, by columns: {', '.join(named)}."
    return said


def _strength(model: Model) -> float:
    """For classes the least probability of a comparison, times their number."""
    evidence = model.state.evidence[0].tolist()
    if not model.task.classes:
        return float(evidence[0])
    return float(min(1.0, min(evidence[:2]) * max(1.0, evidence[2])))


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def _columns(model: Model) -> dict[str, float]:
    """Columns with a tenth or more of the hidden directions, by part."""
    encoding, directions = model.schema.treatment.encoding, model.state.directions[0]
    if encoding is None or not directions.any():
        return {}
    squares = shortcuts.basis(directions).square().sum((0, 1))
    widths = [len(column.features) for column in encoding.columns]
    parts = [float(part.sum() / squares.sum()) for part in squares.split(widths)]
    found = dict(zip((column.name for column in encoding.columns), parts, strict=True))
    known = {name: part for name, part in found.items() if part >= LEAST}
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def _rates(tally: Tensor) -> dict[str, dict[str, float]]:
    """Rows and percentages of both models from counts [3, 2]."""
    counts, *hits = tally.tolist()
    filled = [(name, n) for name, n in enumerate(counts) if n]
    rates = [
        {GROUPS[place]: 100 * hit[place] / n for place, n in filled} for hit in hits
    ]
    rows = {GROUPS[place]: n for place, n in filled}
    return {"rows": rows, "plain": rates[0], "invariant": rates[1]}


def _judged(learner: CIRM, state: State, said: dict[str, Any]) -> str:
    """What the models got right, on rows that they had not learned from."""
    if "wrong" not in said["rows"]:
        return "Its small reference, the easiest predictor, erred on no row."
    shares = dict(zip(GROUPS, shortcuts.fair(learner.classes).tolist(), strict=True))
    means = [
        sum(shares[name] * rate for name, rate in said[kind].items())
        for kind in ("plain", "invariant")
    ]
    where = [f"{said['rows'].get(name, 0):,.0f} rows" for name in GROUPS]
    wrong = [said[kind]["wrong"] for kind in ("plain", "invariant")]
    margin = 100 * float(learner.margin(state)[0])
    needed = "be better by more than" if margin > 0 else "not be worse by more than"
    return (
        f"The reference is right on {where[0]} and wrong on {where[1]} that were not "
        "learned from. Where it is wrong, the plain model is right in "
        f"{wrong[0]:.1f} % and the one without it in {wrong[1]:.1f} %; weighted so "
        f"that the reference says nothing, in {means[0]:.1f} and {means[1]:.1f} %. To "
        f"drop it, the second must {needed} {abs(margin):.1f} points."
    )


def _apart(model: Model, sure: bool) -> str:
    """How far environments disagree on what the inputs tell."""
    _, _, comparisons, taught = model.state.evidence[0].tolist()
    if len(model.visits) < 2:
        return "There is no other environment yet to compare with."
    if not comparisons:
        return "There are too few rows, or other classes, to compare environments."
    chance = _strength(model)
    often = f"{chance:.1g}" if chance > 1e-30 else "below 1e-30"
    if chance >= UNLIKELY:
        return (
            "Environments do not disagree on what the inputs tell: by chance they "
            f"would as much with probability {often} ({UNLIKELY:g} is evidence)."
        )
    about = "the easiest predictor."
    if not sure:
        about = "what is not clear, so this does not count."
    elif taught:
        about = "something else than the easiest predictor, now the reference."
    return (
        "Environments disagree on what the inputs tell, by chance with probability "
        f"{often}: on {about}"
    )


def _sloping(model: Model, strength: float) -> str:
    """How far a model of values misses in a direction when it meets new data."""
    if len(model.visits) < 2:
        return "There is no other environment yet to compare with."
    return (
        "Where environments differ, the squared slope of the plain model's misses is "
        f"{strength:.1f} times its noise ({STRONG:.0f} or more is evidence, and so are "
        "columns without which their regressions agree)."
    )
