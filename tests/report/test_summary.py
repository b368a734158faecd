import json
import math
import subprocess
import sys

import pytest

from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord
from cirm.report.summary import (
    collect_scores_after_each_stage,
    collect_scores_along_sweep,
    collect_training_curves,
    is_learner_on_grey_images,
    summarise_records,
)


def score(seed, stage, environment, split, value, **changes):
    fields = {"learner": "erm", "order": "sequential", "metric": "accuracy"} | changes
    return ScoreRecord(
        seed=seed,
        stage=stage,
        environment=environment,
        split=split,
        value=value,
        **fields,
    )


TWO_SEEDS = [
    score(0, 0, "a", "train", 1.0),
    score(0, 0, "b", "train", 1.0),
    score(0, 0, "t", "test", 1.0),
    score(0, 1, "a", "train", 80.0),
    score(0, 1, "b", "train", 90.0),
    score(0, 1, "t", "test", 10.0),
    score(1, 0, "a", "train", 2.0),
    score(1, 0, "b", "train", 2.0),
    score(1, 0, "t", "test", 2.0),
    score(1, 1, "a", "train", 82.0),
    score(1, 1, "b", "train", 94.0),
    score(1, 1, "t", "test", 16.0),
]


def test_scores_are_averaged_over_environments_then_over_seeds_after_the_last_stage():
    entry = summarise_records(TWO_SEEDS)["learners"]["erm"]
    assert entry["train"]["mean"] == pytest.approx((85.0 + 88.0) / 2)
    assert entry["train"]["std"] == pytest.approx(3.0 / math.sqrt(2))
    assert entry["test"]["mean"] == pytest.approx(13.0)
    assert entry["test"]["std"] == pytest.approx(6.0 / math.sqrt(2))
    assert entry["train"]["seeds"] == entry["test"]["seeds"] == 2
    assert entry["metric"] == "accuracy"


def test_one_seed_has_a_mean_and_no_spread():
    entry = summarise_records([s for s in TWO_SEEDS if s.seed == 0])["learners"]["erm"]
    assert entry["test"] == {"mean": 10.0, "std": None, "seeds": 1}


def test_a_split_that_was_not_scored_has_no_seeds():
    entry = summarise_records([s for s in TWO_SEEDS if s.split == "train"])["learners"][
        "erm"
    ]
    assert entry["test"] == {"mean": None, "std": None, "seeds": 0}


def test_a_value_that_is_not_finite_leaves_no_mean_and_valid_json():
    diverged = [*TWO_SEEDS[:-1], score(1, 1, "t", "test", math.nan)]
    summary = summarise_records(diverged)
    assert summary["learners"]["erm"]["test"] == {"mean": None, "std": None, "seeds": 2}
    json.dumps(summary, allow_nan=False)


def test_regression_is_summarised_by_its_error_and_accuracy_goes_first():
    error = [score(0, 0, "a", "train", 0.25, metric="error")]
    other = [score(0, 0, "a", "train", 7.0, metric="log loss")]
    entry = summarise_records([*other, *error])["learners"]["erm"]
    assert (entry["metric"], entry["train"]["mean"]) == ("error", 0.25)
    entry = summarise_records([*other, *error, *TWO_SEEDS])["learners"]["erm"]
    assert entry["metric"] == "accuracy"


def test_runs_give_settings_selection_memory_and_the_sum_of_their_seconds():
    memory = {"params": {"examples": 0, "parameters": 9, "bytes": 36}}
    runs = [
        RunRecord(
            "erm", "sequential", (seed,), {"rate": 0.1}, {}, "preset", memory, 1.5
        )
        for seed in (0, 1)
    ]
    entry = summarise_records([*TWO_SEEDS, *runs])["learners"]["erm"]
    assert entry["settings"] == {"rate": 0.1}
    assert entry["selection"] == "preset"
    assert entry["memory"] == memory
    assert entry["seconds"] == 3.0


def test_runs_of_one_learner_with_different_settings_are_refused():
    runs = [
        RunRecord("erm", "sequential", (seed,), {"rate": seed}, {}, "preset")
        for seed in (0, 1)
    ]
    with pytest.raises(
        ValueError, match="learner 'erm' come from runs with different settings"
    ):
        summarise_records([*TWO_SEEDS, *runs])


def test_a_selection_that_nobody_gave_is_said_to_be_missing():
    blank = RunRecord("erm", "sequential", (0,), {}, {}, "")
    for records in (TWO_SEEDS, [*TWO_SEEDS, blank]):
        assert (
            summarise_records(records)["learners"]["erm"]["selection"] == "not recorded"
        )


def test_a_learner_on_two_orders_is_two_rows():
    joint = [score(0, 0, "a", "train", 50.0, order="joint")]
    learners = summarise_records([*TWO_SEEDS, *joint])["learners"]
    assert list(learners) == ["erm (sequential)", "erm (joint)"]
    assert learners["erm (joint)"]["train"]["mean"] == 50.0


def test_the_stream_has_a_track_per_environment_with_its_stage_of_arrival():
    tracks = collect_scores_after_each_stage(TWO_SEEDS)["erm"]
    assert [(t.environment, t.split, t.arrival) for t in tracks] == [
        ("a", "train", 1),
        ("b", "train", 2),
        ("t", "test", None),
    ]
    assert [(p.x, p.mean) for p in tracks[1].points] == [(1, 1.5), (2, 92.0)]


@pytest.mark.parametrize(
    ("order", "arrivals"),
    [("joint", [1, 1, 1]), ("2+1", [1, 1, 2]), ("1+2", [1, 2, 2])],
)
def test_arrivals_follow_the_order(order, arrivals):
    rows = [score(0, 0, name, "train", 1.0, order=order) for name in "abc"]
    assert [
        track.arrival for track in collect_scores_after_each_stage(rows)["erm"]
    ] == arrivals


def test_the_sweep_is_ordered_by_place_and_taken_after_the_last_stage():
    rows = [
        score(seed, stage, f"s{place}", "sweep", 100 * place + seed + 9 * stage)
        for stage in (0, 1)
        for place in (0.5, 0.0, 1.0)
        for seed in (0, 2)
    ]
    placed = [
        ScoreRecord(**{**vars(row), "position": float(row.environment[1:])})
        for row in rows
    ]
    points = collect_scores_along_sweep([*placed, *TWO_SEEDS])["erm"]
    assert [(p.x, p.mean) for p in points] == [(0.0, 10.0), (0.5, 60.0), (1.0, 110.0)]
    assert points[0].std == pytest.approx(math.sqrt(2))


def test_records_without_a_sweep_have_no_curve():
    assert collect_scores_along_sweep(TWO_SEEDS) == {}


@pytest.mark.parametrize("counted_on", [False, True])
def test_a_training_curve_goes_on_where_the_last_stage_ended(counted_on):
    rows = [
        TrainingCurveRecord(
            "erm", "sequential", 0, stage, step + 3 * stage * counted_on, "loss", 1.0
        )
        for stage in (0, 1)
        for step in (0, 1, 2)
    ]
    trace = collect_training_curves(rows)["loss"]["erm"]
    assert [p.x for p in trace.points] == [0, 1, 2, 3, 4, 5]
    assert trace.starts == (0, 3)


def test_learners_that_cannot_see_colour_are_the_ceiling():
    assert is_learner_on_grey_images("erm on gray")
    assert is_learner_on_grey_images("gray")
    assert not is_learner_on_grey_images("erm")
    assert not is_learner_on_grey_images("irmv1 on green")


def test_reports_load_neither_torch_nor_numpy():
    script = "import sys, cirm.report; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"
