"""Verdicts on models of one place, and on models that adapting left as they were."""

import numpy as np
import pandas as pd
import pytest

from cirm import adapt, compare, evaluate, fit, update


def draw(seed, rows=1500, intercept=-1.0, slope=1.2):
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(rows, 3))
    odds = np.exp(intercept + x @ [slope, 0.8, 0.0])
    ill = draws.random(rows) < odds / (1 + odds)
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    return table.assign(outcome=np.where(ill, "ill", "well"))


@pytest.fixture(scope="module")
def model():
    return fit({"north": draw(0)}, "outcome")


def find_comparison(report, score):
    return next(one for one in report["comparisons"] if one["score"] == score)


def test_another_base_rate_alone_is_no_loss_of_accuracy(model):
    rare = draw(1, intercept=-1.0)
    frequent = draw(2, intercept=1.0)  # half of the rows are ill instead of a third
    same = find_comparison(evaluate(model, rare), "accuracy")
    other = find_comparison(evaluate(model, frequent), "accuracy")
    assert not same["significant"] and not other["significant"]
    assert "at the class frequencies of the earlier places" in other["line"]
    assert {one.get("class") for one in evaluate(model, rare)["comparisons"]} >= {
        "ill",
        "well",
    }


def test_a_place_where_a_column_turns_around_is_worse(model):
    report = evaluate(model, draw(3, slope=-1.2))
    assert report["verdict"].startswith("Significantly worse than expected: accuracy")


def test_an_update_warns_of_no_drop_that_the_base_rate_explains(model):
    stage = update(model, {"south": draw(4, intercept=1.0)}).history[-1]
    assert not any("accuracy" in note for note in stage.notes)
    stage = update(model, {"south": draw(5, slope=-1.2)}).history[-1]
    assert any("before the model learned from" in note for note in stage.notes)


def test_a_model_that_adapting_left_as_it_was_is_judged_as_before():
    def add_scanner(table, habit, seed):
        draws = np.random.default_rng(seed)
        follows = draws.random(len(table)) < habit
        new = np.where(follows, table["outcome"] == "ill", table["outcome"] != "ill")
        return table.assign(scanner=np.where(new, "new", "old"))

    places = {"north": add_scanner(draw(6), 0.95, 6)}
    model = update(fit(places, "outcome"), {"south": add_scanner(draw(7), 0.75, 7)})
    last = add_scanner(draw(8), 0.1, 8)
    unchanged = adapt(model, last[:12])
    assert unchanged.explain()["adaptation"]["effects"] == []
    assert evaluate(unchanged, last)["verdict"] == evaluate(model, last)["verdict"]
    changed = adapt(model, last)
    found = find_comparison(evaluate(changed, last), "accuracy")
    assert "with adapting" in found["line"]


def test_columns_of_zeros_and_ones_are_compared_by_their_shares():
    draws = np.random.default_rng(0)
    first, second = (
        draw(seed)
        .assign(diabetes=draws.integers(10, size=1500) < share)
        .astype({"diabetes": int})
        for seed, share in ((9, 3), (10, 6))
    )
    (change,) = (
        one for one in compare(first, second)["inputs"] if one["column"] == "diabetes"
    )
    assert change["kind"] == "categories"
    assert "the share of `1` in `diabetes` rose from 2" in change["sentence"]


@pytest.mark.parametrize("places", [1, 2])
def test_held_out_rows_are_judged_at_the_threshold_of_the_evaluation(places):
    tables = {name: draw(n) for n, name in zip(range(places), "ab", strict=False)}
    model = fit(tables, "outcome")
    new = draw(11)
    plain = evaluate(model, new)
    early = evaluate(model, new, threshold="0.1")  # of ill, the rarer class
    recall = {
        one["class"]: (before["expected"], one["expected"], one["value"])
        for before in plain["comparisons"]
        for one in early["comparisons"]
        if one["score"] == before["score"] == "recall"
        and one["class"] == before["class"]
    }
    assert recall["ill"][1] > recall["ill"][0]
    assert recall["well"][1] < recall["well"][0]
    for _, expected, value in recall.values():  # these rows are of the same kind
        assert expected == pytest.approx(value, abs=12)
