"""Whether to trust what a stage has taught: diagnostics of each of its environments."""

from __future__ import annotations

import math

from cirm.environments import Environment, Stage
from cirm.evaluation.diagnostics import compute_diagnostics, thin_environment
from cirm.evaluation.groups import Reference
from cirm.evaluation.measures import Look, predict_examples
from cirm.model.model import Model
from cirm.randomness import Randomness

FAILURES = {
    "constant": "collapse to constant: nearly every row gets the same answer, so that "
    "next to nothing was learned (try a smaller penalty or rate)",
    "shortcut": "collapse to plain training: it answers as a plain model does, and "
    "fails where that one fails (try another learner, or a stronger penalty)",
}
KEPT = (
    "collapse to plain training: it answers as a plain model does, since it kept what "
    "that one goes by (if you know better, --set shortcut=drop drops it)"
)


def diagnosed(
    model: Model, stage: Stage, held: Stage, randomness: Randomness
) -> dict[str, dict[str, float]]:
    """Numbers by name for each environment of a stage, taken on rows that are `held`.

    The reference that infers groups is trained on the stage itself and let go.
    """
    looks = {
        environment.name: _look(
            model, environment, thin_environment(judged, 1), randomness
        )
        for environment, judged in zip(stage, held, strict=True)
    }
    found: dict[str, dict[str, float]] = {name: {} for name in looks}
    for where, metric, values in compute_diagnostics(
        model.learner.likelihood, model.task, looks, last=False
    ):
        if metric == "calibration":  # that of all held rows is measured anyway
            continue
        value = float(values[0])
        for name in found if where == "all" else [where]:
            # Of all together only what no single environment tells.
            if math.isfinite(value) and (where != "all" or len(looks) == 1):
                found[name].setdefault(metric, value)
            elif math.isfinite(value) and metric in ("calibration spread", *FAILURES):
                found[name][metric] = value
    return found


def failures(model: Model, diagnostics: dict[str, float]) -> list[str]:
    """The known failures of a model among its diagnostics, in words."""
    kept = model.explain().get("dropped") is False
    texts = {**FAILURES, "shortcut": KEPT} if kept else FAILURES
    return [text for name, text in texts.items() if diagnostics.get(name) == 1]


def _look(
    model: Model, environment: Environment, held: Environment, randomness: Randomness
) -> Look:
    source = randomness.at("diagnostics", environment.name)
    reference = Reference.of(thin_environment(environment, 1), source)
    x, y = held.take_all(1)
    groups = reference.groups(held, reference.answers(x), y)
    return Look(predict_examples(model.learner, model.state, x), y, groups)
