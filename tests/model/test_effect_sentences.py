"""Sentences about a column that changes its meaning say what has which effect."""

import re

import numpy as np
import pandas as pd
import pytest

from cirm import fit, update


def draw_table(seed, habit, kind, names):
    """Rows with a laboratory value that tells the class and a mark that follows it."""
    draws = np.random.default_rng(seed)
    y = draws.integers(len(names), size=2000)
    other = (y + draws.integers(1, len(names), size=2000)) % len(names)
    u = np.where(draws.random(2000) < habit, y, other)
    mark = {
        "category": np.array(["dry", "wet", "mixed"])[u],
        "two values": u,
        "number": u + draws.normal(0, 0.3, 2000),
    }[kind]
    lab = y + draws.normal(size=2000)
    return pd.DataFrame({"lab": lab, "mark": mark, "grade": np.array(names)[y]})


def explain(kind, names):
    places = {
        "north": draw_table(0, 0.95, kind, names),
        "south": draw_table(1, 0.7, kind, names),
    }
    return fit(places, "grade").explain()["unstable"]


@pytest.mark.parametrize(
    ("kind", "subject"),
    [
        ("category", "`mark=(dry|wet)`"),
        ("two values", "its higher value"),
        ("number", "each standard deviation of it"),
    ],
)
def test_the_sentence_says_what_changes_the_odds_of_which_class(kind, subject):
    (found,) = explain(kind, ("high", "low"))
    words = (
        rf"`mark` changes its meaning: {subject} multiplied the odds of class `low` "
        r"by (\S+) at north and by (\S+) at south \(p .*\)\."
    )
    factors = re.fullmatch(words, found["sentence"])
    assert factors, found["sentence"]
    if kind != "number":  # 0.95 and 0.7 of the rows agree: ratios of 19 and 7 / 3
        sign = -1 if "mark=dry" in found["sentence"] else 1
        assert np.log(found["effects"]) == pytest.approx(
            sign * np.log([19, 7 / 3]), abs=0.25
        )


def test_effects_are_those_of_the_places_named():
    """The places come in no alphabetical order, some at once and some later."""
    shares = {"west": 0.95, "east": 0.7, "north": 0.6, "centre": 0.85}
    tables = {
        name: draw_table(seed, share, "two values", ("high", "low"))
        for seed, (name, share) in enumerate(shares.items())
    }
    (later, last) = tables.popitem()
    model = update(fit(tables, "grade"), {later: last})
    (found,) = model.explain()["unstable"]
    parts = re.findall(r"(?:by|and) (\S+?) at (\w+)", found["sentence"])
    factors = {place: float(factor) for factor, place in parts}
    assert list(factors) == list(shares)
    for place, share in shares.items():
        assert factors[place] == pytest.approx(share / (1 - share), rel=0.4)


def test_one_of_three_classes_is_called_by_its_name():
    (found,) = explain("category", ("high", "low", "none"))
    words = r": `mark=(\w+)` multiplied the odds of class `(\w+)` by"
    mark, grade = re.search(words, found["sentence"]).groups()
    assert (mark, grade) in {("dry", "high"), ("wet", "low"), ("mixed", "none")}


def test_factors_of_many_classes_are_those_against_the_others():
    """The mark is wet in 80 % of the rows of one class, in 20 % of all others."""

    def draw(seed, share):
        draws = np.random.default_rng(seed)
        y = draws.integers(5, size=4000)
        wet = draws.random(4000) < np.where(y == 0, share, 1 - share)
        lab = np.eye(5)[y] + draws.normal(size=(4000, 5))
        table = pd.DataFrame(lab, columns=[f"lab{n}" for n in range(5)])
        return table.assign(
            mark=np.where(wet, "wet", "dry"), grade=np.array([*"abcde"])[y]
        )

    model = fit({"north": draw(0, 0.8), "south": draw(1, 0.6)}, "grade")
    (found,) = model.explain()["unstable"]
    assert "`mark=wet` multiplied the odds of class `a` by" in found["sentence"]
    assert found["effects"] == pytest.approx([0.8 / 0.2, 0.6 / 0.4], rel=0.15)


def draw_factory(seed, **changes):
    """Shrinkage by three causes, and feedback of an operator who saw it."""
    causes = {"humidity": 3.0, "machine": 0.0, "feedback": 1.0} | changes
    draws = np.random.default_rng(seed)
    temperature, pressure, humidity = draws.normal(size=(3, 2000))
    machine = draws.integers(3, size=2000)
    y = 3 * temperature + 4 * pressure + causes["humidity"] * humidity
    y += causes["machine"] * (machine == 1) + 2 * draws.normal(size=2000)
    return pd.DataFrame(
        {
            "temperature": temperature,
            "pressure": pressure,
            "humidity": humidity,
            "machine": np.array(["M1", "M2", "M3"])[machine],
            "feedback": causes["feedback"] * y + 3 * draws.normal(size=2000),
            "shrinkage": y,
        }
    )


def compute_partial_correlation(table, name, target="shrinkage"):
    others = table.drop(columns=[name, target, "machine"]).assign(one=1.0)
    left = [
        table[part] - others @ np.linalg.lstsq(others, table[part], rcond=None)[0]
        for part in (name, target)
    ]
    return np.corrcoef(*left)[0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_regressions_of_places_at_once_find_the_consequence_that_changes(seed):
    places = {"a": draw_factory(0), "b": draw_factory(1, feedback=0.5)}
    (found,) = fit(places, "shrinkage", seed=seed).explain()["unstable"]
    assert found["feature"] == "feedback"
    right = [
        compute_partial_correlation(table, "feedback") for table in places.values()
    ]
    assert found["effects"] == pytest.approx(right, abs=0.06)
    assert "it had a partial correlation with the target of" in found["sentence"]


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("seed", range(3))
def test_a_cause_that_turns_around_takes_no_other_cause_with_it(order, seed):
    places = {
        "a": draw_factory(2 * seed),
        "b": draw_factory(2 * seed + 1, humidity=-3.0),
    }
    (found,) = fit(places, "shrinkage", order=order).explain()["unstable"]
    assert found["feature"] == "humidity"


@pytest.mark.parametrize("seed", range(3))
def test_a_consequence_is_stable_if_only_the_distribution_of_the_target_changes(seed):
    places = {"a": draw_factory(2 * seed), "b": draw_factory(2 * seed + 1, machine=9.0)}
    found = fit(places, "shrinkage", order="sequential").explain()["unstable"]
    assert {one["feature"] for one in found} <= {"machine"}
