"""Table 5: coefficients of a linear structural causal model, and its variants."""

from __future__ import annotations

from typing import Any

from cirm.experiments.paper.numbers import figure, table
from cirm.experiments.trials import (
    Experiment,
    Figure,
    Layout,
    Line,
    Row,
    Trial,
    Wanted,
)

LEARNERS = {
    "erm": "ERM",
    "icp": "ICP",
    "irmv1": "IRM",
    "birm": "BIRM",
    "eiil": "EIIL(IRM)",
}
"""The paper's names; `eiil` is IRMv1 on inferred environments."""

KINDS = {"causal": "Causal MSE", "noncausal": "Noncausal MSE"}
TABLE5: dict[str, Any] = {"dimension": 8, "noise": "target"}
BLOCK = 5  # seeds that learn side by side; inference takes one at a time

INFERENCE: dict[str, Any] = {
    "hidden": (),
    "batch": 0,
    "epochs": 3000,
    "reference_rate": 1e-2,
}
SELECTION = "values of this project, not tuned (the paper gives none)"

# Means of IRM's published runs, 200 rows each: ERM, ICP and IRM, causal and other.
PUBLISHED: dict[tuple[bool, bool, bool], tuple[float, ...]] = {
    (False, False, False): (0.0091, 0.0090, 0.020, 0.000, 0.0029, 0.0024),
    (False, False, True): (0.0092, 0.0090, 0.846, 0.001, 0.0041, 0.0035),
    (False, True, False): (0.821, 0.821, 1.000, 0.804, 0.257, 0.333),
    (False, True, True): (0.823, 0.822, 0.986, 0.103, 0.257, 0.333),
    (True, False, False): (0.0189, 0.0179, 0.970, 0.000, 0.0152, 0.0142),
    (True, False, True): (0.0203, 0.0182, 1.000, 0.000, 0.0190, 0.0159),
    (True, True, False): (0.774, 0.774, 1.000, 0.000, 0.215, 0.340),
    (True, True, True): (0.779, 0.774, 1.000, 0.000, 0.220, 0.340),
}
"""By hidden variable, heteroskedastic noise and scrambled features."""


def table5() -> Experiment:
    """The paper's set-up, then the eight of the original IRM experiments."""
    printed = table("table5")
    numbers = {
        (key, kind): figure(printed[key][kind]) for key in LEARNERS for kind in KINDS
    }
    first = _row("table5", "the paper's set-up", TABLE5, numbers, {})
    others = [_variant(*setup) for setup in PUBLISHED]
    lines = [
        Line((name,), tuple((first.name, key, kind) for kind in KINDS))
        for key, name in LEARNERS.items()
    ]
    columns = tuple((heading,) for heading in KINDS.values())
    layout = Layout("Squared error of the coefficients", ("",), columns, tuple(lines))
    return Experiment(
        name="table5",
        title="Table 5: the linear structural causal model",
        seeds=5,
        rows=(first, *others),
        layouts=(layout, _variants(others)),
    )


def _variants(rows: list[Row]) -> Layout:
    """A line per set-up; a pair of columns per learner."""
    lines = [
        Line(
            (row.name,),
            tuple((row.name, key, kind) for key in LEARNERS for kind in KINDS),
        )
        for row in rows
    ]
    columns = tuple((name, kind) for name in LEARNERS.values() for kind in KINDS)
    title = "Variants of the original IRM experiments, beside its published figures"
    return Layout(title, ("set-up",), columns, tuple(lines))


def _variant(hidden: bool, hetero: bool, scramble: bool) -> Row:
    kind = "hetero" if hetero else "homo"
    flags = {"hidden": hidden, "scrambled": scramble}
    name = ", ".join([kind, *(word for word, is_so in flags.items() if is_so)])
    data = {
        "dimension": 10,
        "noise": f"{kind}skedastic",
        "hidden": hidden,
        "scramble": scramble,
    }
    values = iter(PUBLISHED[hidden, hetero, scramble])
    pairs = [(key, kind) for key in ("erm", "icp", "irmv1") for kind in KINDS]
    elsewhere = {pair: Figure(next(values)) for pair in pairs}
    return _row(name, name, data, {}, elsewhere)


def _row(
    name: str,
    title: str,
    data: dict[str, Any],
    printed: dict[tuple[str, str], Figure | None],
    elsewhere: dict[tuple[str, str], Figure],
) -> Row:
    trials = tuple(_trial(key, data) for key in LEARNERS)
    wanted = [
        Wanted(key, kind, "coefficients", printed.get(pair), elsewhere.get(pair))
        for key in LEARNERS
        for kind in KINDS
        for pair in [(key, kind)]
    ]
    return Row(name, title, trials, tuple(wanted))


def _trial(key: str, data: dict[str, Any]) -> Trial:
    inferred = key == "eiil"
    return Trial(
        label=key,
        learner="irmv1" if inferred else key,
        dataset="scm",
        data=data,
        order="joint",
        selection=SELECTION,
        preset="scm",
        infer="eiil" if inferred else "",
        inference=INFERENCE if inferred else {},
        block=1 if inferred else BLOCK,
    )
