"""A model learns place after place; what it reads and refuses is decided once."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from cirm import evaluate, fit, predict, update
from cirm.data import rows as stores
from cirm.memory import list_state_tensors
from cirm.model.explain import describe_model

FEW = {"hidden": (4,), "epochs": 3, "rate": 0.05}


def same(first, second):
    pairs = zip(
        list_state_tensors(first.state),
        list_state_tensors(second.state),
        strict=True,
    )
    return all(torch.equal(a, b) for a, b in pairs)


def names(model):
    return [column.name for column in model.schema.treatment.encoding.columns]


def test_a_file_is_an_environment_named_after_it(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    (entry,) = model.history
    assert (entry.name, entry.rows, entry.held_out) == ("clinic-a", 200, 20)
    assert entry.metrics_after["accuracy"] > 80
    assert entry.metrics_before == {}


def test_a_later_environment_is_judged_before_it_is_learned(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    told = evaluate(model, files / "clinic-b.csv")["overall"]
    model = update(model, files / "clinic-b.csv")
    assert model.history[1].metrics_before == pytest.approx(told)
    assert [entry.stage for entry in model.history] == [0, 1]


def test_the_old_model_stays_as_it_is(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    copies = [leaf.clone() for leaf in list_state_tensors(model.state)]
    update(model, files / "clinic-b.csv")
    assert all(map(torch.equal, list_state_tensors(model.state), copies))
    assert len(model.history) == 1


def test_a_column_of_environments_splits_a_file_in_order_of_appearance(clinic, quick):
    parts = [clinic(100, 0.9, n).assign(site=name) for n, name in enumerate("ba")]
    model = fit(pd.concat(parts), "outcome", environment="site", settings=quick)
    assert [entry.name for entry in model.history] == ["b", "a"]
    assert [entry.stage for entry in model.history] == [0, 0]


def test_environments_in_sequence_are_those_of_later_updates(clinic, quick):
    parts = [clinic(100, 0.9, n).assign(site=name) for n, name in enumerate("ab")]
    both = pd.concat(parts, ignore_index=True)
    words = {"environment": "site", "settings": quick}
    whole = fit(both, "outcome", order="sequential", **words)
    first = fit(parts[0], "outcome", **words)
    assert same(whole, update(first, parts[1]))


def test_nothing_raw_is_kept_by_default(files):
    model = fit(files / "clinic-a.csv", "outcome", settings=FEW)
    told = describe_model(model)
    assert told["raw_examples"] == 0
    assert told["learner"] == "steady"
    assert all(part["examples"] == 0 for part in told["memory"].values())


def test_raw_examples_of_a_memory_are_counted(files):
    model = fit(files / "clinic-a.csv", "outcome", learner="gem", settings=FEW)
    assert describe_model(model)["raw_examples"] == 100


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_another_unit_at_a_later_place_is_refused_and_changes_nothing(
    clinic, quick, factor
):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    later["marker"] *= factor
    with pytest.raises(
        ValueError, match="column 'marker' seems to be in a different unit"
    ):
        update(model, later)
    accepted = update(model, later, accept_units=True)
    assert any(
        "column 'marker' seems to be in a different unit" in note
        for note in accepted.history[1].notes
    )
    assert accepted.schema == model.schema


def test_the_first_environments_scale_stays(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    later["age"] += 30
    assert update(model, later).schema == model.schema


def test_a_place_far_away_is_said(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    later["age"] += 300
    notes = update(model, later).history[1].notes
    far = "column 'age' is far from the data of the first place"
    assert [far in note for note in notes].count(True) == 1
    assert any("is far" in text for text in evaluate(model, later)["notes"])


def test_new_categories_and_empty_columns_are_said(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    later.loc[later.index < 20, "scanner"] = "newest"
    (note,) = update(model, later).history[1].notes
    assert "column 'scanner': 10 % of the rows have categories" in note
    later["scanner"], later["age"] = clinic(200, 0.9, 1)["scanner"], np.nan
    (note,) = evaluate(model, later)["notes"]
    assert (
        note
        == "column 'age': all values are missing. Check that the column was exported."
    )


def test_columns_that_are_lacking_are_refused_or_taken_for_missing(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1).drop(columns="marker")
    with pytest.raises(ValueError, match="there is no column 'marker'"):
        update(model, later)
    notes = update(model, later, fill_missing=True).history[1].notes
    assert (
        "table: these columns are absent, so all their values are treated as "
        "missing: 'marker'" in notes
    )


def test_columns_that_are_new_are_said_and_not_used(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    more = update(model, later.assign(weight=1.0, height=2.0))
    (note,) = more.history[1].notes
    assert note.endswith("fitted without them: 'weight', 'height'")
    assert same(more, update(model, later))


def test_the_order_of_later_columns_does_not_matter(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    assert same(update(model, later), update(model, later[later.columns[::-1]]))


def test_a_category_and_gaps_that_first_come_later_are_taken(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    later = clinic(200, 0.9, 1)
    later.loc[:20, "scanner"] = "quite new"
    later.loc[30:60, "marker"] = np.nan
    assert update(model, later).history[1].rows == 200


def test_a_class_that_first_comes_later_is_refused_unless_declared(clinic, quick):
    first, later = clinic(100, 0.9, 0), clinic(100, 0.9, 1)
    later.loc[3, "outcome"] = "unclear"
    model = fit(first, "outcome", settings=quick)
    with pytest.raises(
        ValueError, match=r"row 3: column 'outcome' has the value 'unclear'"
    ):
        update(model, later)
    three = fit(first, "outcome", classes=["ill", "well", "unclear"], settings=quick)
    assert update(three, later).history[1].rows == 100
    shown = predict(three, first, probabilities=True)
    assert list(shown.columns[-3:]) == [
        f"probability of {name}" for name in ("ill", "well", "unclear")
    ]


def test_a_first_place_with_one_class_needs_the_others_declared(clinic, quick):
    only = clinic(200, 0.9, 0).query("outcome == 'ill'")
    with pytest.raises(ValueError, match="If other classes come later, declare"):
        fit(only, "outcome", settings=quick)
    model = fit(only, "outcome", classes=["ill", "well"], settings=quick)
    assert any(
        "all rows have the class 'ill'" in note for note in model.history[0].notes
    )


def test_a_later_place_with_one_class_is_learned_and_said(clinic, quick):
    model = fit(clinic(200, 0.9, 0), "outcome", settings=quick)
    model = update(model, clinic(200, 0.9, 1).query("outcome == 'well'"))
    assert any(
        "all rows have the class 'well'" in note for note in model.history[1].notes
    )


def test_rows_that_were_learned_are_refused_unless_asked_for(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    with pytest.raises(
        ValueError, match="'clinic-a': the model was already trained on these rows"
    ):
        update(model, files / "clinic-a.csv")
    assert len(update(model, files / "clinic-a.csv", again=True).history) == 2


@pytest.mark.parametrize("kind", ["category", "number"])
def test_a_target_that_leaks_into_a_column_is_said(clinic, quick, kind):
    frame = clinic(200, 0.9, 0)
    ill = frame["outcome"] == "ill"
    noise = np.random.default_rng(0).random(200)
    leak = ill + noise / 2 if kind == "number" else ill.map({True: "p", False: "q"})
    model = fit(frame.assign(diagnosis=leak), "outcome", settings=quick)
    (note,) = [note for note in model.history[0].notes if "alone determines" in note]
    assert "column 'diagnosis' alone determines the target in every row" in note
    assert "--ignore diagnosis" in note


def test_no_leak_is_seen_where_there_is_none(clinic, quick):
    assert fit(clinic(200, 0.9, 0), "outcome", settings=quick).history[0].notes == ()


def test_a_column_of_nearly_the_same_name_is_suggested(clinic, quick):
    frame = clinic(60, 0.9, 0).rename(columns={"outcome": "Outcome"})
    with pytest.raises(ValueError, match=r"column 'outcome'. Did you mean 'Outcome'\?"):
        fit(frame, "outcome", learner="erm", settings=quick)
    with pytest.raises(ValueError, match=r"column 'nothing'. The columns are"):
        fit(frame, "nothing", learner="erm", settings=quick)


def test_no_leak_is_seen_where_nearly_each_row_has_a_class_of_its_own(clinic, quick):
    frame = clinic(200, 0.9, 0)
    frame["outcome"] = [f"class {max(n, 1)}" for n in range(200)]
    notes = fit(frame, "outcome", learner="erm", settings=quick).history[0].notes
    assert any("has 199 classes in 200 rows" in note for note in notes)
    assert not any("alone determines" in note for note in notes)


@pytest.mark.parametrize("names", [("01", "02"), ("+1", "-1"), ("1e30", "2e30")])
def test_classes_that_are_written_as_codes_keep_their_names(files, clinic, names):
    codes = dict(zip(("ill", "well"), names, strict=True))
    frame = clinic(100, 0.9, 0)
    frame.assign(outcome=frame["outcome"].map(codes)).to_csv(files / "d.csv")
    model = fit(files / "d.csv", "outcome", learner="erm", settings=FEW)
    assert set(model.task.classes) == set(names)
    assert set(predict(model, files / "d.csv")["prediction"]) <= set(names)


def test_a_value_that_is_copied_into_a_column_is_said(values):
    frame = values(100, 0)
    model = fit(frame.assign(copy=2 * frame["y"] + 1), "y", settings=FEW)
    assert any(
        "column 'copy' alone determines" in note for note in model.history[0].notes
    )


def test_columns_of_ids_are_kept_and_not_used(clinic, quick):
    frame = clinic(200, 0.9, 0)
    frame["number"] = range(1000, 1200)
    frame["case_id"] = np.random.default_rng(0).permutation(9000)[:200]
    frame["ward"] = np.arange(200) % 7
    model = fit(frame, "outcome", ids=["ward"], settings=quick)
    told = {c["name"]: c["treatment"] for c in describe_model(model)["columns"]}
    assert told["ward"] == "identifier: not an input, but copied to the predictions"
    for name in ("case_id", "number"):
        assert told[name] == (
            f"ignored: looks like an identifier (`cirm fit --category {name}` keeps it)"
        )
    shown = predict(model, frame, keep=["age"])
    assert list(shown.columns[:5]) == ["ward", "case_id", "number", "patient", "age"]
    assert shown["number"].tolist() == list(range(1000, 1200))


def test_ten_rows_are_enough_to_begin_with(clinic):
    model = fit(clinic(10, 0.9, 3), "outcome", settings=FEW)
    assert model.history[0].held_out == 0
    assert len(predict(model, clinic(3, 0.9, 4))) == 3


def test_rows_that_are_there_twice_are_rows(clinic, quick):
    frame = clinic(50, 0.9, 0)
    model = fit(pd.concat([frame, frame]), "outcome", settings=quick)
    assert model.history[0].rows == 100


def test_text_among_numbers_is_named_with_its_file_row_and_column(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    frame = pd.read_csv(files / "clinic-b.csv", dtype=str)
    frame.loc[17, "marker"] = "high"
    frame.to_csv(files / "bad.csv", index=False)
    with pytest.raises(
        ValueError, match=r"bad.csv', row 18: column 'marker' has the value 'high'"
    ):
        update(model, files / "bad.csv")


def test_an_interval_holds_as_many_values_as_it_says(values):
    settings = {"hidden": (16,), "epochs": 60, "rate": 0.01}
    model = fit(values(600, 0), "y", settings=settings, learner="virmv1")
    later = values(2000, 1)
    shown = predict(model, later)
    inside = later["y"].between(shown["low"], shown["high"]).mean()
    assert 0.8 < inside < 0.99
    assert (shown["uncertainty"] > 0).all()
    told = evaluate(model, later)
    covered = told["coverage"]["overall"]["coverage"]
    assert covered == pytest.approx(100 * inside, abs=3)
    assert told["overall"]["r2"] > 0.5


def test_the_posterior_is_less_sure_far_from_the_data(values):
    settings = {"hidden": (16,), "epochs": 60, "rate": 0.01}
    model = fit(values(300, 0), "y", settings=settings, learner="virmv1")
    near, away = (pd.DataFrame({"dose": [d], "other": [0.0]}) for d in (10.0, 60.0))
    spread = [predict(model, f)["uncertainty"][0] for f in (near, away)]
    assert spread[1] > 2 * spread[0]


def test_a_learner_without_a_posterior_gives_no_uncertainty(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", learner="erm", settings=quick)
    assert predict(model, files / "clinic-b.csv")["uncertainty"].isna().all()


def test_the_number_of_epochs_follows_the_rows_unless_it_is_given(clinic):
    words = {"target": "outcome", "learner": "erm"}
    model = fit(clinic(60, 0.9, 0), settings={"hidden": (2,)}, **words)
    assert model.history[0].epochs == 1000
    model = fit(clinic(60, 0.9, 0), settings=FEW, **words)
    assert model.history[0].epochs == 3


@pytest.mark.integration
def test_the_default_learner_uses_a_network_for_tables_only_if_asked(files):
    path = files / "clinic-a.csv"
    views = {
        fit(path, "outcome", settings=settings).learner.view
        for settings in ({}, {"level": 0.1})
    }
    assert views == {"columns"}
    assert fit(path, "outcome", settings=FEW).learner.view == "directions"
    module = torch.nn.Linear(fit(path, "outcome").schema.treatment.shape[0], 2)
    assert fit(path, "outcome", network=module).learner.view == "directions"
    wish = {**FEW, "view": "columns"}
    assert fit(path, "outcome", settings=wish).learner.view == "columns"


def test_a_column_whose_meaning_changes_is_named_after_the_second_place(clinic):
    model = fit(clinic(1000, 0.95, 0), "outcome")
    first = describe_model(model)["explanation"]
    assert first["unstable"] == []
    assert "One place cannot show" in first["verdict"]
    later = describe_model(update(model, clinic(1000, 0.6, 1)))["explanation"]
    assert [entry["feature"] for entry in later["unstable"]] == ["scanner"]
    assert "`scanner` means something different" in later["verdict"]


def test_the_user_decides_which_columns_are_unstable(files):
    path = files / "clinic-a.csv"
    model = fit(path, "outcome", unstable=["marker"])
    explanation = describe_model(model)["explanation"]
    assert [entry["feature"] for entry in explanation["unstable"]] == ["marker"]
    assert describe_model(model)["importance"]["marker"] == 0


def test_other_learners_say_nothing_of_a_shortcut(files):
    model = fit(files / "clinic-a.csv", "outcome", learner="erm", settings=FEW)
    assert describe_model(model)["explanation"] == {}


def test_rows_on_disk_are_learned_as_those_in_memory(files, quick, monkeypatch):
    within = fit(files / "clinic-a.csv", "outcome", settings=quick)
    monkeypatch.setattr(stores, "MEMORY_BYTES", 1000)
    beyond = fit(files / "clinic-a.csv", "outcome", settings=quick)
    assert same(within, beyond)


def test_the_importance_of_a_misleading_column_drops(clinic):
    settings = {"hidden": (16,), "epochs": 40, "rate": 0.01}
    model = fit(clinic(400, 0.98, 0), "outcome", learner="erm", settings=settings)
    first = describe_model(model)["importance"]
    assert set(first) == {"age", "marker", "scanner", "visit", "smoker"}
    assert list(first)[:2] in (["scanner", "marker"], ["marker", "scanner"])
    model = update(model, clinic(400, 0.5, 1))
    told = describe_model(model)
    assert "scanner" in told["importance_drops"]
    assert next(iter(told["importance"])) == "marker"


def test_diagnostics_are_kept_after_each_environment(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    numbers = model.history[0].diagnostics
    assert {"worst group", "slope penalty", "agreement"} <= set(numbers)
    assert all(np.isfinite(value) for value in numbers.values())


def test_evaluation_groups_and_compares_with_what_was_to_be_expected(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", learner="erm", settings=quick)
    model = update(model, files / "clinic-b.csv")
    told = evaluate(model, files / "clinic-c.csv", groups=["scanner"])
    frame = pd.read_csv(files / "clinic-c.csv")
    right = predict(model, files / "clinic-c.csv")["prediction"] == frame["outcome"]
    assert told["overall"]["accuracy"] == pytest.approx(100 * right.mean())
    for value, own in right.groupby(frame["scanner"]):
        group = told["groups"]["scanner"][value]
        assert group["accuracy"] == pytest.approx(100 * own.mean())
    assert [e["environment"] for e in told["expected"]["on_arrival"]] == ["clinic-b"]
    assert "at clinic-b before the model was trained on it" in told["verdict"]
    scores = [one["score"] for one in told["comparisons"]]
    assert scores[0] == "accuracy"
    assert {"probability", "calibration_error", "roc_auc"} <= set(scores)


def test_rows_that_were_learned_are_known_again(files, quick):
    model = fit(files / "clinic-a.csv", "outcome", settings=quick)
    (note,) = evaluate(model, files / "clinic-a.csv")["notes"]
    assert note.startswith(
        "place 'clinic-a': the model was already trained on these rows"
    )
    assert evaluate(model, files / "clinic-b.csv")["notes"] == []
    part = pd.read_csv(files / "clinic-a.csv").iloc[1:]
    assert evaluate(model, part)["notes"] == []


def test_a_setting_or_wish_without_sense_is_refused(clinic):
    frame = clinic(50, 0.9, 0)
    with pytest.raises(
        ValueError,
        match=r"held-out is 2 .* Give a fraction of the rows from 0 to 0.5",
    ):
        fit(frame, "outcome", held_out=2)
    with pytest.raises(ValueError, match=r"^The order .* does not fit"):
        fit(frame, "outcome", order="3", settings=FEW)
    with pytest.raises(
        ValueError, match=r"data: an object of type int cannot be read\. Give"
    ):
        fit(7, "outcome")


@settings(max_examples=5)
@given(st.permutations(["patient", "age", "marker", "scanner", "visit", "smoker"]))
def test_the_order_of_columns_does_not_change_predictions(order):
    frame, later = shuffled_table()
    plain, other = (
        predict(fit(f, "outcome", settings=FEW), later)
        for f in (frame, frame[[*order, "outcome"]])
    )
    assert plain["probability"].equals(other["probability"])


@settings(max_examples=5)
@given(st.sampled_from(["age", "marker"]), st.sampled_from([1e-3, 1e3, 1e6]))
def test_the_unit_of_a_column_does_not_change_predictions(column, factor):
    frame, later = shuffled_table()
    plain = predict(fit(frame, "outcome", settings=FEW), later)
    scaled = [f.assign(**{column: f[column] * factor}) for f in (frame, later)]
    other = predict(fit(scaled[0], "outcome", settings=FEW), scaled[1])
    assert np.allclose(plain["probability"], other["probability"], atol=1e-4)


def shuffled_table():
    rng = np.random.default_rng(5)
    frames = []
    for rows in (60, 30):
        outcome = rng.integers(0, 2, rows)
        columns = {
            "patient": [f"p{n}" for n in range(rows)],
            "age": rng.normal(50, 10, rows),
            "marker": rng.normal(size=rows) + outcome,
            "scanner": rng.choice(["old", "new"], rows),
            "visit": rng.choice(["2024-01-01", "2024-02-03", "2024-05-06"], rows),
            "smoker": rng.choice(["true", "false"], rows),
            "outcome": outcome,
        }
        frames.append(pd.DataFrame(columns))
    return frames


def test_an_entry_of_the_history_is_plain_values(files, quick):
    import json

    (entry,) = fit(files / "clinic-a.csv", "outcome", settings=quick).history
    json.dumps(dataclasses.asdict(entry), allow_nan=False)


def test_training_computes_on_one_thread_of_numpy(clinic):
    def count_threads():
        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        return [pool["num_threads"] for pool in pools]

    seen, before = [], count_threads()

    def progress(what, part):
        if what.startswith("training") and part > 0:
            seen.extend(count_threads())

    with threadpool_limits(2, "blas"):
        fit(clinic(200, 0.9, 0), "outcome", progress=progress)
        assert set(count_threads()) == {2}
    assert set(seen) == {1}
    assert count_threads() == before
