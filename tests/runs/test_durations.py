import time
from dataclasses import dataclass, replace

import pytest
import torch

from cirm.paper import EXPERIMENTS
from cirm.runs.durations import (
    JobCostEstimate,
    JobSecondsEstimates,
    estimate_cost_of_jobs,
    estimate_job_seconds,
    estimate_seconds_from_recorded_jobs,
    hash_duration_settings,
    measure_machine_speed,
    time_first_training_steps_of_job,
)
from cirm.runs.jobs import TrainingJob, run_job_and_return_records
from cirm.runs.local import list_unfinished_jobs
from cirm.runs.machine_speed import MachineSpeed, find_step_kind
from cirm.runs.tracker import estimate_training_cost_of_job

NORMAL = MachineSpeed(1.0, 1.0, 1.0)


def find_recorded_job(table="table1"):
    """The first job of a table whose duration was recorded."""
    trials = EXPERIMENTS[table].list_trials()
    jobs = [trial.plan_jobs((0,))[0] for trial in trials]
    return next(job for job in jobs if estimate_seconds_from_recorded_jobs(job))


def small_job(epochs, seed=0, learner="erm"):
    data = {"source": "digits", "environments": 2, "examples": 200, "sweep": ()}
    settings = {"epochs": epochs, "hidden": (16,)}
    return TrainingJob("colored", learner, "sequential", (seed,), data, settings)


def test_most_jobs_of_the_tables_have_a_recorded_duration():
    jobs = [
        trial.plan_jobs((0,))[0]
        for name in ("table1", "table2", "table3", "table4", "table5")
        for trial in EXPERIMENTS[name].list_trials()
    ]
    known = [job for job in jobs if estimate_seconds_from_recorded_jobs(job)]
    assert len(known) > 0.8 * len(jobs)  # a preset may have changed since


def test_other_settings_are_other_work_and_a_preset_is_its_settings():
    job = find_recorded_job()
    assert hash_duration_settings(job) == hash_duration_settings(
        replace(job, seeds=(3,))
    )
    assert hash_duration_settings(job) == hash_duration_settings(
        replace(job, settings={})
    )
    slower = {**job.settings, "epochs": 1000}
    assert hash_duration_settings(job) != hash_duration_settings(
        replace(job, settings=slower)
    )


def test_a_job_of_another_size_takes_as_long_per_example_as_the_nearest():
    job = find_recorded_job()
    most = replace(job, data={**job.data, "environments": 10})
    twice = replace(most, seeds=(0, 1))
    assert estimate_seconds_from_recorded_jobs(twice) == pytest.approx(
        2 * estimate_seconds_from_recorded_jobs(most)
    )


@pytest.mark.parametrize(("table", "times"), [("table1", 3), ("table3", 0.5)])
def test_a_job_takes_longer_where_steps_of_its_kind_do(table, times, tmp_path):
    job = find_recorded_job(table)
    other = MachineSpeed(small=3.0, large=0.5, share=1.0)
    slow = estimate_job_seconds([job], [], other, tmp_path)
    normal = estimate_job_seconds([job], [], NORMAL, tmp_path)
    assert slow.seconds[job.key] == pytest.approx(times * normal.seconds[job.key])
    assert (normal.recorded, normal.calibrated) == (1, 0)


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        ("table1", "small"),
        ("table2", "small"),
        ("table4", "large"),
        ("table5", "small"),
    ],
)
def test_steps_are_large_with_a_full_batch_of_images(table, kind):
    kinds = {
        find_step_kind(trial.plan_jobs((0,))[0])
        for trial in EXPERIMENTS[table].list_trials()
    }
    assert kinds == {kind}


def test_jobs_that_finished_here_earlier_are_used_before_anything_is_run(tmp_path):
    job = small_job(epochs=10**6)
    estimates = estimate_job_seconds([job], [("erm", 0.2, 12.0)], NORMAL, tmp_path)
    assert estimates.seconds == {job.key: pytest.approx(12.0)}
    assert list_unfinished_jobs([job], tmp_path) == [job]


@pytest.mark.parametrize("learner", ["erm", "vcl"])
def test_the_first_steps_of_a_job_tell_its_time_within_a_factor_of_two(
    learner, tmp_path, monkeypatch
):
    monkeypatch.setattr("cirm.runs.durations.MAX_CALIBRATION", 0.1)
    job = small_job(epochs=400 if learner == "vcl" else 800, learner=learner)
    run_job_and_return_records(
        replace(job, settings={**job.settings, "epochs": 1}), lambda done: None
    )
    ratios = []
    while len(ratios) < 3:  # other processes can slow either of the two times down
        estimates = estimate_job_seconds([job], [], NORMAL, tmp_path)
        assert estimates.calibrated == 1
        assert list_unfinished_jobs([job], tmp_path) == [job]
        start = time.process_time()
        run_job_and_return_records(job, lambda done: None)
        ratios.append(estimates.seconds[job.key] / (time.process_time() - start))
        if 0.5 < ratios[-1] < 2:
            return
    pytest.fail(f"estimated times as multiples of the real ones: {ratios}")


@dataclass(frozen=True)
class PhasedJob(TrainingJob):
    """A job whose reports start again in its second phase, as those of steady do."""


@run_job_and_return_records.register(PhasedJob)
def run_phases(job, progress, folder=None):
    progress(0.5)
    while True:
        sum(range(10_000))
        progress(0.1)


def test_a_job_that_trains_in_phases_is_not_timed_forever(tmp_path):
    job = PhasedJob("scm", "erm", "joint", (0,))
    assert time_first_training_steps_of_job(job, 0.02, tmp_path) > 0.2
    assert list_unfinished_jobs([job], tmp_path) == [job]


@dataclass(frozen=True)
class FixedSizeJob(TrainingJob):
    """A job that takes 0.2 s with any number of environments, or 0.02 s by a task."""


@run_job_and_return_records.register(FixedSizeJob)
def spend_processor_time(job, progress, folder=None):
    steps = 20 if "task" in job.data else 200
    for step in range(steps):
        start = time.process_time()
        while time.process_time() < start + 0.001:
            pass
        progress(step / steps)
    return []


def test_jobs_of_other_sizes_and_tasks_are_expected_to_take_what_they_take(tmp_path):
    sizes = [{"environments": count} for count in (1, 3, 10)]
    tasks = [{"environments": 3, "task": "regression"}]
    jobs = [FixedSizeJob("planted", "erm", "joint", (0,), d) for d in (*sizes, *tasks)]
    estimates = estimate_job_seconds(jobs, [], NORMAL, tmp_path, calibration=0.15)
    seconds = [estimates.seconds[job.key] for job in jobs]
    assert seconds == pytest.approx([0.2, 0.2, 0.2, 0.02], rel=0.5)


def test_a_job_that_ends_while_it_is_timed_is_not_run_again(tmp_path):
    first, second = small_job(1), small_job(1, seed=1)
    estimates = estimate_job_seconds([first, second], [], NORMAL, tmp_path)
    assert estimates.seconds[first.key] == estimates.seconds[second.key] > 0
    assert list_unfinished_jobs([first, second], tmp_path) == [second]


def test_only_some_of_many_kinds_of_job_are_timed_and_all_are_estimated(tmp_path):
    learners = ("erm", "ewc", "irmv1")
    jobs = [small_job(n, learner=name) for n in range(1, 21) for name in learners]
    seconds = estimate_job_seconds(jobs, (), NORMAL, tmp_path, 0.01).seconds
    assert set(seconds) == {job.key for job in jobs}
    rates = [seconds[job.key] / estimate_training_cost_of_job(job) for job in jobs]
    assert min(rates) > 0
    # Those that were not timed in this hundredth of a second have the mean rate.
    assert len({f"{rate:.6g}" for rate in rates}) < len(jobs) / 2


def test_a_job_that_fails_while_it_is_timed_has_no_estimate(tmp_path):
    job = small_job(2)
    bad = replace(job, settings={**job.settings, "rate": 1e30, "optimiser": "sgd"})
    cost = estimate_cost_of_jobs([bad], [], 2, True, tmp_path)
    assert (cost.estimates.seconds, cost.core_seconds) == ({}, 0.0)
    assert list_unfinished_jobs([bad], tmp_path) == [bad]


def test_workers_share_the_time_but_the_longest_job_is_one_job():
    seconds = {str(n): 10.0 for n in range(9)} | {"long": 100.0}
    cost = JobCostEstimate(JobSecondsEstimates(seconds, 10, 0), NORMAL, 4, False, 10)
    assert cost.core_seconds == 190.0
    assert cost.wall_seconds == pytest.approx(104.0)
    even = JobCostEstimate(JobSecondsEstimates(seconds, 10, 0), NORMAL, 1, False, 10)
    assert even.wall_seconds == pytest.approx(194.0)


def test_a_busy_machine_needs_more_time_by_the_clock_not_more_processor_time():
    seconds = {str(n): 10.0 for n in range(10)}
    busy = MachineSpeed(1.0, 1.0, 0.25)
    cost = JobCostEstimate(JobSecondsEstimates(seconds, 10, 0), busy, 1, True, 10)
    assert (cost.core_seconds, cost.wall_seconds) == (100.0, pytest.approx(400.0))


def test_the_speed_of_this_machine_is_a_share_and_a_multiple():
    speed = measure_machine_speed()
    assert 0 < speed.share <= 1
    assert 0.02 < speed.small < 50
    assert 0.02 < speed.large < 50


def test_the_speed_is_that_of_one_thread_as_jobs_have_it():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = measure_machine_speed()
        torch.set_num_threads(8)  # threads that wait for one another take far longer
        together = measure_machine_speed()
        assert 0.3 < together.small / alone.small < 3
        assert 0.3 < together.large / alone.large < 3
        assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)


def test_nothing_is_timed_where_the_speed_of_the_machine_is_known(tmp_path):
    data = {"source": "digits", "examples": 50, "sweep": ()}
    job = TrainingJob("colored", "erm", "joint", (0,), data, {"epochs": 2})
    speed = MachineSpeed(2.0, 2.0, 0.5)
    cost = estimate_cost_of_jobs([job], [], 1, True, tmp_path, 10.0, speed)
    assert cost.speed == speed and not list(tmp_path.iterdir())
