"""Rare classes and row weights, as a user runs the commands."""

import json

import numpy as np
import pandas as pd
import pytest

from cirm import evaluate, load, predict

pytestmark = pytest.mark.integration  # whole commands or many simulations

QUICK = ["--learner", "erm", "--set", "hidden=4", "--set", "epochs=30"]
QUICK += ["--set", "rate=0.02"]


def table(rows, seed, positives=0.05, strength=1.0):
    """A rare outcome that two markers tell, with weights from 0 to 3."""
    rng = np.random.default_rng(seed)
    outcome = rng.random(rows) < positives
    x = rng.normal(size=(rows, 2)) + strength * outcome[:, None]
    frame = pd.DataFrame(x, columns=["lactate", "crp"])
    frame["outcome"] = np.where(outcome, "yes", "no")
    return frame.assign(w=rng.integers(0, 4, rows))


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        table(1200, seed).to_csv(f"{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def fit(cirm, clinics):
    """Fits a.csv with the given options and returns what was printed."""

    def run(*words, ignore=("--ignore", "w")):
        status, printed, error = cirm(
            "fit", "a.csv", "--target", "outcome", "--model", "m.cirm", "--overwrite",
            "--held-out", "0.4", *QUICK, *ignore, *words,
        )  # fmt: skip
        assert status == 0, error
        return printed, error

    return run


def read_json(cirm, *words):
    status, printed, error = cirm(*words, "--json")
    assert status == 0, error
    return json.loads(printed)


def test_evaluate_shows_classes_with_intervals_and_a_confusion_matrix(cirm, fit):
    fit()
    status, printed, _ = cirm("evaluate", "c.csv", "--model", "m.cirm")
    assert status == 0
    for words in ("recall, %", "precision, %", "PR AUC", "balanced"):
        assert words in printed
    assert "Confusion matrix: rows, and percent of the class" in printed
    content = read_json(cirm, "evaluate", "c.csv", "--model", "m.cirm")
    frame = pd.read_csv("c.csv")
    rows = np.array(content["confusion"]["counts"]).sum(1)
    assert rows.tolist() == [(frame.outcome == n).sum() for n in ("no", "yes")]
    scores = content["classes"]["yes"]
    assert scores["recall_low"] <= scores["recall"] <= scores["recall_high"]


def test_constant_predictions_are_called_constant_by_fit_and_evaluate(cirm, fit):
    _, error = fit()
    assert "note: the predictions are constant: the model predicts 'no' for" in error
    assert "--threshold recall=0.8" in error  # which exists and helps:
    content = read_json(cirm, "inspect", "m.cirm")
    assert content["history"][0]["diagnostics"]["constant"] == 1
    status, printed, _ = cirm("evaluate", "c.csv", "--model", "m.cirm")
    assert status == 0
    assert "The predictions are constant: the model predicts 'no'" in printed
    words = ["evaluate", "c.csv", "--model", "m.cirm", "--threshold", "recall=0.8"]
    content = read_json(cirm, *words)
    assert "constant" not in content["verdict"]
    assert content["classes"]["yes"]["recall"] > 60


def test_noise_is_called_constant_and_no_threshold_is_recommended(cirm, clinics):
    table(1200, 5, strength=0.0).to_csv("a.csv", index=False)
    words = ["fit", "a.csv", "--target", "outcome", "--model", "m.cirm", *QUICK]
    _, _, error = cirm(*words)
    assert "the probabilities tell the two classes apart (ROC AUC 0." in error
    assert "--threshold" not in error


@pytest.mark.parametrize("rule", ["recall=0.8", "precision=0.2", "rate=0.1"])
def test_a_threshold_is_chosen_on_held_out_rows_and_stored_and_said(cirm, fit, rule):
    printed, _ = fit("--threshold", rule)
    assert "Predicts 'yes' if its probability is" in printed
    assert f"(threshold {rule}; on 480 held-out rows" in printed
    threshold = read_json(cirm, "inspect", "m.cirm")["threshold"]
    assert threshold["rule"] == rule
    frame = predict(load("m.cirm"), "b.csv", probabilities=True)
    expected = frame["probability of yes"] >= threshold["value"]
    assert ((frame["prediction"] == "yes") == expected).all()
    status, _, error = cirm(
        "predict", "b.csv", "--model", "m.cirm", "--out", "predictions.csv"
    )
    assert status == 0
    assert threshold["sentence"] in error
    assert (pd.read_csv("predictions.csv")["prediction"] == frame["prediction"]).all()


def test_a_rule_reaches_its_aim_on_the_held_out_rows_and_not_on_training_rows(fit):
    fit("--threshold", "recall=0.8")
    model = load("m.cirm")
    scores = model.held_out_scores
    recall = np.mean(np.array(scores.positives) >= model.threshold.value)
    assert recall >= 0.8
    # One row fewer would miss the aim.
    assert recall - 1 / len(scores.positives) < 0.8
    assert sum(scores.rows) == model.history[0].held_out == 480


def test_a_cost_gives_the_cheapest_threshold_on_held_out_rows(fit):
    fit("--threshold", "cost=10:1")
    model = load("m.cirm")
    positives, others = (
        np.array(part)
        for part in (model.held_out_scores.positives, model.held_out_scores.others)
    )
    count = model.held_out_scores.rows

    def cost(cut):
        missed, false = (positives < cut).mean(), (others >= cut).mean()
        return 10 * missed * count[0] + false * count[1]

    cheapest = min(cost(cut) for cut in [0, *positives, *others, 1])
    assert cost(model.threshold.value) == pytest.approx(cheapest)


def test_predict_and_evaluate_take_another_threshold_and_leave_the_file(cirm, fit):
    fit("--threshold", "recall=0.8")
    before = load("m.cirm").threshold
    content = read_json(
        cirm, "evaluate", "b.csv", "--model", "m.cirm", "--threshold", "0.001"
    )
    assert content["classes"]["yes"]["recall"] == 100
    # Held-out rows are judged by that threshold, too, so that nothing has dropped.
    assert "Accuracy 14" in content["verdict"]
    assert content["verdict"].startswith("No significant drop compared with")
    assert "held-out rows of a" in content["verdict"]
    assert load("m.cirm").threshold == before


def test_scores_on_arrival_are_not_compared_at_another_threshold(cirm, fit):
    fit("--threshold", "recall=0.8")
    status, _, error = cirm("update", "b.csv", "--model", "m.cirm")
    assert status == 0, error
    words = ["evaluate", "c.csv", "--model", "m.cirm", "--threshold", "0.001"]
    content = read_json(cirm, *words)
    assert "another threshold are not compared" in content["verdict"]


def test_update_applies_the_rule_to_the_held_out_rows_of_the_new_place(cirm, fit):
    fit("--threshold", "recall=0.8")
    first = load("m.cirm")
    status, printed, error = cirm("update", "b.csv", "--model", "m.cirm")
    assert status == 0, error
    second = load("m.cirm")
    assert second.threshold.rule == "recall=0.8"
    assert second.threshold.value != first.threshold.value
    assert second.history[1].rule == "recall=0.8"
    assert "(threshold recall=0.8; on 480 held-out rows" in printed
    # Both were measured with this rule, so recalls are compared.
    scores = evaluate(second, "c.csv")
    assert {one["score"] for one in scores["comparisons"]} >= {"recall", "accuracy"}
    _, printed, _ = cirm("evaluate", "c.csv", "--model", "m.cirm")
    for one in scores["comparisons"]:
        assert printed.lower().count(one["line"].lower()) == 1


def test_update_keeps_a_threshold_where_too_few_positive_rows_are_held_out(cirm, fit):
    fit("--threshold", "recall=0.8")
    before = load("m.cirm").threshold
    table(1200, 1, positives=0.005).to_csv("b.csv", index=False)
    status, _, error = cirm("update", "b.csv", "--model", "m.cirm")
    assert status == 0, error
    assert "note: the threshold stays at" in error
    assert load("m.cirm").threshold == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--threshold", "soon"],
            "--threshold: 'soon' is not valid. Give a number such as 0.2",
        ),
        (["--threshold", "recall=2"], "Give a number between 0 and 1"),
        (["--threshold", "cost=1:-1"], "Give positive numbers"),
        (["--positive", "maybe"], "there is no class 'maybe'. Use 'no' or 'yes'"),
        (["--class-weight", "even"], "'even' cannot be used. Give balanced, or"),
        (["--class-weight", "maybe=2"], "there is no class 'maybe'"),
        (
            ["--class-weight", "yes=0"],
            "the weight of the class 'yes' is 0, which is not a positive number",
        ),
        (["--class-weight", "yes=x"], "'yes=x' cannot be read. Write each class"),
        (["--threshold", "precision=0.99"], "no threshold meets this rule"),
        (
            ["--held-out", "0", "--threshold", "recall=0.9"],
            "class 'yes', but there are only 0",
        ),
        (
            ["--weight", "lactate"],
            "which is not a valid weight. Use weights of zero or more.",
        ),
        (["--weight", "v"], "there is no column 'v'"),
    ],
)
def test_wrong_weights_and_thresholds_are_refused(cirm, clinics, words, message):
    words = [*QUICK, "--held-out", "0.4", *words]
    fitting = ["fit", "a.csv", "--target", "outcome", "--model", "m.cirm", *words]
    status, _, error = cirm(*fitting)
    assert status == 2
    assert message in error
    assert not (clinics / "m.cirm").exists()


def test_a_regression_has_neither_thresholds_nor_class_weights(cirm, clinics):
    words = ["fit", "a.csv", "--target", "crp", "--model", "m.cirm", *QUICK]
    for option, value in (("--threshold", "0.2"), ("--class-weight", "balanced")):
        status, _, error = cirm(*words, option, value)
        assert status == 2
        assert "a regression has no" in error
        assert option in error


@pytest.mark.parametrize("learner", ["erm", "steady"])
def test_balanced_classes_find_more_rare_rows_and_later_places_use_the_weights(
    cirm, fit, learner
):
    chosen = [] if learner == "erm" else ["--learner", "steady", "--overwrite"]
    fit(*chosen)
    plain = evaluate(load("m.cirm"), "c.csv")["classes"]["yes"]["recall"]
    printed, _ = fit("--class-weight", "balanced", *chosen)
    weights = load("m.cirm").plan.class_weight
    share = (pd.read_csv("a.csv").outcome == "yes").mean()
    assert weights == pytest.approx({"no": 0.5 / (1 - share), "yes": 0.5 / share})
    assert f"Weights of the classes in training: no {weights['no']:.4g}" in printed
    balanced = evaluate(load("m.cirm"), "c.csv")["classes"]["yes"]["recall"]
    assert balanced > plain + 30
    status, _, error = cirm("update", "b.csv", "--model", "m.cirm")
    assert status == 0, error
    assert load("m.cirm").plan.class_weight == weights
    updated = evaluate(load("m.cirm"), "c.csv")["classes"]["yes"]["recall"]
    assert updated > plain + 30


def test_weights_of_classes_are_read_from_the_command(fit):
    fit("--class-weight", "yes=5,no=1")
    assert load("m.cirm").plan.class_weight == {"no": 1.0, "yes": 5.0}


def test_evaluate_weighs_rows_and_ignores_those_of_weight_zero(cirm, fit):
    fit()
    frame = pd.read_csv("c.csv")
    repeated = frame.loc[frame.index.repeat(frame.w)]
    weighted = read_json(
        cirm, "evaluate", "c.csv", "--model", "m.cirm", "--weight", "w"
    )
    expected = evaluate(load("m.cirm"), repeated.reset_index(drop=True))
    assert weighted["overall"] == pytest.approx(expected["overall"])
    assert weighted["confusion"]["counts"] == expected["confusion"]["counts"]
    assert weighted["rows"] == (frame.w > 0).sum()
    (note,) = weighted["notes"]
    assert f"weights, which sum to {frame.w.sum():,}: counts of predictions" in note
    # The intervals are wider: repeated rows say nothing new.
    found, wished = (one["classes"]["yes"] for one in (weighted, expected))
    assert found["recall_low"] <= wished["recall_low"]


@pytest.mark.parametrize("learner", ["erm", "steady", "gem"])
def test_weights_of_rows_in_update_count_like_repeated_rows(cirm, clinics, learner):
    # The first environment decides the scale of columns, by rows and not by weights.
    first = ["fit", "a.csv", "--target", "outcome", "--held-out", "0", "--weight", "w"]
    first += [*QUICK, "--set", "batch=0"] if learner != "steady" else []
    first += ["--learner", learner]
    frame = pd.read_csv("b.csv")
    frame.to_csv("weighted.csv", index=False)
    repeated = frame.loc[frame.index.repeat(frame.w)]
    repeated.assign(w=1).to_csv("repeated.csv", index=False)
    frame.drop(columns="w").to_csv("plain.csv", index=False)
    predictions = {}
    for name in ("weighted", "repeated", "plain"):
        status, _, error = cirm(*first, "--model", f"{name}.cirm")
        assert status == 0, error
        status, _, error = cirm("update", f"{name}.csv", "--model", f"{name}.cirm")
        assert status == 0, error
        found = predict(load(f"{name}.cirm"), "c.csv", probabilities=True)
        predictions[name] = found["probability of yes"]
    assert np.allclose(predictions["weighted"], predictions["repeated"], atol=2e-4)
    assert not np.allclose(predictions["weighted"], predictions["plain"], atol=2e-3)


def test_rows_of_weight_zero_are_absent_from_everything(cirm, clinics):
    frame = pd.read_csv("a.csv")
    words = ["fit", "a.csv", "--target", "outcome", *QUICK, "--model", "zero.cirm"]
    status, _, error = cirm(*words, "--weight", "w")
    assert status == 0, error
    frame[frame.w > 0].to_csv("a.csv", index=False)
    words[-1] = "absent.cirm"
    status, _, error = cirm(*words, "--weight", "w")
    assert status == 0, error
    zero, absent = (predict(load(f"{n}.cirm"), "c.csv") for n in ("zero", "absent"))
    assert zero.equals(absent)
