"""How often the warnings of `fit`, `update` and `evaluate` are right, and appear.

Each warning is tried on tables with and without what it warns of. Simulated tables know
the truth; where it is about a model, it is measured on 20,000 further rows. Real tables
are those that come with scikit-learn, split into places at random.

    python -m benchmarks.warning_rates
    python -m benchmarks.warning_rates --stress FOLDER

The second form reads the results of `cirm stress --out FOLDER`, whose cells have a
shortcut, or as the oracle's have none: did the learner say that something changes?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.metrics import roc_auc_score

from cirm import evaluate, fit, predict, update
from cirm.data.planted import PlantedShortcutTable
from cirm.data.sources import DataFrameSource
from cirm.evaluation.measures import TOTAL, UNSTABLE
from cirm.model.explain import describe_model
from cirm.model.model import Model
from cirm.records import Record, RunRecord, ScoreRecord
from cirm.runs.archive import load_job_archive, unpack_job_records

ERM = {"hidden": (8,), "epochs": 40, "rate": 0.02}
FRESH = 20_000  # rows that show how good a model really is
Rng = np.random.Generator
Trial = tuple[bool, bool]
"""Whether the warning appeared, and whether what it says is true."""


class Case(NamedTuple):
    """A warning: where it appears, what it says, and a function that tries it."""

    command: str
    title: str
    try_once: Callable[[Rng, bool], list[Trial]]
    cost: int = 1  # each trial takes so many times as long as the quickest


def draw_table(
    rng: Rng, rows: int, flip: float = 0.5, positives: float = 0.5, strength: float = 1
) -> pd.DataFrame:
    """Draw rows: three stable columns, and a scanner that contradicts the outcome."""
    y = rng.random(rows) < positives
    x = rng.normal(size=(rows, 3)) + strength * np.outer(y, [1.0, 0.7, 0.0])
    frame = pd.DataFrame(x, columns=["lactate", "crp", "age"])
    frame["age"] = 60 + 12 * frame["age"]
    shown = np.where(rng.random(rows) < flip, ~y, y)
    frame["scanner"] = np.where(shown, "new", "old")
    return frame.assign(outcome=np.where(y, "yes", "no"))


def load_shuffled_sklearn_table(rng: Rng) -> tuple[pd.DataFrame, str]:
    """Return the shuffled rows of a table of scikit-learn, and its target."""
    name = rng.choice(["breast_cancer", "wine", "iris", "diabetes"])
    frame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    return frame.sample(frac=1, random_state=int(rng.integers(2**31))), "target"


def fit_quickly(frame: pd.DataFrame, target: str = "outcome", **options: Any) -> Model:  # noqa: ANN401
    """Fit plain training to a table, named a."""
    return fit(
        DataFrameSource(frame.reset_index(drop=True), "a"),
        target,
        **{"learner": "erm", "settings": ERM, **options},
    )


def list_notes(model: Model) -> str:
    """Return the notes of the last environment as one text."""
    return "\n".join(model.history[-1].notes)


def try_leak(rng: Rng, is_real: bool) -> list[Trial]:
    """A column that was derived from the target, or only tells it well."""
    leaks = bool(rng.integers(2))
    if is_real:
        frame, target = load_shuffled_sklearn_table(rng)
    else:
        frame, target = draw_table(rng, int(rng.choice([40, 200, 1000]))), "outcome"
    codes = pd.factorize(frame[target])[0].astype(float)
    noise = rng.normal(size=len(frame))
    # At 0.2 standard deviations, 1 in 100 to 1 in 2,000 rows is on the wrong side.
    noisy = codes + rng.choice([0.2, 0.3, 0.5]) * noise
    copies = codes if codes.max() < 9 else 3 * frame[target] - 7
    frame["result"] = copies if leaks else noisy
    frame["result"] = (
        frame["result"].map("r{:.0f}".format)
        if (leaks and codes.max() < 9 and rng.integers(2))
        else frame["result"]
    )
    notes = list_notes(fit_quickly(frame, target, settings={**ERM, "epochs": 1}))
    return [("'result' alone determines the target" in notes, leaks)]


UNITS = (1000.0, 0.001, 100.0, 10.0, 1 / 2.2046, 2.2046, 0.0555, 18.016)


def try_unit(rng: Rng, is_real: bool) -> list[Trial]:
    """A column in another unit, or at a place where columns merely differ."""
    changes = bool(rng.integers(2))
    if is_real:
        frame, target = load_shuffled_sklearn_table(rng)
        first, later = frame[: len(frame) // 2], frame[len(frame) // 2 :].copy()
        columns = [c for c in frame.columns if c != target and frame[c].nunique() > 20]
        column = str(rng.choice(columns))
    else:
        names = [f"c{n}" for n in range(8)]
        centre, scale = rng.uniform(20, 200, 8), rng.uniform(2, 15, 8)
        rows = rng.normal(size=(800, 8))
        shift, stretch = 0.4 * rng.normal(size=8), np.exp(0.15 * rng.normal(size=8))
        rows[400:] = rows[400:] * stretch + shift
        frame = pd.DataFrame(centre + scale * rows, columns=names)
        frame["outcome"] = np.where(rows[:, 0] + rng.normal(size=800) > 0, "yes", "no")
        first, later, target, column = frame[:400], frame[400:].copy(), "outcome", "c3"
    if changes:
        later[column] *= rng.choice(UNITS)
    model = fit_quickly(first, target, settings={**ERM, "epochs": 1})
    later = later.reset_index(drop=True)
    updated = update(model, DataFrameSource(later, "b"), accept_units=True)
    return [("Check the unit" in list_notes(updated), changes)]


def try_far_mean(rng: Rng, is_real: bool) -> list[Trial]:
    """A column whose mean is more than ten standard deviations away, or less."""
    shift = rng.choice([1.0, 4.0, 8.0, 12.0, 20.0])
    first, later = draw_table(rng, 300), draw_table(rng, 300)
    later["age"] += shift * 12
    model = fit_quickly(first, settings={**ERM, "epochs": 1})
    updated = update(model, DataFrameSource(later, "b"), accept_units=True)
    return [("'age' is far from the data" in list_notes(updated), shift > 10)]


def try_new_categories(rng: Rng, is_real: bool) -> list[Trial]:
    """Categories that the first place did not have, in so many percent of the rows."""
    fraction = rng.choice([0.0, 0.01, 0.03, 0.08, 0.2])
    first, later = draw_table(rng, 500), draw_table(rng, 500)
    chosen = rng.random(500) < fraction
    later.loc[chosen, "scanner"] = "newest"
    model = fit_quickly(first, settings={**ERM, "epochs": 1})
    updated = update(model, DataFrameSource(later, "b"))
    says = "categories that the model does not know" in list_notes(updated)
    return [(says, fraction >= 0.05)]


def fit_rare_rows(rng: Rng) -> tuple[Model, bool]:
    """Fit rare positive rows, more or less well told; is the model constant?"""
    rate, strength = rng.choice([0.01, 0.03, 0.1, 0.3]), rng.choice([0.0, 1.0, 2.5])
    learner = str(rng.choice(["erm", "steady"]))
    settings = ERM if learner == "erm" else {}
    frame = draw_table(rng, int(rng.choice([1000, 3000])), 0.5, rate, strength)
    model = fit_quickly(frame, learner=learner, settings=settings)
    fresh = draw_table(rng, FRESH, 0.5, rate, strength)
    found = predict(model, fresh, probabilities=True)
    others = fresh["outcome"] == "yes"
    return model, float((found["prediction"][others] == "yes").mean()) < 0.05


def try_constant(rng: Rng, is_real: bool) -> list[Trial]:
    """The note on constant predictions, which looks at rows of every class."""
    model, is_constant = fit_rare_rows(rng)
    return [("predictions are constant" in list_notes(model), is_constant)]


def try_collapse(rng: Rng, is_real: bool) -> list[Trial]:
    """The diagnostic of `cirm run` and `fit`, which looks at held-out rows."""
    model, is_constant = fit_rare_rows(rng)
    return [(model.history[-1].diagnostics["constant"] == 1, is_constant)]


def try_ranking(rng: Rng, is_real: bool) -> list[Trial]:
    """Constant predictions whose probabilities rank the rows, or do not."""
    rate, strength = rng.choice([0.01, 0.03]), rng.choice([0.0, 0.5, 1.0])
    frame = draw_table(rng, 4000, 0.5, rate, strength)
    model = fit_quickly(frame, learner="steady", settings={}, held_out=0.3)
    notes = list_notes(model)
    if "predictions are constant" not in notes:
        return []
    fresh = draw_table(rng, FRESH, 0.5, rate, strength)
    found = predict(model, fresh, probabilities=True)["probability of yes"]
    area = roc_auc_score(fresh["outcome"] == "yes", found)
    if "held out to tell whether" in notes:
        return []
    return [("so a threshold helps" in notes, area > 0.55)]


def try_fall_on_arrival(rng: Rng, is_real: bool) -> list[Trial]:
    """A second place where the scanner means less, or the same."""
    flip = rng.choice([0.1, 0.1, 0.1, 0.3, 0.5, 0.8])
    learner = str(rng.choice(["erm", "steady"]))
    settings = ERM if learner == "erm" else {}
    model = fit_quickly(draw_table(rng, 2000, 0.1), learner=learner, settings=settings)
    updated = update(model, DataFrameSource(draw_table(rng, 2000, flip), "b"))
    here, there = (
        evaluate(model, draw_table(rng, FRESH, f))["overall"]["accuracy"]
        for f in (0.1, flip)
    )
    fall = here - there
    says = "before the model learned from 'b'" in list_notes(updated)
    # Between 0 and 5 points the warning may or may not appear, and is right.
    return [] if 0.5 < fall < 5 and not says else [(says, fall > 0.5)]


def try_unstable_columns(rng: Rng, is_real: bool) -> list[Trial]:
    """Columns whose meaning changes between three places, or does not."""
    changes = bool(rng.integers(2))
    flips = (0.1, 0.3, 0.2) if changes else (0.2, 0.2, 0.2)
    places = [
        DataFrameSource(draw_table(rng, 1500, flip), name)
        for flip, name in zip(flips, "abc", strict=True)
    ]
    model = fit(places, "outcome", order="sequential")
    verdict = str(model.explain().get("verdict", ""))
    named = [f"`{c}`" in verdict for c in ("scanner", "lactate", "crp", "age")]
    return list(zip(named, [changes, False, False, False], strict=True))


def try_importance_drop(rng: Rng, is_real: bool) -> list[Trial]:
    """A column whose importance fell, at places that differ in it or not."""
    changes = bool(rng.integers(2))
    flips = (0.1, 0.35) if changes else (0.2, 0.2)
    places = [
        DataFrameSource(draw_table(rng, 1500, flip), name)
        for flip, name in zip(flips, "ab", strict=True)
    ]
    model = fit(places, "outcome", order="sequential")
    drops = describe_model(model)["importance_drops"]
    truths = {"scanner": changes, "lactate": False, "crp": False, "age": False}
    return [(name in drops, truth) for name, truth in truths.items()]


def try_flat_values(rng: Rng, is_real: bool) -> list[Trial]:
    """A regression that learns nothing, because its penalty is far too large."""
    spoiled = bool(rng.integers(2))
    rows = 600
    x = rng.normal(size=(rows, 3))
    y = x[:, 0] + rng.choice([0.3, 1.0]) * rng.normal(size=rows)
    frame = pd.DataFrame(x, columns=["p", "q", "r"]).assign(dose=10 * y)
    settings = {**ERM, "decay": 100.0 if spoiled else 0.0}
    model = fit_quickly(frame, "dose", settings=settings)
    spread = float(np.std(predict(model, frame)["prediction"]) / np.std(frame["dose"]))
    says = "nearly the same value for every row" in list_notes(model)
    return [(says, spread < 0.1)]


CASES = (
    Case("fit", "a column alone determines the target", try_leak),
    Case("update", "a column is in another unit", try_unit),
    Case("update", "a mean is far from the first", try_far_mean),
    Case("update", "unknown categories", try_new_categories),
    Case("fit", "the predictions are constant", try_constant, 4),
    Case("run", "collapse to a constant", try_collapse, 4),
    Case("fit", "... but rank the rows: a threshold helps", try_ranking, 4),
    Case("fit", "a regression predicts one value", try_flat_values, 2),
    Case("update", "worse on arrival than on held-out rows", try_fall_on_arrival, 4),
    Case("fit", "`steady`: a column changes its meaning", try_unstable_columns, 4),
    Case("inspect", "the importance of a column fell", try_importance_drop, 4),
)


def run_trials(case: Case, repeats: int, seed: int) -> Iterator[Trial]:
    """Try a warning on simulated tables and, if it can be, on real ones."""
    rng = np.random.default_rng(seed)
    for index in range(max(repeats // case.cost, 10)):
        yield from case.try_once(rng, index % 2 == 1)


def list_stress_trials(records: Sequence[Record]) -> dict[str, list[Trial]]:
    """Return the trials of a job of the stress map, by the kind of its data.

    In images a warning is right if there is a shortcut. In tables each column that is
    named counts, and only the planted one, which comes last, is right.
    """
    data = next(r for r in records if isinstance(r, RunRecord)).dataset
    scores = [r for r in records if isinstance(r, ScoreRecord) and r.split == UNSTABLE]
    has_shortcut = bool(data.get("shortcut", True)) and data.get("kind") != "none"
    if data["name"] != "planted":
        return {
            "images": [
                (s.value > 0, has_shortcut) for s in scores if s.environment == TOTAL
            ]
        }
    planted = f"column {data.get('columns', PlantedShortcutTable.columns) + 1}"
    named = {(s.seed, s.environment) for s in scores if s.value}
    trials = []
    for seed in {score.seed for score in scores}:
        others = [
            name for key, name in named if key == seed and name not in (planted, TOTAL)
        ]
        trials += [(True, False)] * len(others)
        if has_shortcut or not others:
            trials.append(((seed, planted) in named, has_shortcut))
    return {"tables": trials}


def print_stress_rates(folder: Path) -> None:
    """Print the precision and recall of what a learner said of the stress map."""
    trials: dict[str, list[Trial]] = {"images": [], "tables": []}
    for entry in load_job_archive(folder).entries.values():
        for kind, own in list_stress_trials(unpack_job_records(entry)).items():
            trials[kind] += own
    titles = {"images": "a direction changes its meaning", "tables": "a column does"}
    for kind, own in trials.items():
        print_row("stress", f"{kind}: {titles[kind]}", own)


def print_row(command: str, title: str, trials: Sequence[Trial]) -> None:
    """Print how often a warning should be given, was given, and was right."""
    says, true = np.array(trials, dtype=bool).reshape(-1, 2).T
    right = (says & true).sum()
    cells = [f"{len(trials)}", f"{true.sum()}", f"{says.sum()}"]
    cells += [f"{100 * right / max(part.sum(), 1):.0f}" for part in (says, true)]
    print("|", " | ".join([command, title, *cells]), "|", flush=True)


def main() -> None:
    """Print precision and recall of each warning."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a title")
    parser.add_argument("--stress", type=Path, help="folder of a stress map")
    arguments = parser.parse_args()
    headings = ["command", "warning", "cases", "should warn", "warned"]
    headings += ["precision, %", "recall, %"]
    print("|", " | ".join(headings), "|\n|---|---|--:|--:|--:|--:|--:|")
    if arguments.stress:
        print_stress_rates(arguments.stress)
        return
    for case in CASES:
        if arguments.only in case.title:
            trials = list(run_trials(case, arguments.repeats, arguments.seed))
            print_row(case.command, case.title, trials)


if __name__ == "__main__":
    main()
