"""Whether a model dropped what a plain one goes by, in words and with the evidence."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cirm.learners.cirm import CERTAIN, CIRM, MARGIN
from cirm.learners.cirm_values import STRONG
from cirm.model.value import Model

GROUPS = "right", "wrong"


def decided(model: Model) -> dict[str, Any]:
    """The decision of the learner `cirm`, why, and the counts; {} of any other.

    `rows` are those judged, by whether the reference is right or wrong there, and
    `plain` and `invariant` how many of a hundred each model gets right.
    """
    learner = model.learner
    if not isinstance(learner, CIRM):
        return {}
    dropped = bool(learner.drops(model.state)[0])
    said: dict[str, Any] = {
        "dropped": dropped,
        "verdict": f"{'dropped' if dropped else 'kept'} what a plain model goes by",
        "strength": round(float(model.state.evidence[0, 0]), 2),
        "rows": {},
        "plain": {},
        "invariant": {},
    }
    if learner.classes:
        said |= _rates(model.state.tally[0])
    if learner.shortcut != "auto":
        said["evidence"] = f"This was asked for: shortcut={learner.shortcut}."
    elif learner.classes:
        said["evidence"] = f"{_judged(said)} {_apart(model, said['strength'])}"
    else:
        said["evidence"] = _sloping(model, said["strength"])
    return said


def _rates(tally: Tensor) -> dict[str, dict[str, float]]:
    """Rows and percentages of both models from counts [3, 2]."""
    counts, *hits = tally.tolist()
    filled = [(name, n) for name, n in enumerate(counts) if n]
    rates = [
        {GROUPS[place]: 100 * hit[place] / n for place, n in filled} for hit in hits
    ]
    rows = {GROUPS[place]: n for place, n in filled}
    return {"rows": rows, "plain": rates[0], "invariant": rates[1]}


def _judged(said: dict[str, Any]) -> str:
    """What the models got right, on rows that they had not learned from."""
    if "wrong" not in said["rows"]:
        return "Its small reference, the easiest predictor, erred on no row."
    means = [sum(said[kind].values()) / 2 for kind in ("plain", "invariant")]
    needed = 0.0 if said["strength"] >= CERTAIN else 100 * MARGIN
    where = [f"{said['rows'].get(name, 0):,.0f} rows" for name in GROUPS]
    wrong = [said[kind]["wrong"] for kind in ("plain", "invariant")]
    return (
        f"The easiest predictor is right on {where[0]} and wrong on {where[1]} that "
        "were not learned from. Where it is wrong, the plain model is right in "
        f"{wrong[0]:.1f} % and the one without it in {wrong[1]:.1f} %; both cases "
        f"counting the same, in {means[0]:.1f} and {means[1]:.1f} %, and to drop it "
        f"the second must be more than {needed:.0f} points better."
    )


def _apart(model: Model, strength: float) -> str:
    """How far environments disagree on the reference."""
    if len(model.visits) < 2:
        return "There is no other environment yet to compare with."
    enough = "which counts" if strength >= CERTAIN else "which does not count"
    return (
        f"Between environments its accuracy differs by {strength:.1f} standard errors, "
        f"{enough} as evidence ({CERTAIN:.0f} do)."
    )


def _sloping(model: Model, strength: float) -> str:
    """How far a model of values misses in a direction when it meets new data."""
    if len(model.visits) < 2:
        return "There is no other environment yet to compare with."
    return (
        "Where environments differ, the squared slope of the plain model's misses is "
        f"{strength:.1f} times its noise ({STRONG:.0f} or more is evidence)."
    )
