"""Inferred environments are made once for all learners of the same data."""

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.inference.cache import CachedInference
from cirm.inference.eiil import EIIL
from cirm.randomness import Randomness

QUICK = EIIL(hidden=(), epochs=5, steps=20)
SEED = Randomness((3,), ("stage", 0, "inference"))


def stage(count=37):
    inputs = Randomness((1,)).normal(count, 2)[0]
    label = (Randomness((2,)).uniform(count)[0] < 0.5).long()
    return (Environment("a", inputs, label, Task.classification(2)),)


def groups(environments):
    return [e.take_all(1).x[0].tolist() for e in environments]


def epochs(infer, examples, randomness=SEED):
    """The groups, and how many epochs it took to find them."""
    seen = []
    found = infer(examples, randomness, lambda step, steps, _: seen.append(step))
    return groups(found), len(seen)


def test_what_was_inferred_is_not_inferred_again(tmp_path):
    plain = groups(QUICK(stage(), SEED))
    assert epochs(CachedInference(QUICK, tmp_path, "data"), stage()) == (plain, 5)
    assert epochs(CachedInference(QUICK, tmp_path, "data"), stage()) == (plain, 0)


@pytest.mark.parametrize(
    ("infer", "data", "randomness"),
    [
        (EIIL(hidden=(), epochs=5, steps=21), "data", SEED),
        (QUICK, "other data", SEED),
        (QUICK, "data", Randomness((4,), SEED.path)),
        (QUICK, "data", Randomness((3,), ("stage", 1, "inference"))),
    ],
)
def test_other_settings_data_seeds_and_stages_are_inferred_anew(
    tmp_path, infer, data, randomness
):
    epochs(CachedInference(QUICK, tmp_path, "data"), stage())
    found, taken = epochs(CachedInference(infer, tmp_path, data), stage(), randomness)
    assert taken == 5
    assert found == groups(infer(stage(), randomness))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: '{"examples": 37}',
        lambda text: text.replace('"second": "', '"second": "00'),
        lambda text: text.replace("37", "36"),
    ],
)
def test_a_damaged_file_is_made_anew(tmp_path, damage):
    infer = CachedInference(QUICK, tmp_path, "data")
    expected, _ = epochs(infer, stage())
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert epochs(infer, stage()) == (expected, 5)
    assert path.read_text() == whole
    assert list(tmp_path.iterdir()) == [path]


def test_groups_of_any_number_of_examples_come_back(tmp_path):
    for count in (8, 9, 15, 16):
        infer = CachedInference(QUICK, tmp_path, str(count))
        first, _ = epochs(infer, stage(count))
        again, taken = epochs(infer, stage(count))
        assert (again, taken) == (first, 0)
        assert sum(map(len, again)) == count


def test_a_wrong_number_of_seeds_is_refused_before_anything_is_kept(tmp_path):
    with pytest.raises(ValueError, match="one seed at a time, but 2 seeds"):
        CachedInference(QUICK, tmp_path, "data")(stage(), Randomness((3, 5)))
    assert list(tmp_path.iterdir()) == []


def test_learners_of_one_job_folder_share_an_inference(tmp_path):
    from cirm.records import ScoreRecord
    from cirm.runs.local import read_records_of_finished_jobs, run_jobs_locally
    from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner

    on = create_and_draw_dataset(
        "colored", {"source": "digits", "examples": "60", "sweep": ""}
    )
    texts = ["epochs=2", "hidden=4"]
    jobs = [
        job
        for learner in ("erm", "irmv1")
        for job in plan_jobs_of_learner(
            on, learner, "joint", (0,), setting_texts=texts, infer="eiil"
        )
    ]
    quick = {"hidden": (4,), "epochs": 2, "steps": 10}
    jobs = [type(job)(**{**vars(job), "inference": quick}) for job in jobs]
    assert run_jobs_locally(jobs, tmp_path, 1) == {}
    assert len(list((tmp_path / "inferred").iterdir())) == 1
    alone = tmp_path / "alone"
    assert run_jobs_locally(jobs[1:], alone, 1) == {}
    shared, own = (
        [
            r
            for r in read_records_of_finished_jobs(jobs[1:], folder)
            if isinstance(r, ScoreRecord)
        ]
        for folder in (tmp_path, alone)
    )
    assert shared == own
    assert torch.tensor([r.value for r in own]).isfinite().all()
