import dataclasses

import pytest

from cirm.learners.erm import ERM
from cirm.records import (
    RunRecord,
    ScoreRecord,
    TrainingCurveRecord,
    read_records,
    write_records,
)
from cirm.runs.archive import (
    MAX_POINTS,
    FinishedJobArchive,
    add_finished_jobs_to_archive,
    copy_jobs_from_other_archives,
    load_job_archive,
    pack_job_records,
    save_job_archive,
    unpack_job_records,
)
from cirm.runs.jobs import TrainingJob, format_trial_identity
from cirm.runs.local import get_records_path

JOB = TrainingJob(
    "colored", "erm", "sequential", (0, 1), {"source": "digits"}, label="erm"
)


def records(learner="erm", seeds=(0, 1), rate=0.1, shift=0.0, curves=60):
    rows = []
    for stage in (0, 1):
        for step in range(1, curves + 1):
            rows += [
                TrainingCurveRecord(
                    learner, "sequential", s, stage, step, metric, step / 7 + s
                )
                for metric in ("risk", "consensus")
                for s in seeds
            ]
        for name, split, place in (("a", "train", None), ("x", "sweep", 0.5)):
            rows += [
                ScoreRecord(
                    learner,
                    "sequential",
                    s,
                    stage,
                    name,
                    split,
                    "accuracy",
                    10.0 * stage + s + shift,
                    place,
                )
                for s in seeds
            ]
    data = {"name": "colored", "source": "digits"}
    run = RunRecord(
        learner, "sequential", seeds, {"rate": rate}, data, "chosen", {}, 1.25
    )
    return [*rows, run]


TRIAL = format_trial_identity(
    "erm", "sequential", {"name": "colored", "source": "digits"}
)


def scores(rows):
    return {dataclasses.astuple(r) for r in rows if isinstance(r, ScoreRecord)}


def test_scores_and_the_run_come_back_as_they_were():
    rows = records()
    back = unpack_job_records(pack_job_records(rows))
    assert scores(back) == scores(rows)
    assert back[-1] == rows[-1]


def test_values_keep_six_digits():
    first, *_, run = records(seeds=(0,), curves=0)
    rows = [dataclasses.replace(first, value=100 / 3), run]
    (score, _) = unpack_job_records(pack_job_records(rows))
    assert score.value == 33.3333


def test_only_residuals_are_kept_of_the_curves_and_few_points_of_them():
    curves = [
        r
        for r in unpack_job_records(pack_job_records(records()))
        if isinstance(r, TrainingCurveRecord)
    ]
    assert {curve.metric for curve in curves} == {"consensus"}
    for stage in (0, 1):
        steps = [c.step for c in curves if (c.seed, c.stage) == (0, stage)]
        assert len(steps) <= MAX_POINTS + 1
        assert (steps[0], steps[-1]) == (1, 60)
        assert steps == sorted(set(steps))


def test_an_archive_is_read_as_it_was_written(tmp_path):
    archive = FinishedJobArchive()
    archive.add_job("k1", {"commit": "abc", **pack_job_records(records())})
    archive.add_job("k2", {"commit": "abc", **pack_job_records(records("gem"))})
    save_job_archive(archive, tmp_path)
    again = load_job_archive(tmp_path)
    assert list(again.entries) == ["k1", "k2"]
    assert unpack_job_records(again.entries["k2"]) == unpack_job_records(
        archive.entries["k2"]
    )
    save_job_archive(again, tmp_path / "copy")
    texts = [(tmp_path / n / "records.json").read_text() for n in ("", "copy")]
    assert texts[0] == texts[1]


def test_what_jobs_share_is_said_once(tmp_path):
    archive = FinishedJobArchive()
    for seed in range(20):
        archive.add_job(
            f"k{seed}", {"commit": "a", **pack_job_records(records(seeds=(seed,)))}
        )
    save_job_archive(archive, tmp_path)
    text = (tmp_path / "records.json").read_text()
    assert text.count('"settings"') == 1
    assert len(text.splitlines()) == 20 + 10


def test_records_are_found_by_trial_and_seed():
    archive = FinishedJobArchive()
    archive.add_job("b", {"commit": "a", **pack_job_records(records(seeds=(2, 3)))})
    archive.add_job("a", {"commit": "a", **pack_job_records(records(seeds=(0, 1)))})
    archive.add_job("c", {"commit": "a", **pack_job_records(records("gem"))})
    rows = archive.list_records(TRIAL, range(3))
    assert {r.learner for r in rows} == {"erm"}
    assert [r.seeds for r in rows if isinstance(r, RunRecord)] == [(0, 1), (2, 3)]
    assert {r.seed for r in rows if isinstance(r, ScoreRecord)} == {0, 1, 2}


def test_other_settings_replace_a_trials_older_jobs():
    archive = FinishedJobArchive()
    archive.add_job("old0", {"commit": "a", **pack_job_records(records(seeds=(0,)))})
    archive.add_job("old1", {"commit": "a", **pack_job_records(records(seeds=(1,)))})
    archive.add_job("gem", {"commit": "a", **pack_job_records(records("gem"))})
    archive.add_job(
        "new0", {"commit": "b", **pack_job_records(records(seeds=(0,), rate=0.2))}
    )
    assert list(archive.entries) == ["gem", "new0"]


def test_the_same_seed_again_replaces_its_job_only():
    archive = FinishedJobArchive()
    for seed in (0, 1):
        archive.add_job(
            f"old{seed}", {"commit": "a", **pack_job_records(records(seeds=(seed,)))}
        )
    archive.add_job(
        "new0", {"commit": "b", **pack_job_records(records(seeds=(0,), shift=1.0))}
    )
    assert list(archive.entries) == ["old1", "new0"]


def test_finished_jobs_are_packed_once_with_the_commit_of_their_time(tmp_path):
    write_records(get_records_path(JOB, tmp_path), records())
    assert (
        add_finished_jobs_to_archive([JOB], tmp_path, "first").entries[JOB.key][
            "commit"
        ]
        == "first"
    )
    assert (
        add_finished_jobs_to_archive([JOB], tmp_path, "second").entries[JOB.key][
            "commit"
        ]
        == "first"
    )
    assert scores(load_job_archive(tmp_path).list_records(TRIAL, range(2))) == scores(
        read_records(get_records_path(JOB, tmp_path))
    )


def test_a_folder_takes_over_the_jobs_it_wants_from_others(tmp_path):
    write_records(get_records_path(JOB, tmp_path / "one"), records())
    add_finished_jobs_to_archive([JOB], tmp_path / "one", "first")
    other = dataclasses.replace(JOB, seeds=(7,))
    archive = copy_jobs_from_other_archives(
        [JOB, other], tmp_path / "two", [tmp_path / "one"]
    )
    assert list(archive.entries) == [JOB.key]
    assert (
        load_job_archive(tmp_path / "two").entries
        == load_job_archive(tmp_path / "one").entries
    )


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"jobs": [1]}'])
def test_another_file_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "records.json").write_text(text)
    with pytest.raises(ValueError, match=r"records\.json was not written by cirm"):
        load_job_archive(tmp_path)


def test_words_about_settings_do_not_change_the_name_of_a_job():
    assert dataclasses.replace(JOB, selection="by hand").key == JOB.key
    assert dataclasses.replace(JOB, settings={"rate": 1.0}).key != JOB.key


def test_results_of_a_learner_since_revised_no_longer_count(tmp_path, monkeypatch):
    first, other = JOB, dataclasses.replace(JOB, seeds=(2, 3))
    for job in (first, other):
        write_records(get_records_path(job, tmp_path), records(seeds=job.seeds))
    assert (
        len(add_finished_jobs_to_archive((first, other), tmp_path, "c1").entries) == 2
    )
    before = first.key
    monkeypatch.setattr(ERM, "revision", 1)
    first = dataclasses.replace(JOB)  # a job computes its key once
    assert first.key != before
    write_records(get_records_path(first, tmp_path), records(shift=5.0))
    kept = add_finished_jobs_to_archive((first,), tmp_path, "c2")
    assert {entry["commit"] for entry in kept.list_packed_jobs(TRIAL)} == {"c2"}
    assert scores(kept.list_records(TRIAL, range(4))) == scores(records(shift=5.0))


def test_a_setting_that_is_new_leaves_older_results_as_they_are():
    archive, later = FinishedJobArchive(), pack_job_records(records(seeds=(2,)))
    archive.add_job("old", {"commit": "a", **pack_job_records(records(seeds=(0,)))})
    later["setup"] = {**later["setup"], "settings": {"rate": 0.1, "slope": "outputs"}}
    archive.add_job("new", {"commit": "b", **later})
    assert list(archive.entries) == ["old", "new"]
