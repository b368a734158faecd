"""Tables in Python: each place gets its name from a dictionary, a file or a column."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from cirm import (
    InvariantClassifier,
    adapt,
    evaluate,
    fit,
    load,
    predict,
    save,
    update,
)

SETTINGS = {"epochs": 3, "hidden": (4,)}


def make_table(seed, rows=60):
    draws = np.random.default_rng(seed)
    age = draws.normal(60, 10, rows)
    ill = age + draws.normal(0, 5, rows) > 60
    return pd.DataFrame({"age": age, "ill": np.where(ill, "yes", "no")})


def fit_erm(data, **options):
    return fit(data, "ill", learner="erm", settings=SETTINGS, **options)


def test_a_dictionary_names_places(tmp_path):
    path = tmp_path / "q3.csv"
    make_table(1).to_csv(path, index=False)
    model = fit_erm({"north": make_table(0), "south": path})
    assert [(e.name, e.rows) for e in model.history] == [("north", 60), ("south", 60)]
    model = update(model, {"west": make_table(2)})
    assert [entry.name for entry in model.history] == ["north", "south", "west"]
    found = evaluate(model, {"east": make_table(3), "centre": make_table(4)})
    assert set(found["environments"]) == {"east", "centre"}
    assert len(predict(model, {"east": make_table(3)})) == 60


def test_a_dictionary_and_a_column_give_the_same_model():
    one, other = make_table(0), make_table(1)
    both = pd.concat([one.assign(site="north"), other.assign(site="south")])
    model = fit_erm({"north": one, "south": other})
    same = fit_erm(both.reset_index(drop=True), environment="site")
    assert model.state.params.equal(same.state.params)


def test_a_list_of_tables_needs_names_or_a_column():
    tables = [make_table(0), make_table(1)]
    with pytest.raises(
        ValueError, match=r"a list of tables does not say .* dictionary"
    ):
        fit_erm(tables)
    sites = [t.assign(site=name) for t, name in zip(tables, "ab", strict=True)]
    model = fit_erm(sites, environment="site")
    assert [entry.name for entry in model.history] == ["a", "b"]


def test_files_of_one_name_need_a_column(tmp_path):
    paths = []
    for seed, site in enumerate(("north", "south")):
        path = tmp_path / site / "rows.csv"
        path.parent.mkdir()
        make_table(seed).assign(site=site).to_csv(path, index=False)
        paths.append(path)
    with pytest.raises(
        ValueError, match=r"several files have the name 'rows'\. Rename"
    ):
        fit_erm(paths, ignore=["site"])
    model = fit_erm(paths, environment="site")
    assert [entry.name for entry in model.history] == ["north", "south"]
    found = evaluate(model, paths)
    assert set(found["environments"]) == {"north", "south"}
    bare = [path.with_name("bare.csv") for path in paths]
    for old, new in zip(paths, bare, strict=True):
        pd.read_csv(old).drop(columns="site").to_csv(new, index=False)
    for use in (evaluate, update):
        with pytest.raises(ValueError, match="several files have the name 'bare'"):
            use(model, bare)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"north": [3, 4]}, "place 'north': data: an object of type int cannot be"),
        ({"north": [make_table(0), make_table(1)]}, "place 'north': its data are a li"),
        ({}, "an object of type dict cannot be read"),
        ({"north": make_table(0)[:0]}, "place 'north': the data have no rows"),
    ],
)
def test_a_dictionary_of_something_else_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        fit_erm(data)


def test_adapting_to_two_files_of_one_name_is_refused(tmp_path):
    model = fit({"a": make_table(0), "b": make_table(1)}, "ill")
    paths = [tmp_path / part / "rows.csv" for part in ("one", "two")]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        make_table(seed + 2).to_csv(path, index=False)
    with pytest.raises(ValueError, match=r"from 2 places \('rows', 'rows'\), but"):
        adapt(model, paths)
    assert adapt(model, paths[:1]).adaptation.rows == 60


def test_predictions_have_the_index_of_the_table():
    model = fit_erm({"north": make_table(0)})
    table = make_table(1).set_index(pd.Index(range(1000, 1060)))
    shuffled = table.sample(frac=1, random_state=0)
    shuffled["predicted"] = predict(model, shuffled)["prediction"]
    expected = predict(model, table)["prediction"]
    assert shuffled["predicted"].loc[expected.index].tolist() == expected.tolist()
    some = table[table["age"] > 60]
    assert predict(model, some).index.equals(some.index)


def test_values_instead_of_the_name_of_the_target_are_refused():
    table = make_table(0)
    with pytest.raises(ValueError, match=r"the name of the column to predict, not its"):
        fit(table.drop(columns="ill"), table["ill"])


def test_a_model_is_shown_in_a_line():
    model = fit_erm({"north": make_table(0), "south": make_table(1)})
    shown = "<Model: erm, classification of 'ill', places 'north', 'south'>"
    assert repr(model) == shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environments": "site"}, r"environments is 'site'\. Pass one name for each"),
        ({"gaps": [3]}, r"the target of row 3 \(counted from 0\) is missing"),
    ],
)
def test_estimators_say_what_is_wrong_with_environments_and_targets(options, message):
    table = make_table(0)
    y = table.pop("ill").astype(object)
    y[options.pop("gaps", [])] = np.nan
    with pytest.raises(ValueError, match=message):
        InvariantClassifier("erm", settings=SETTINGS).fit(table, y, **options)


def test_a_column_in_another_format_is_not_taken_for_a_wrong_cell():
    table = make_table(0).assign(seen=pd.date_range("2024-01-01", periods=60))
    model = fit_erm({"north": table.assign(seen=table["seen"].dt.strftime("%Y-%m-%d"))})
    other = table.assign(seen=table["seen"].dt.strftime("%m/%d/%Y"))
    with pytest.raises(ValueError, match=r"like most values of the column\. Convert"):
        update(model, {"south": other})


@pytest.mark.parametrize(
    "labels", [[0.0, 1.0], [2.0, 5.0], ["1.0", "01"], ["1.0", "2.0"], [False, True]]
)
def test_labels_of_any_type_come_back_as_they_were(labels):
    table = make_table(0)
    y = np.array(labels)[(table.pop("ill") == "yes").astype(int)]
    model = InvariantClassifier("erm", settings=SETTINGS).fit(table, y)
    model.partial_fit(table, y, environment="later")
    found = model.predict(table)
    assert found.dtype == y.dtype
    assert set(found) <= set(y)
    assert model.classes_.tolist() == sorted(set(y.tolist()))


def test_a_class_that_reads_as_a_missing_value_is_refused():
    table = make_table(0)
    y = np.where(table.pop("ill") == "yes", "NA", "ill")
    with pytest.raises(ValueError, match="the class 'NA' reads as a missing value"):
        InvariantClassifier("erm", settings=SETTINGS).fit(table, y)


def test_numbers_up_to_255_are_refused_after_bytes(tmp_path):
    draws = np.random.default_rng(0)
    y = np.arange(40) % 2
    images = draws.integers(0, 56, size=(40, 4, 4, 3)) + 200 * y[:, None, None, None]
    images = images.astype(np.uint8)
    model = InvariantClassifier("erm", settings={"epochs": 30}).fit(images, y)
    save(model.model_, tmp_path / "m.cirm")
    loaded = load(tmp_path / "m.cirm")
    np.savez(tmp_path / "new.npz", X=images.astype(np.float32))
    with pytest.raises(ValueError, match=r"value 2\d\d, but .* first fitted to bytes"):
        predict(loaded, tmp_path / "new.npz")
    same = model.predict_proba(images)
    assert np.allclose(model.predict_proba(images / 255), same, atol=1e-6)


class TinyNetwork(nn.Module):
    """Its activation is registered last, but not used last."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(48, 8), nn.Linear(8, 2)
        self.activation = nn.ReLU()

    def forward(self, inputs):
        return self.last(self.activation(self.first(inputs.flatten(1))))


def make_images():
    draws = np.random.default_rng(0)
    y = np.arange(60) % 2
    shift = y[:, None, None, None]
    return (draws.random((60, 3, 4, 4)) + shift).astype(np.float32), y


@pytest.mark.parametrize("kind", ["arrays", "tensors", "lists"])
def test_lists_of_images_are_those_of_one_array(kind):
    images, y = make_images()
    given = {
        "arrays": list(images),
        "tensors": list(map(torch.tensor, images)),
        "lists": images.tolist(),
    }[kind]
    settings = {"epochs": 20, "rate": 0.01}
    whole, other = (
        InvariantClassifier("erm", settings=settings).fit(inputs, y)
        for inputs in (images, given)
    )
    assert np.allclose(other.predict_proba(given), whole.predict_proba(images))


def test_networks_end_with_a_linear_layer():
    images, y = make_images()
    torch.manual_seed(0)  # of the module's own weights
    model = InvariantClassifier(
        "erm", network=TinyNetwork(), settings={"epochs": 40, "rate": 0.01}
    )
    assert model.fit(images, y).score(images, y) > 0.9
    ends = nn.Sequential(nn.Flatten(), nn.Linear(48, 2), nn.Sequential(nn.Softmax(1)))
    with pytest.raises(ValueError, match="network ends with Softmax, but its outputs"):
        InvariantClassifier("erm", network=ends, settings={"epochs": 2}).fit(images, y)
    with pytest.raises(
        TypeError, match="Pass an instance, such as network=TinyNetwork"
    ):
        fit(make_table(0), "ill", learner="erm", network=TinyNetwork)
