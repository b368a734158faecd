"""Estimators keep scikit-learn's contract, and go on from place to place."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from cirm import InvariantClassifier, InvariantRegressor, predict
from cirm.data.sources import make_names_for_array_columns as names

# Rows of these tests are told by one input, or by none; both are warned of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:column .* alone determines:UserWarning"),
    pytest.mark.filterwarnings("ignore:the model predicts nearly the same:UserWarning"),
    pytest.mark.filterwarnings("ignore:the predictions are constant:UserWarning"),
]

QUICK = {"hidden": (16,), "epochs": 60, "batch": 64, "rate": 0.02}
CHECKED = {"hidden": (8,), "epochs": 25, "batch": 64, "rate": 0.05}
INAPPLICABLE = {
    "check_array_api_input": "it asks for arrays of other libraries, which is only "
    "tried where SCIPY_ARRAY_API is set; tensors and DataFrames are taken",
    "check_sample_weight_equivalence_on_dense_data": "columns are scaled by rows, not "
    "by weights, and rows are held out at random; later places are equivalent",
}


def tensors(rows, seed=0):
    """Rows whose class the first input tells."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()


@pytest.mark.integration
@pytest.mark.parametrize("kind", [InvariantClassifier, InvariantRegressor])
def test_the_estimator_passes_scikit_learns_checks(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks' own, of what they skip
        results = check_estimator(
            kind("erm", settings=CHECKED),
            on_fail=None,
            expected_failed_checks=INAPPLICABLE,
        )
    left = {r["check_name"] for r in results if r["status"] != "passed"}
    assert left <= set(INAPPLICABLE)
    assert len(results) > 45


def test_environments_are_learned_together_or_in_order():
    x, y = tensors(120)
    sites = np.repeat(["north", "south"], 60)
    model = InvariantClassifier("erm", settings=QUICK).fit(x, y, environments=sites)
    assert [entry.name for entry in model.model_.history] == ["north", "south"]
    assert model.score(x, y) > 0.9


def test_a_later_environment_continues_where_the_first_ended():
    x, y = tensors(120)
    first = InvariantClassifier("erm", settings=QUICK)
    first.partial_fit(x[:60], y[:60], environment="north", classes=[0, 1])
    first.partial_fit(x[60:], y[60:], environment="south")
    whole = InvariantClassifier("erm", settings=QUICK, order="sequential")
    whole.fit(x, y, environments=np.repeat(["north", "south"], 60))
    assert np.array_equal(first.predict_proba(x), whole.predict_proba(x))


def test_saving_and_loading_changes_nothing(tmp_path):
    x, y = tensors(80)
    model = InvariantClassifier("virmv1", settings=QUICK).fit(x, y)
    model.save(tmp_path / "m.cirm")
    later = InvariantClassifier.load(tmp_path / "m.cirm")
    assert later.classes_.tolist() == [0, 1]
    assert np.array_equal(later.predict_proba(x), model.predict_proba(x))
    assert (later.predict_uncertainty(x) > 0).all()
    again = [m.partial_fit(*tensors(60, 1)) for m in (model, later)]
    assert np.array_equal(*(m.predict_proba(x) for m in again))
    third = again[0].partial_fit(*tensors(60, 2), environment="a third")
    assert [entry.name for entry in third.model_.history][1:] == [
        "environment 1",
        "a third",
    ]


@pytest.mark.integration
@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (7, 5), "activation": "relu", "dropout": 0.25, "epochs": 3},
        {"network": "linear", "rate": 0.03},
        {"network": "cnn", "hidden": (6,), "batch": 16},
    ],
)
def test_a_loaded_estimator_fits_again_with_the_same_settings(tmp_path, settings):
    x, y = images(40)
    model = InvariantClassifier("erm", settings=settings).fit(x, y)
    model.save(tmp_path / "m.cirm")
    again = InvariantClassifier.load(tmp_path / "m.cirm").fit(x, y)
    assert again.model_.plan == model.model_.plan
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))


def test_a_loaded_estimator_of_a_module_fits_again_with_its_settings(tmp_path):
    x, y = images(40)
    settings = {"epochs": 20, "rate": 0.02}
    own = Small()
    model = InvariantClassifier("erm", network=own, settings=settings).fit(x, y)
    model.save(tmp_path / "m.cirm")
    again = InvariantClassifier.load(tmp_path / "m.cirm", network=own).fit(x, y)
    assert again.model_.plan == model.model_.plan


def test_a_model_is_loaded_as_what_it_is(tmp_path):
    x, y = tensors(80)
    frame = pd.DataFrame(x.numpy(), columns=list("abcd"))
    InvariantClassifier("erm", settings=QUICK).fit(frame, y).save(tmp_path / "c.cirm")
    InvariantRegressor("erm", settings=QUICK).fit(x, x[:, 1]).save(tmp_path / "r.cirm")
    with pytest.raises(
        ValueError,
        match="a classification model, but InvariantRegressor needs a regression",
    ):
        InvariantRegressor.load(tmp_path / "c.cirm")
    with pytest.raises(
        ValueError, match="a regression model, but InvariantClassifier needs a"
    ):
        InvariantClassifier.load(tmp_path / "r.cirm")
    named = InvariantClassifier.load(tmp_path / "c.cirm")
    assert named.feature_names_in_.tolist() == list("abcd")
    assert len(named.predict(frame)) == 80
    unnamed = InvariantRegressor.load(tmp_path / "r.cirm")
    assert unnamed.n_features_in_ == 4
    assert not hasattr(unnamed, "feature_names_in_")


@pytest.mark.filterwarnings("default:column .* alone determines:UserWarning")
def test_a_column_that_tells_the_target_is_warned_of():
    with pytest.warns(UserWarning, match="column 'x0' alone determines the target"):
        InvariantClassifier("erm", settings=QUICK).fit(*tensors(400))


def test_a_row_without_its_environment_is_refused():
    places = ["a"] * 79 + [None]
    with pytest.raises(ValueError, match="environment of row 79"):
        InvariantClassifier("erm").fit(*tensors(80), environments=places)


@pytest.mark.parametrize(
    "labels", [["a", "b"], [False, True], [3, 7]], ids=["text", "booleans", "numbers"]
)
def test_labels_come_back_as_they_were(tmp_path, labels):
    x, y = tensors(60)
    named = np.array(labels)[y.numpy()]
    model = InvariantClassifier("erm", settings=QUICK).fit(x, named)
    assert set(model.predict(x)) <= set(named)
    model.save(tmp_path / "m.cirm")
    loaded = InvariantClassifier.load(tmp_path / "m.cirm")
    assert loaded.predict(x).tolist() == model.predict(x).tolist()


def test_a_table_with_text_gaps_and_dates_is_taken():
    x, y = tensors(100)
    frame = pd.DataFrame(x.numpy(), columns=list("abcd"))
    frame["kind"] = np.where(y == 1, "p", "q")
    frame["day"] = pd.date_range("2024-01-01", periods=100)
    frame.loc[3:20, "b"] = np.nan
    model = InvariantClassifier("erm", settings=QUICK).fit(frame, y)
    assert model.score(frame, y) > 0.9
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))


def test_it_works_in_pipelines_and_searches():
    x, y = (part.numpy() for part in tensors(90))
    pipeline = make_pipeline(
        StandardScaler(), InvariantClassifier("erm", settings=QUICK)
    )
    assert cross_val_score(pipeline, x, y, cv=3).mean() > 0.8
    params = clone(pipeline).get_params()
    assert params["invariantclassifier__settings"] == QUICK


def test_values_are_in_their_own_units():
    x, _ = tensors(200)
    y = 5000 + 800 * x[:, 0].numpy()
    model = InvariantRegressor("virmv1", settings=QUICK).fit(x, y)
    assert model.score(x, y) > 0.8
    assert model.predict(x).mean() == pytest.approx(5000, abs=200)
    assert model.predict_uncertainty(x).shape == (200,)
    shown = predict(model.model_, pd.DataFrame(x.numpy(), columns=names(4)))
    assert np.allclose(model.predict(x), shown["prediction"], rtol=1e-4)
    assert np.allclose(model.predict_uncertainty(x), shown["uncertainty"], rtol=1e-3)


@pytest.mark.parametrize("learner", ["irmv1", "virmv1", "irmg", "icp"])
def test_a_rows_prediction_does_not_depend_on_the_rows_beside_it(learner):
    x, _ = tensors(64)
    model = InvariantRegressor(learner, settings=QUICK).fit(x, 3 * x[:, 1])
    alone = np.concatenate([model.predict(row[None]) for row in x])
    assert np.allclose(model.predict(x), alone, rtol=1e-9, atol=1e-9)


class Small(nn.Module):
    """A small convolutional network for images of one channel."""

    def __init__(self, outputs=2):
        super().__init__()
        self.filters = nn.Conv2d(1, 4, 3, stride=2)
        self.head = nn.Linear(4 * 3 * 3, outputs)

    def forward(self, x):
        return self.head(torch.relu(self.filters(x)).flatten(1))


def images(rows, seed=0):
    """Images that are bright in the upper or in the lower half."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (rows,), generator=generator)
    x = torch.rand(rows, 1, 8, 8, generator=generator)
    x[y == 1, :, :4] += 1
    x[y == 0, :, 4:] += 1
    return x, y


@pytest.mark.parametrize("learner", ["erm", "c-bvirm", "steady"])
def test_a_network_of_ones_own_is_trained(tmp_path, learner):
    x, y = images(80)
    settings = {"epochs": 20, "rate": 0.02, "batch": 40}
    torch.manual_seed(0)  # training starts from the weights of the module
    own = Small()
    before = [p.detach().clone() for p in own.parameters()]
    model = InvariantClassifier(learner, network=own, settings=settings).fit(x, y)
    assert model.score(x, y) > 0.9
    assert all(map(torch.equal, before, own.parameters()))
    model.save(tmp_path / "m.cirm")
    loaded = InvariantClassifier.load(tmp_path / "m.cirm", network=Small())
    assert np.array_equal(loaded.predict_proba(x), model.predict_proba(x))
    with pytest.raises(
        ValueError, match=r"network of your own, the torch module 'Small', which"
    ):
        InvariantClassifier.load(tmp_path / "m.cirm")
    with pytest.raises(ValueError, match="but the model was trained with"):
        InvariantClassifier.load(tmp_path / "m.cirm", network=Small(3))


def test_the_default_learner_predicts_images_and_adapts_to_them():
    x, y = images(80)
    sites = ["a"] * 40 + ["b"] * 40
    model = InvariantClassifier(settings={"epochs": 20}).fit(x, y, environments=sites)
    assert model.score(x, y) > 0.9
    assert model.adapt(x).score(x, y) > 0.9


def test_a_network_with_batch_normalisation_predicts():
    x, y = images(80)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()
    own = nn.Sequential(*layers, nn.Linear(4 * 36, 2))
    model = InvariantClassifier(network=own, settings={"epochs": 20}).fit(x, y)
    assert model.score(x, y) > 0.9 and model.adapt(x).score(x, y) > 0.9


def test_inputs_of_other_forms_are_taken_or_refused_in_a_sentence():
    x, y = images(60)
    model = InvariantClassifier(settings={"epochs": 5}).fit(x.tolist(), y.tolist())
    assert np.array_equal(model.predict(x), model.predict(x.tolist()))
    with pytest.raises(ValueError, match="fitted to arrays, whose rows have the shape"):
        model.predict(x.flatten(1))
    with pytest.raises(ValueError, match="X has 0 rows"):
        model.predict(x[:0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"settings": {"trust": "all"}}, "trust must be one of invariant, interval"),
        ({"settings": {"view": "pixels"}}, "view must be one of auto, columns"),
        ({"settings": {"members": 0}}, "members must be 1 or more"),
        ({"device": "gpu"}, "PyTorch cannot use 'gpu' on this machine"),
    ],
)
def test_settings_and_devices_that_do_not_exist_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        InvariantClassifier(**settings).fit(*images(30))


def test_a_network_of_ones_own_must_fit_the_task():
    x, y = images(30)
    with pytest.raises(
        ValueError, match="has 5 outputs, but this classification needs 1 or 2"
    ):
        InvariantClassifier("erm", network=Small(5)).fit(x, y)
    with pytest.raises(ValueError, match="The settings hidden describe a network"):
        InvariantClassifier("erm", network=Small(), settings={"hidden": (3,)}).fit(x, y)
    small = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"cannot process inputs of shape \["):
        InvariantClassifier("erm", network=small).fit(x, y)


class Loader:
    """Batches that can be read again and again."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def test_batches_are_learned_as_the_whole_would_be():
    x, y = tensors(200)
    cut = [(x[n : n + 50], y[n : n + 50]) for n in range(0, 200, 50)]
    whole = InvariantClassifier("erm", settings=QUICK).fit(x, y)
    for batches in (Loader(cut), (pair for pair in cut)):
        parts = InvariantClassifier("erm", settings=QUICK).fit(batches)
        assert np.allclose(parts.predict_proba(x), whole.predict_proba(x), atol=1e-5)


def test_batches_of_tables_and_images_and_environments():
    x, y = tensors(100)
    frame = pd.DataFrame(x.numpy(), columns=list("abcd"))
    cut = [(frame[:50], y[:50], "north"), (frame[50:], y[50:], ["south"] * 50)]
    model = InvariantClassifier("erm", settings=QUICK).fit(cut)
    assert [entry.name for entry in model.model_.history] == ["north", "south"]
    settings = {"epochs": 5}
    x, y = images(60)
    model = InvariantClassifier("erm", network=Small(), settings=settings)
    model.fit(pair for pair in [(x[:30], y[:30]), (x[30:], y[30:])])
    assert model.model_.history[0].rows == 60


def test_images_may_have_their_channels_last_and_be_bytes_or_batches():
    generator = np.random.default_rng(0)
    y = np.arange(80) % 2
    last = generator.integers(0, 200, (80, 6, 5, 3)).astype(np.uint8)
    last[..., 0] += 50 * y[:, None, None].astype(np.uint8)
    first = np.moveaxis(last, -1, 1)
    settings = {"epochs": 20, "hidden": (4,)}
    several = [(last[:40], y[:40]), (last[40:], y[40:])]
    results = []
    for inputs, new in (
        ((last, y), last),
        ((first, y), first),
        ((first / np.float32(255), y), first / np.float32(255)),
        ((several,), last),
        ((iter(several),), last),
    ):
        model = InvariantClassifier("erm", settings=settings).fit(*inputs)
        assert model.model_.schema.treatment.shape == (3, 6, 5)
        results.append(model.predict_proba(new))
    assert np.ptp(results[0][:, 0]) > 0.1
    for result in results[1:]:
        assert np.allclose(result, results[0], atol=1e-6)


def test_grey_images_of_bytes_have_one_channel():
    x = np.arange(40 * 12, dtype=np.uint8).reshape(40, 3, 4)
    model = InvariantClassifier("erm", settings={"epochs": 1})
    model.fit(x, np.arange(40) % 2)
    assert model.model_.schema.treatment.shape == (1, 3, 4)
    assert model.predict(x).shape == (40,)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "a batch is of type NoneType"),
        ([1, 2], "a batch is of type int"),
        ([(torch.zeros(3, 2), torch.zeros(2))], "3 rows of inputs but 2 targets"),
        (
            iter([(pd.DataFrame({"a": [1]}), [1])]),
            "can be read only once, .* Pass the tables as a list",
        ),
        (
            iter([(torch.zeros(3, 2), [0, 1, 0]), (torch.zeros(3, 4), [0, 1, 0])]),
            "each row of a batch has the shape",
        ),
    ],
)
def test_batches_without_sense_are_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        InvariantClassifier("erm").fit(batches)


def test_environments_must_be_as_many_as_rows():
    with pytest.raises(ValueError, match=r"1 entries, but X has 20 rows\. Pass"):
        InvariantClassifier("erm").fit(*tensors(20), environments=["a"])


def test_columns_named_as_those_beside_them_are_refused():
    frame = pd.DataFrame({"target": [1.0, 2.0, 3.0], "b": [1, 2, 4]})
    with pytest.raises(ValueError, match="X has a column 'target', a name that"):
        InvariantClassifier("erm").fit(frame, [0, 1, 0])
