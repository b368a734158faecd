"""Predictions do not depend on how the work is shared out, nor see what is hidden."""

import threading

import numpy as np
import pandas as pd
import pytest
import torch

from cirm import fit, predict
from cirm.data.sources import DataFrameSource
from cirm.model.compute import apply_function_in_threads, count_available_threads
from cirm.model.predict import predict_source_in_chunks

BRIEF = {"hidden": (8,), "epochs": 1, "members": 2}
QUICK = {"hidden": (4,), "epochs": 3}


def test_items_are_worked_on_by_several_threads_and_come_back_in_order():
    both = threading.Barrier(2, timeout=5)

    def work(item):
        both.wait()  # passes only if another thread is at work
        return item * item

    assert apply_function_in_threads(work, range(6), 2) == [0, 1, 4, 9, 16, 25]


def test_torch_keeps_to_one_thread_meanwhile_and_has_its_own_back():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert set(
            apply_function_in_threads(lambda _: torch.get_num_threads(), range(4), 2)
        ) == {1}
        with pytest.raises(ZeroDivisionError):
            apply_function_in_threads(lambda item: 1 / item, range(4), 2)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert count_available_threads() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert count_available_threads() >= 1


@pytest.mark.parametrize("learner", ["steady", "erm", "irmg"])
def test_the_number_of_threads_changes_no_digit(learner, clinic, monkeypatch):
    table = clinic(5_000, 0.9, 0)
    model = fit(table[:300], "outcome", learner=learner, settings={"epochs": 1})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    alone = predict(model, table)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert predict(model, table).equals(alone)


def test_whoever_stops_reading_predictions_leaves_no_thread_behind(clinic, monkeypatch):
    model = fit(clinic(100, 0.9, 0), "outcome", settings=BRIEF)
    before = threading.active_count()
    # More chunks than are read ahead, so that the thread is not done by itself.
    monkeypatch.setattr("cirm.data.sources.CHUNK_ROWS", 100)
    chunks = predict_source_in_chunks(model, DataFrameSource(clinic(1000, 0.9, 1)))
    assert len(next(chunks)) == 100
    assert threading.active_count() > before
    chunks.close()
    assert threading.active_count() == before


def test_what_an_unstable_column_says_does_not_move_a_prediction(clinic):
    table = clinic(400, 0.95, 0)
    model = fit(table, "outcome", unstable=["scanner"])
    other = table.assign(scanner=table["scanner"].map({"new": "old", "old": "new"}))
    assert predict(model, other).equals(predict(model, table))
    assert not predict(model, table.assign(marker=0.0)).equals(predict(model, table))


def test_the_uncertainty_is_the_standard_deviation_over_samples(clinic, values):
    model = fit(clinic(100, 0.9, 0), "outcome", learner="virmv1", settings=QUICK)
    later = clinic(30, 0.9, 1)
    inputs = torch.from_numpy(model.schema.treatment.encoding.encode(later))
    samples = model.learner.outputs(model.state, inputs[None])[0].softmax(-1)
    shown = predict(model, later, probabilities=True)
    mean, std = samples.mean(0), samples.std(0, correction=0)
    assert np.allclose(shown.iloc[:, -2:], mean, atol=1e-5)
    best = mean.argmax(-1)
    assert np.allclose(shown["probability"], mean.amax(-1), atol=1e-5)
    assert np.allclose(
        shown["uncertainty"], std.gather(1, best[:, None])[:, 0], atol=1e-5
    )
    model = fit(values(100, 0), "y", learner="virmv1", settings=QUICK)
    later, target = values(30, 1), model.schema.target
    inputs = torch.from_numpy(model.schema.treatment.encoding.encode(later))
    samples = model.learner.outputs(model.state, inputs[None])[0, ..., 0]
    shown = predict(model, later)
    std = target.scale * samples.std(0, correction=0)
    assert np.allclose(shown["uncertainty"], std, rtol=1e-3)
    mean = target.centre + target.scale * samples.mean(0)
    assert np.allclose(shown["prediction"], mean, rtol=1e-5)


def test_kept_columns_come_first_and_have_names_of_their_own(clinic):
    model = fit(clinic(100, 0.9, 0), "outcome", learner="erm", settings=QUICK)
    later = clinic(30, 0.9, 1).assign(prediction="?")
    message = "'prediction', which --keep adds to the predictions"
    with pytest.raises(ValueError, match=message):
        predict(model, later, keep=["prediction"])
    shown = predict(model, later, keep=["age", "patient"])
    assert list(shown.columns)[:3] == ["patient", "age", "prediction"]
    assert shown["age"].tolist() == later["age"].tolist()


def test_an_interval_lies_evenly_around_its_prediction():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=60)})
    table["y"] = 3 * table["x"] + rng.normal(size=60)
    model = fit(table, "y", learner="erm", settings={"epochs": 20, "hidden": (4,)})
    shown = predict(model, table)
    below, above = (
        shown["prediction"] - shown["low"],
        shown["high"] - shown["prediction"],
    )
    assert (below > 0.1).all()
    assert below.to_numpy() == pytest.approx(above.to_numpy())
