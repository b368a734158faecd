"""The paper's four claims, put to our numbers and to the paper's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Numbers = Mapping[tuple[str, str, str], float]
"""Means by row, learner and split."""

Answer = tuple[bool | None, list[str]]
"""Whether a claim holds, None if that is not known, and the figures behind it."""

PROPOSED = ("c-bvirm", "c-virmg", "c-virmv1")
OTHERS = ("erm", "ewc", "gem", "irmg", "irmv1", "mer", "vcl", "vclc")
LOW = 30.0  # percent; the first claim
CHANCE = 50.0
SLACK = 2.0  # points by which a mean may fall and still be called no worse

STATEMENTS = (
    "ERM, IRMv1, IRMG and all continual-learning references end below 30 % on the test "
    "environment",
    "the three proposed methods end above all of those",
    "environment inference lets one environment suffice, and improves with the number "
    "of examples",
    "BIRM beats IRM and ERM on the structural causal model",
)


def judge_claims(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each claim with whether it `holds` here and `in_paper`, and our figures.

    True, false, or null where the cells do not tell. What the paper does not print,
    as the references beside its learners, does not count. Rows of which nothing was
    measured are named.
    """
    stated = [c for c in cells if c["paper"]]
    ours = {_place(c): c["mean"] for c in stated if c["mean"] is not None}
    printed = {_place(c): c["paper"]["mean"] for c in stated}
    known = set(_rows(ours))
    unknown = [row for row in _rows(printed) if row not in known]
    answers = []
    for statement, rule in zip(STATEMENTS, RULES, strict=True):
        holds, figures = rule(ours)
        if figures and unknown and rule in (below, above):
            figures.append(f"not measured: {', '.join(unknown)}")
        answers.append(
            {
                "claim": statement,
                "holds": holds,
                "in_paper": rule(printed)[0],
                "figures": figures,
            }
        )
    return answers


def below(numbers: Numbers) -> Answer:
    """The first: in every row the highest of the others is below 30 %."""
    tops = {row: top for row in _rows(numbers) if (top := _highest(numbers, row))}
    figures = [
        f"{row}: the highest is {name} with {value:.1f} %"
        for row, (name, value) in tops.items()
    ]
    complete = all((row, name, "test") in numbers for row in tops for name in OTHERS)
    return _answer([value < LOW for _, value in tops.values()], complete), figures


def above(numbers: Numbers) -> Answer:
    """The second: in every row the lowest proposed is above the highest other."""
    verdicts, figures, complete = [], [], True
    for row in _rows(numbers):
        top = _highest(numbers, row)
        found = {n: numbers[row, n, "test"] for n in PROPOSED if _has(numbers, row, n)}
        if not top or not found:
            complete = False
            continue
        name = min(found, key=lambda n: found[n])
        complete = complete and all(_has(numbers, row, n) for n in (*PROPOSED, *OTHERS))
        verdicts.append(found[name] > top[1])
        figures.append(
            f"{row}: {name} {found[name]:.1f} % is the lowest proposed, "
            f"{top[0]} {top[1]:.1f} % the highest other"
        )
    return _answer(verdicts, complete), figures


def inferred(numbers: Numbers) -> Answer:
    """The third: with inference accuracy rises with the examples, to above chance.

    And with the most examples it is higher than without inference.
    """
    verdicts, figures, complete = [], [], True
    for learner in ("irmv1", "c-virmv1"):
        values = _by_size(numbers, f"{learner} after eiil")
        plain = numbers.get((f"{max(values, default=0)} no-eiil", learner, "test"))
        if len(values) < 2 or plain is None:
            complete = False
            continue
        steps = list(values.values())
        rises = all(after >= before - SLACK for before, after in pairwise(steps))
        enough = steps[-1] > max(CHANCE, plain, steps[0])
        verdicts.append(rises and enough)
        told = ", ".join(f"{value:.1f} % ({n:,})" for n, value in values.items())
        figures.append(
            f"{learner} after eiil, by examples: {told}; without eiil {plain:.1f} %"
        )
    return _answer(verdicts, complete), figures


def causal(numbers: Numbers) -> Answer:
    """The fourth: both errors of BIRM are below those of IRM and ERM."""
    kinds, names = ("causal", "noncausal"), ("birm", "irmv1", "erm")
    if not all(("table5", n, k) in numbers for n in names for k in kinds):
        return None, []
    errors = {n: [numbers["table5", n, k] for k in kinds] for n in names}
    holds = all(
        own < other
        for name in names[1:]
        for own, other in zip(errors["birm"], errors[name], strict=True)
    )
    spelled = [f"{n} {a:.3f} and {b:.3f}" for n, (a, b) in errors.items()]
    return holds, [f"causal and noncausal error: {'; '.join(spelled)}"]


RULES: tuple[Callable[[Numbers], Answer], ...] = (below, above, inferred, causal)


def _place(cell: Mapping[str, Any]) -> tuple[str, str, str]:
    return cell["row"], cell["learner"], cell["split"]


def _by_size(numbers: Numbers, learner: str) -> dict[int, float]:
    """Test accuracy by number of examples, for a learner after inference."""
    sizes = sorted(
        int(row.removesuffix(" eiil"))
        for row, name, split in numbers
        if (name, split) == (learner, "test") and row.endswith(" eiil")
    )
    return {size: numbers[f"{size} eiil", learner, "test"] for size in sizes}


def _rows(numbers: Numbers) -> list[str]:
    """The rows in which learners met environments one after another."""
    # IRMv1 and C-VIRMv1 have rows of inferred environments too.
    known = {*PROPOSED, *OTHERS} - {"irmv1", "c-virmv1"}
    found = (row for row, name, split in numbers if name in known and split == "test")
    return list(dict.fromkeys(found))


def _has(numbers: Numbers, row: str, learner: str) -> bool:
    return (row, learner, "test") in numbers


def _highest(numbers: Numbers, row: str) -> tuple[str, float] | None:
    """The highest of the learners that are not proposed, and its test accuracy."""
    found = {n: numbers[row, n, "test"] for n in OTHERS if _has(numbers, row, n)}
    name = max(found, key=lambda n: found[n], default=None)
    return None if name is None else (name, found[name])


def _answer(verdicts: Sequence[bool], complete: bool) -> bool | None:
    """False if any is; true if all are and nothing is missing; else not known."""
    if not all(verdicts):
        return False
    return True if verdicts and complete else None
