"""Sets, intervals and abstention mean something at a place that was never seen."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cirm import adapt, evaluate, fit, load, predict, save, update
from cirm.model.conformal import compute_conformal_thresholds
from cirm.model.new_place import predict_quantity_at_new_place

TARGET = "outcome"


def make_place(seed, rows=200, level=0.0, noise=1.0, kind="values"):
    """A place whose level and noise differ from those of others."""
    draws = np.random.default_rng(seed)
    dose = draws.normal(size=rows)
    score = 2 * dose + level + noise * draws.normal(size=rows)
    if kind == "classes":
        return pd.DataFrame({"dose": dose, TARGET: np.where(score > 0.8, "yes", "no")})
    return pd.DataFrame({"dose": dose, TARGET: score})


def make_sequence(seed, count, kind="values", spread=0.5, rows=200):
    draws = np.random.default_rng(1000 + seed)
    return [
        make_place(
            100 * seed + number,
            rows,
            spread * draws.normal(),
            np.exp(0.3 * draws.normal()) if kind == "values" else 1.5,
            kind,
        )
        for number in range(count)
    ]


def learn(places, **settings):
    model = fit(places[0], TARGET, **settings)
    for place in places[1:]:
        model = update(model, place)
    return model


@pytest.fixture(scope="module")
def models():
    """Models of three places each, by what they predict."""
    return {
        kind: learn(make_sequence(1, 3, kind, spread=0.3, rows=400))
        for kind in ("values", "classes")
    }


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "most"), [("values", 96), ("classes", 98)])
@pytest.mark.parametrize("count", [2, 5])
def test_nine_of_ten_targets_of_places_never_seen_are_covered(kind, most, count):
    shares = []
    for seed in range(10):
        places = make_sequence(seed, count + 6, kind)
        model = learn(places[:count])
        for place in places[count:]:
            shares.append(evaluate(model, place)["coverage"]["overall"]["coverage"])
    # More for classes, since the predicted one is always in the set.
    assert 85 < np.mean(shares) < most


def test_another_noise_at_each_place_makes_no_cause_unstable():
    for seed in range(4):
        model = learn(make_sequence(seed, 4, spread=0.0))
        assert model.learner.list_unstable_features(model.state) == [[]]


def test_intervals_widen_with_how_much_places_differ():
    widths = []
    for spread in (0.0, 1.5):
        model = learn(make_sequence(0, 4, spread=spread))
        shown = predict(model, make_place(5))
        widths.append((shown["high"] - shown["low"]).mean())
    assert widths[1] > 1.4 * widths[0]


def test_a_higher_level_covers_more(models):
    later = make_place(77, level=0.3)
    narrow, wide = (predict(models["values"], later, level=x) for x in (0.6, 0.95))
    assert (narrow["low"] > wide["low"]).all()
    assert (narrow["high"] < wide["high"]).all()
    report = evaluate(models["values"], later, level=0.6)["coverage"]
    assert report["level"] == pytest.approx(60)
    inside = later[TARGET].between(narrow["low"], narrow["high"]).mean()
    assert report["overall"]["coverage"] == pytest.approx(100 * inside)
    assert report["overall"]["width"] == pytest.approx(
        (narrow["high"] - narrow["low"]).mean()
    )


def test_a_set_lists_classes_with_the_prediction_among_them(models):
    model, later = models["classes"], make_place(78, kind="classes")
    shown = predict(model, later, sets=True, probabilities=True)
    assert set(shown["set"]) <= {"no", "yes", "no|yes"}
    members = shown["set"].str.split("|")
    chosen = zip(shown["prediction"], members, strict=True)
    assert all(label in names for label, names in chosen)
    # A class belongs to every set in which it is likelier than in another set of it.
    yes = shown["probability of yes"]
    has_yes = members.apply(lambda names: "yes" in names)
    assert yes[has_yes].min() > yes[~has_yes].max()
    report = evaluate(model, later)["coverage"]
    covered = [t in names for t, names in zip(later[TARGET], members, strict=True)]
    assert report["overall"]["coverage"] == pytest.approx(100 * np.mean(covered))
    assert report["overall"]["size"] == pytest.approx(members.str.len().mean())


def test_a_class_that_a_threshold_predicts_is_in_the_set(models):
    later = make_place(78, kind="classes")
    shown = predict(models["classes"], later, sets=True, threshold="0.02", level=0.5)
    chosen = zip(shown["prediction"], shown["set"].str.split("|"), strict=True)
    assert all(label in names for label, names in chosen)
    assert (shown["probability"] < 0.5).any()


def test_a_rare_class_is_covered_as_well_as_a_frequent_one():
    def make(seed):
        draws = np.random.default_rng(seed)
        ill = draws.random(2000) < 0.05
        marker = draws.normal(size=2000) + 1.5 * ill
        return pd.DataFrame({"marker": marker, TARGET: np.where(ill, "ill", "well")})

    model = learn([make(seed) for seed in range(3)])
    report = evaluate(model, make(9))["coverage"]
    assert report["classes"]["ill"]["coverage"] > 82
    # Predicting "well" throughout would cover 95 % of all rows and none of the ill.
    assert evaluate(model, make(9))["classes"]["ill"]["accuracy"] < 50


def test_coverage_is_reported_by_place_with_intervals(models):
    places = pd.concat(
        make_place(seed, level=level).assign(site=f"site {seed}")
        for seed, level in ((1, 0.0), (2, 6.0))
    )
    report = evaluate(models["values"], places, environment="site")["coverage"]
    near, far = (report["environments"][f"site {n}"] for n in (1, 2))
    assert near["coverage"] > 80 > 30 > far["coverage"]
    for one in (near, far, report["overall"]):
        assert one["low"] <= one["coverage"] <= one["high"]
    mean = (near["coverage"] + far["coverage"]) / 2
    assert report["overall"]["coverage"] == pytest.approx(mean)
    # Of one place the interval is about its rows, of several about places.
    assert report["overall"]["high"] - report["overall"]["low"] > 90


def test_what_can_be_promised_depends_on_the_number_of_places(models):
    later = make_place(3)
    first = evaluate(fit(make_place(0), TARGET), later)["coverage"]
    assert first["places"] == 0
    assert "never scored at a place before it was trained on it" in first["guarantee"]
    second = evaluate(models["values"], later)["coverage"]
    assert second["places"] == 2
    assert "scores at 2 places before training there" in second["guarantee"]
    assert "Once 18 places have been scored in this way" in second["guarantee"]
    many = evaluate(models["values"], later, level=0.5)["coverage"]
    assert "At least 50 % on average over new places" in many["guarantee"]


def test_with_many_places_the_threshold_is_the_hierarchical_conformal_one(models):
    model, entry = models["values"], models["values"].history[-1]
    quantiles = np.sort(np.random.default_rng(0).normal(size=(20, 50)), axis=1)
    history = [
        replace(
            entry,
            nonconformity=replace(
                entry.nonconformity, quantiles={"": tuple(part.tolist())}
            ),
            nonconformity_adapted=None,
        )
        for part in quantiles
    ]
    shown = predict(replace(model, history=tuple(history)), make_place(1))
    # 90 % of 20 places and one that is infinitely bad: 94.5 % of the 20.
    half = np.exp(np.quantile(quantiles, 0.9 * 21 / 20, method="higher"))
    widths = (shown["high"] - shown["low"]) / model.schema.target.scale
    assert np.allclose(widths, 2 * half)


def test_abstention_keeps_the_error_below_the_rate(models):
    later = make_place(80, 2000, noise=1.5, kind="classes")
    model = models["classes"]
    whole, part = predict(model, later), predict(model, later, abstain=0.1)
    answered = part["prediction"].notna()
    assert 0.1 < answered.mean() < 0.95
    assert (part["prediction"][answered] == whole["prediction"][answered]).all()
    assert whole["probability"][answered].min() > whole["probability"][~answered].max()
    wrong = (part["prediction"] != later[TARGET])[answered].mean()
    assert wrong < 0.12 < (whole["prediction"] != later[TARGET]).mean()
    report = evaluate(model, later, abstain=0.1)["abstention"]
    assert report["overall"]["error"] == pytest.approx(100 * wrong)
    assert report["overall"]["answered"] == pytest.approx(100 * answered.mean())
    assert report["expected"] <= 10


def test_a_rate_that_cannot_be_reached_leaves_every_row_out(models):
    later = make_place(81, kind="classes")
    shown = predict(models["classes"], later, abstain=1e-4)
    assert shown["prediction"].isna().all()
    report = evaluate(models["classes"], later, abstain=1e-4)["abstention"]
    assert report["overall"] == {"rows": 200, "answered": 0.0}
    json.dumps(report, allow_nan=False)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("classes", {"abstain": 0.0}, "--abstain: 0 is not between 0 and 1"),
        ("classes", {"abstain": 1.0}, "--abstain: 1 is not between 0 and 1"),
        ("values", {"abstain": 0.1}, "this model is a regression"),
        (
            "classes",
            {"abstain": 0.1, "threshold": "0.3"},
            "combined with a decision threshold",
        ),
        ("values", {"level": 0.3}, "--level: 0.3 is not from 0.5 to 0.99"),
        ("classes", {"level": 1.0, "sets": True}, "--level: 1 is not from 0.5"),
    ],
)
def test_options_out_of_range_are_refused(models, kind, options, message):
    with pytest.raises(ValueError, match=message):
        predict(models[kind], make_place(1, kind=kind), **options)


def test_scores_survive_the_file_and_no_row_is_in_them(models, tmp_path):
    for kind, model in models.items():
        save(model, tmp_path / f"{kind}.cirm")
        loaded = load(tmp_path / f"{kind}.cirm")
        later = make_place(4, kind=kind)
        options = {"sets": True} | ({"abstain": 0.1} if kind == "classes" else {})
        assert predict(loaded, later, **options).equals(
            predict(model, later, **options)
        )
        for entry in loaded.history:
            assert {len(q) for q in entry.nonconformity.quantiles.values()} == {50}


def test_scores_that_do_not_fit_the_classes_are_refused(models, tmp_path):
    model = models["classes"]
    entry = model.history[-1]
    for change in (
        {"quantiles": {"maybe": (0.0,) * 50}},
        {"quantiles": {**entry.nonconformity.quantiles, "": tuple(range(50))[::-1]}},
        {"answered": (1,) * 21, "wrong": (2,) * 21},
        {"answered": (), "wrong": ()},
    ):
        bad = replace(entry, nonconformity=replace(entry.nonconformity, **change))
        with pytest.raises(ValueError, match="nonconformity"):
            save(replace(model, history=(bad,)), tmp_path / "bad.cirm")


def test_a_model_of_an_earlier_version_has_intervals_and_no_sets(models):
    old = {
        kind: replace(
            model,
            history=tuple(
                replace(
                    entry,
                    nonconformity=None,
                    nonconformity_adapted=None,
                    confident=(),
                    metrics_after={**entry.metrics_after, "residual_quantile": 1.6},
                )
                for entry in model.history
            ),
        )
        for kind, model in models.items()
    }
    shown = predict(old["values"], make_place(1))
    assert (shown["low"] < shown["prediction"]).all()
    later = make_place(1, kind="classes")
    assert evaluate(old["classes"], later)["coverage"] is None
    assert "set" not in predict(old["classes"], later)
    for options in ({"sets": True}, {"abstain": 0.1}):
        with pytest.raises(ValueError, match="trained by an earlier version"):
            predict(old["classes"], later, **options)


def test_arrivals_of_a_few_rows_and_classes_without_any_have_sets(models):
    tiny = update(fit(make_place(0), TARGET), make_place(1, rows=3))
    assert evaluate(tiny, make_place(2))["coverage"]["places"] == 0
    places = [make_place(seed, kind="classes") for seed in (0, 1)]
    model = fit(places[0], TARGET, classes=["no", "yes", "maybe"])
    model = update(model, places[1])
    shown = predict(model, make_place(2, kind="classes"), sets=True)
    assert shown["set"].str.len().min() > 0
    # Nothing is known about a class without any row, so no set can leave it out.
    assert shown["set"].str.contains("maybe").all()
    assert not shown["prediction"].eq("maybe").any()


def test_an_adapted_model_has_the_scores_of_adapting(clinic):
    model = fit(clinic(800, 0.95, 0), TARGET)
    for seed, agreement in ((1, 0.75), (2, 0.3)):
        model = update(model, clinic(800, agreement, seed))
    later = clinic(800, 0.1, 3)
    adapted = adapt(model, later)
    plain, sharp = (
        evaluate(one, later, level=0.98)["coverage"]["overall"]
        for one in (model, adapted)
    )
    assert min(plain["coverage"], sharp["coverage"]) > 95
    assert sharp["size"] < plain["size"]
    before, after = (
        [getattr(entry, name) for entry in model.history[1:]]
        for name in ("nonconformity", "nonconformity_adapted")
    )
    assert before[1] != after[1]


def test_a_new_place_is_predicted_as_by_a_normal_model_if_there_are_many():
    draws = np.random.default_rng(0)
    values = draws.normal(2.0, 0.7, 4000)
    new = predict_quantity_at_new_place(values, np.full(4000, 1e-4))
    points = np.array([1.0, 2.0, 3.0])
    expected = stats.norm.cdf(points, 2.0, 0.7)
    assert np.allclose(new.compute_cumulative_probability(points), expected, atol=0.03)


def test_the_commands_say_what_the_sets_promise_and_what_was_left_out(
    cirm, files, tmp_path
):
    model = tmp_path / "m.cirm"
    cirm("fit", files / "clinic-a.csv", "--target", TARGET, "--model", model)
    cirm("update", files / "clinic-b.csv", "--model", model)
    out = tmp_path / "p.csv"
    status, _, said = cirm(
        "predict", files / "clinic-c.csv", "--model", model, "--out", out, "--sets",
        "--level", "0.8", "--abstain", "0.15",
    )  # fmt: skip
    assert status == 0
    assert "Coverage of the sets: about 80 % on average over new places" in said
    shown = pd.read_csv(out)
    count = int(shown["prediction"].isna().sum())
    assert f"Abstained from {count} of 200 rows" in said
    assert set(shown["set"]) <= {"ill", "well", "ill|well"}
    status, printed, _ = cirm(
        "evaluate", files / "clinic-c.csv", "--model", model, "--abstain", "0.15"
    )
    assert status == 0
    assert "Coverage of 90 % prediction sets" in printed
    assert "Abstention, for at most 15 % wrong predictions" in printed
    page = tmp_path / "page.html"
    status, printed, _ = cirm(
        "evaluate", files / "clinic-c.csv", "--model", model, "--json",
        "--report", page,
    )  # fmt: skip
    report = json.loads(printed)["coverage"]
    assert report["environments"]["clinic-c"]["rows"] == 200
    assert f"Expected coverage: a{report['guarantee'][1:]}" in page.read_text()


def test_too_few_rows_for_an_interval_leave_its_cells_empty():
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0, 5.0], "y": [1.5, 2.25, 3.5, 5.75]})
    model = fit(table, "y", learner="ridge")
    found = predict(model, table)
    assert np.isfinite(found["prediction"]).all()
    assert found[["low", "high"]].isna().all(axis=None)
    assert "too few to tell" in compute_conformal_thresholds(model, 0.9).guarantee
