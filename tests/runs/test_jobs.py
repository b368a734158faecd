"""The key of a job stands for all that decides its numbers, also for files."""

import gzip
import hashlib
import json
import os
import shutil
import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cirm import MLP, Descent, __version__
from cirm.evaluation import run
from cirm.learners.erm import ERM
from cirm.records import ScoreRecord
from cirm.runs import plans
from cirm.runs.jobs import TrainingJob, create_inference_of_job
from cirm.runs.local import (
    list_unfinished_jobs,
    read_records_of_finished_jobs,
    run_jobs_locally,
)
from cirm.runs.plans import (
    create_and_draw_dataset,
    describe_setting_selection,
    plan_jobs_of_learner,
)


def write_images(folder, seed=0):
    """Write IDX files of 8 x 8 digits at random, 80 to train and 40 to test."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    for prefix, count in (("train", 80), ("t10k", 40)):
        images = generator.integers(0, 256, (count, 8, 8), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            content = gzip.compress(head + array.tobytes(), mtime=0)
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(content)


def plan(**settings):
    dataset = settings.pop("dataset", "colored")
    order = settings.pop("order", "joint")
    on = create_and_draw_dataset(dataset, settings)
    texts = ["epochs=1", "hidden=4"]
    (job,) = plan_jobs_of_learner(on, "erm", order, (0,), setting_texts=texts)
    return job


def plan_images(folder):
    return plan(source=str(folder), environments="2", examples="20", sweep="")


def write_tables(folder, names=("a.csv", "b.csv"), shift=0):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        rows = [f"{n + shift},{n % 2}" for n in range(20)]
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(["x,y", *rows]) + "\n")
    return ",".join(str(folder / name) for name in names)


def plan_tables(path):
    return plan(dataset="table", path=path, target="y")


def test_a_key_stands_for_the_whole_content():
    job = TrainingJob("colored", "erm", "joint", (0,))
    others = [replace(job, seeds=(1,)), replace(job, settings={"epochs": 1})]
    assert len({j.key for j in (job, *others)}) == 3
    assert replace(job).key == job.key


def test_changes_for_tables_and_for_images_keep_the_records_of_each_other(monkeypatch):
    def make_jobs():
        return [TrainingJob(data, "erm", "joint", (0,)) for data in ("colored", "scm")]

    images, table = (job.key for job in make_jobs())
    monkeypatch.setattr(ERM, "table_revision", 1)
    images_after, table_after = make_jobs()
    assert images_after.key == images
    assert table_after.key != table
    assert table_after.revision == 1
    monkeypatch.setattr(ERM, "revision", ERM.revision + 5)
    images_last, table_last = make_jobs()
    assert images_last.key != images
    assert table_last.key == table_after.key


def test_the_key_of_a_job_without_files_is_the_same_as_ever():
    """Records that were written before are found under these keys."""
    data = {"source": "digits", "environments": 2}
    job = TrainingJob(
        "colored", "erm", "joint", (0, 1), data, {"epochs": 3}, label="erm"
    )
    content = {
        "version": __version__,
        "dataset": "colored",
        "learner": "erm",
        "order": "joint",
        "seeds": [0, 1],
        "data": data,
        "settings": {"epochs": 3},
        "preset": "",
        "infer": "",
        "inference": {},
        "label": "erm",
        "files": "",
    }
    text = json.dumps(content, sort_keys=True)
    assert job.key == hashlib.sha256(text.encode()).hexdigest()[:20]


def test_new_images_behind_the_same_folder_are_run_again(tmp_path):
    write_images(tmp_path / "images")
    job = plan_images(tmp_path / "images")
    assert run_jobs_locally([job], tmp_path / "out", 1) == {}
    assert (
        list_unfinished_jobs([plan_images(tmp_path / "images")], tmp_path / "out") == []
    )
    write_images(tmp_path / "images", seed=1)
    later = plan_images(tmp_path / "images")
    assert later.key != job.key
    assert list_unfinished_jobs([later], tmp_path / "out") == [later]


def test_files_that_were_moved_or_touched_have_the_same_key(tmp_path):
    write_images(tmp_path / "images")
    job = plan_images(tmp_path / "images")
    for path in (tmp_path / "images").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    assert plan_images(tmp_path / "images").key == job.key
    shutil.move(tmp_path / "images", tmp_path / "elsewhere")
    assert plan_images(tmp_path / "elsewhere").key == job.key


def test_tables_are_known_by_content_and_name_wherever_they_are(tmp_path):
    job = plan_tables(write_tables(tmp_path / "here"))
    assert plan_tables(write_tables(tmp_path / "there")).key == job.key
    changed = write_tables(tmp_path / "here", shift=1)
    assert plan_tables(changed).key != job.key
    # The names of files are the names of environments.
    renamed = write_tables(tmp_path / "there", ("a.csv", "c.csv"))
    assert plan_tables(renamed).key != job.key
    assert plan_tables(
        write_tables(tmp_path / "there", ("b.csv", "a.csv"))
    ).key not in (
        job.key,
        plan_tables(renamed).key,
    )


def test_files_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    names = ("clinic/data.csv", "hospital/data.csv")
    one = plan_tables(write_tables(tmp_path / "one", names))
    other = plan_tables(write_tables(tmp_path / "two", names))
    assert one.key != other.key


def test_a_file_is_read_once_while_it_stays_the_same(tmp_path, monkeypatch):
    path = write_tables(tmp_path)
    plan_tables(path)
    monkeypatch.setattr(hashlib, "file_digest", None)
    plan_tables(path)
    write_tables(tmp_path, shift=100)
    with pytest.raises(TypeError):
        plan_tables(path)


@dataclass(frozen=True)
class OwnERM(ERM):
    """A learner of a user's own, which no registry knows."""


OWN = f"{__name__}:OwnERM"


def scores(records):
    return [(r.environment, r.value) for r in records if isinstance(r, ScoreRecord)]


def test_an_instance_a_class_and_an_import_path_run_as_a_key_does(tmp_path):
    on = create_and_draw_dataset("colored", {"examples": "50", "sweep": ""})
    learners = ["erm", ERM, ERM(descent=Descent(epochs=3)), OwnERM, OWN]
    found = {}
    for learner in learners:
        (job,) = plan_jobs_of_learner(
            on, learner, "joint", (0,), setting_texts=["epochs=3"]
        )
        assert run_jobs_locally([job], tmp_path, 1) == {}
        found[job.learner] = scores(read_records_of_finished_jobs([job], tmp_path))
    assert list(found) == ["erm", OWN]
    assert found["erm"] == found[OWN] and len(found["erm"]) > 3
    for learner in (learners[2], OwnERM(descent=Descent(epochs=3))):
        same = run(learner, on.problem, "joint", (0,), diagnose=True)
        assert scores(same) == found["erm"]


def test_settings_of_an_instance_are_below_the_preset_and_the_texts():
    on = create_and_draw_dataset("colored", {"examples": "50"})
    learner = ERM(descent=Descent(epochs=7, rate=0.5, batch=3))
    (job,) = plan_jobs_of_learner(
        on, learner, "joint", (0,), preset="paper", setting_texts=["epochs=1"]
    )
    paper = ERM.presets["paper"]
    assert job.settings["epochs"] == 1
    assert job.settings["rate"] == paper["rate"]
    assert job.settings["batch"] == paper.get("batch", 3)


def test_a_learner_that_other_processes_cannot_create_is_refused():
    on = create_and_draw_dataset("colored", {"examples": "50"})

    @dataclass(frozen=True)
    class Local(ERM):
        pass

    with pytest.raises(ValueError, match=r"inside a function.* Define it at the top"):
        plan_jobs_of_learner(on, Local(), "joint", (0,))
    with pytest.raises(ValueError, match="was created with a network"):
        plan_jobs_of_learner(on, ERM(network=MLP((128, 2))), "joint", (0,))


@pytest.mark.parametrize(
    ("learner", "preset", "words"),
    [
        ("gem", "paper", "the paper's values, which were chosen by test accuracy"),
        ("gem", "", "library defaults"),
        ("steady", "", "library defaults"),
        ("vrex", "paper", "the paper's values for IRMv1"),
        ("birm", "scm", "preset scm"),
    ],
)
def test_the_choice_of_settings_is_described_for_the_learner_at_hand(
    learner, preset, words
):
    assert describe_setting_selection(learner, preset, {}).startswith(words)
    by_hand = describe_setting_selection(learner, preset, {"rate": 0.1})
    assert by_hand.endswith("; set by hand: rate=0.1")


def test_seeds_share_a_job_only_if_inputs_are_few_and_environments_given(monkeypatch):
    on = create_and_draw_dataset(
        "colored", {"examples": "50"}
    )  # 8 x 8 pixels, two channels

    def count(**options):
        jobs = plan_jobs_of_learner(on, "erm", "joint", range(3), **options)
        return [job.seeds for job in jobs]

    assert count() == [(0, 1, 2)]
    assert count(infer="eiil") == [(0,), (1,), (2,)]
    monkeypatch.setattr(plans, "SMALL", 128)
    assert count() == [(0,), (1,), (2,)]
    monkeypatch.setattr(plans, "SMALL", 129)
    assert count() == [(0, 1, 2)]


def test_inferred_environments_are_shared_only_for_the_same_files(tmp_path):
    def get_identity(path):
        job = replace(plan_tables(path), infer="eiil")
        return create_inference_of_job(job, tmp_path).data

    here = get_identity(write_tables(tmp_path / "here"))
    assert get_identity(write_tables(tmp_path / "there")) == here
    assert get_identity(write_tables(tmp_path / "here", shift=1)) != here
