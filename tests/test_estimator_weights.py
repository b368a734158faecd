"""What scikit-learn's users expect of the estimators: weights, seeds and scores."""

import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.metrics import accuracy_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cirm import InvariantClassifier, InvariantRegressor

QUICK = {"hidden": (4,), "epochs": 20, "batch": 0, "rate": 0.02}
UNUSED = "groups were given to cross-validation, but no environments reach fit"


def rows(count, seed=0, positives=0.5):
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < positives).astype(int)
    x = rng.normal(size=(count, 3))
    x[:, 0] += 1.5 * y
    return x, y, rng.integers(0, 4, count)


def classifier(**keywords):
    return InvariantClassifier("erm", settings=QUICK, held_out=0.0, **keywords)


@pytest.mark.filterwarnings("ignore:the predictions are constant")
@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_sample_weights_count_like_repeated_rows_in_partial_fit(kind):
    (x, y, _), (x2, y2, w) = rows(60), rows(80, seed=1)
    if kind is InvariantRegressor:
        y, y2 = y + x[:, 1], y2 + x2[:, 1]
    weighted, repeated, plain = (
        kind("erm", settings=QUICK, held_out=0.0).partial_fit(x, y) for _ in range(3)
    )
    weighted.partial_fit(x2, y2, sample_weight=w)
    repeated.partial_fit(x2.repeat(w, 0), y2.repeat(w))
    plain.partial_fit(x2, y2)
    call = "predict_proba" if kind is InvariantClassifier else "predict"
    found, wished, other = (
        getattr(model, call)(x) for model in (weighted, repeated, plain)
    )
    assert np.allclose(found, wished, atol=1e-3)
    assert not np.allclose(found, other, atol=1e-3)


@pytest.mark.filterwarnings("ignore:the predictions are constant")
def test_rows_of_weight_zero_are_absent_also_as_classes():
    x, y, w = rows(80)
    labels = np.where(w == 0, "unknown", np.where(y == 1, "ill", "well"))
    keep = w > 0
    found = classifier().fit(x, labels, sample_weight=w)
    wished = classifier().fit(x[keep], labels[keep], sample_weight=w[keep])
    assert found.classes_.tolist() == ["ill", "well"]
    assert np.array_equal(found.predict_proba(x), wished.predict_proba(x))


def test_the_score_is_weighted():
    x, y, w = rows(80)
    model = classifier().fit(x, y)
    expected = accuracy_score(y, model.predict(x), sample_weight=w)
    assert model.score(x, y, sample_weight=w) == pytest.approx(expected)


@pytest.mark.parametrize("weight", ["balanced", {0: 1.0, 1: 10.0}])
@pytest.mark.filterwarnings("ignore:the predictions are constant")
def test_class_weights_find_more_of_a_rare_class(weight):
    x, y, _ = rows(400, positives=0.1)
    plain = classifier().fit(x, y)
    model = classifier(class_weight=weight).fit(x, y)
    recalls = [(one.predict(x)[y == 1] == 1).mean() for one in (plain, model)]
    assert recalls[1] > recalls[0] + 0.3


def test_a_random_state_is_a_seed():
    x, y, _ = rows(60)
    seeded = classifier(seed=3).fit(x, y).predict_proba(x)
    assert np.array_equal(classifier(random_state=3).fit(x, y).predict_proba(x), seeded)
    drawn = [
        classifier(random_state=np.random.RandomState(0)).fit(x, y).predict_proba(x)
        for _ in range(2)
    ]
    assert np.array_equal(*drawn)
    assert not np.array_equal(drawn[0], seeded)


@pytest.mark.parametrize("classes", [2, 3])
def test_decisions_and_log_probabilities_agree_with_predictions(classes):
    x, y, _ = rows(90)
    y = y if classes == 2 else np.where(x[:, 1] > 0.5, 2, y)
    model = classifier().fit(x, y)
    scores, proba = model.decision_function(x), model.predict_proba(x)
    assert np.allclose(np.exp(model.predict_log_proba(x)), proba)
    if classes == 2:
        assert np.allclose(scores, np.log(proba[:, 1] / proba[:, 0]), atol=1e-6)
        assert (model.predict(x) == (scores > 0)).all()
    else:
        assert (model.predict(x) == scores.argmax(1)).all()


def test_arrays_are_read_by_position_after_a_table_with_text():
    x, y, _ = rows(80)
    frame = pd.DataFrame(x, columns=["lactate", "crp", "age"])
    frame["scanner"] = np.where(x[:, 2] > 0, "new", "old")
    model = classifier().fit(frame, y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        found = model.predict_proba(frame.to_numpy())
    assert np.array_equal(found, model.predict_proba(frame))


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: GridSearchCV(
    one, {"seed": [0]}, cv=GroupKFold(2))], ids=["alone", "search"])  # fmt: skip
def test_groups_that_do_not_reach_fit_are_noticed(wrap):
    x, y, _ = rows(90)
    groups = np.repeat(["a", "b", "c"], 30)
    estimator = wrap(classifier())
    with pytest.warns(UserWarning, match=UNUSED):
        if isinstance(estimator, GridSearchCV):
            estimator.fit(x, y, groups=groups)
        else:
            cross_val_score(estimator, x, y, groups=groups, cv=GroupKFold(3))


def test_without_groups_cross_validation_is_quiet():
    x, y, _ = rows(60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_val_score(classifier(), x, y, cv=2)


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_the_advice_brings_groups_to_fit_as_environments(routing, in_pipeline):
    x, y, _ = rows(90)
    groups = np.repeat(["a", "b", "c"], 30)
    estimator = classifier().set_fit_request(environments="groups")
    if in_pipeline:
        estimator = make_pipeline(StandardScaler(), estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cross_validate(
            estimator,
            x,
            y,
            params={"groups": groups},
            cv=GroupKFold(3),
            return_estimator=True,
            error_score="raise",
        )
    for one in found["estimator"]:
        model = one[-1] if in_pipeline else one
        assert len(model.model_.history) == 2
