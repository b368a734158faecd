import pytest

from cirm.runs.jobs import TrainingJob
from cirm.runs.tracker import (
    JobProgressTracker,
    describe_job_in_few_words,
    estimate_training_cost_of_dataset,
    guess_seconds_per_unit_of_training_cost,
)


def jobs(*names, **data):
    return [
        TrainingJob("colored", name, "sequential", (seed,), {"source": "mnist", **data})
        for seed, name in enumerate(names)
    ]


def test_a_learner_that_has_finished_a_job_is_expected_to_take_as_long_again():
    first, second = jobs("erm", "erm")
    tracker = JobProgressTracker([first, second], 1, [], clock=lambda: 0.0)
    tracker.finish(first, 10.0)
    assert (tracker.finished_jobs, tracker.fraction_done) == (1, 0.5)
    assert tracker.seconds_left == pytest.approx(10.0)
    tracker.update(second, 0.25)
    assert tracker.seconds_left == pytest.approx(7.5)
    assert tracker.describe_running_jobs() == ["erm (mnist, seed 1) 25%"]


def test_a_learner_without_a_time_is_guessed_at_the_speed_of_the_others():
    first, second = jobs("erm", "mer")
    tracker = JobProgressTracker([first, second], 1, [])
    tracker.finish(first, 3 * guess_seconds_per_unit_of_training_cost("erm"))
    assert tracker.seconds_left == pytest.approx(
        3 * guess_seconds_per_unit_of_training_cost("mer")
    )


def test_times_of_an_earlier_run_count():
    (job,) = jobs("erm", environments=6, examples=1000)
    assert JobProgressTracker(
        [job], 1, [("erm", 1.0, 5.0)]
    ).seconds_left == pytest.approx(15.0)
    assert (
        estimate_training_cost_of_dataset({"environments": 6, "examples": 1000}, 1) == 3
    )


def test_a_small_job_of_an_earlier_run_says_little_about_a_large_one():
    (job,) = jobs("irmv1", environments=1, examples=50_000)
    times = [("irmv1", 0.5, 60.0), ("irmv1", 24.5, 440.0)]
    assert JobProgressTracker([job], 1, times).seconds_left == pytest.approx(500.0)


def test_a_learner_that_runs_for_the_first_time_shows_its_speed():
    now = [0.0]
    first, second = jobs("erm", "erm")
    tracker = JobProgressTracker([first, second], 1, [], clock=lambda: now[0])
    tracker.update(first, 0.1)
    now[0] = 20.0
    tracker.update(first, 0.3)
    assert tracker.seconds_left == pytest.approx(70.0 + 100.0)


def simulate(jobs, seconds, expected, workers=2, start=4.0, slow=8.0):
    """Return the seconds left, as estimated and as they turn out, second by second.

    A worker reports nothing for `start` seconds. The first 3 % of a job then take
    `slow` times as long as they should, as the first steps do.
    """
    now, waiting, running, trace = [0.0], list(jobs), [], []
    tracker = JobProgressTracker(jobs, workers, [], lambda: now[0], expected)
    while waiting or running:
        while waiting and len(running) < workers:
            delay = start if now[0] == 0 else 0.0
            running.append((waiting.pop(0), now[0] + delay))
        for job, begin in list(running):
            part = (now[0] - begin) / seconds[job.key]
            if part >= 0:
                tracker.update(job, part / slow if part < 0.03 * slow else part)
            if part >= 1:
                tracker.finish(job, seconds[job.key])
                running.remove((job, begin))
        trace.append(tracker.seconds_left)
        now[0] += 1.0
    return [(left, len(trace) - 1 - second) for second, left in enumerate(trace)]


TABLE = [*["erm", "irmv1", "ewc", "gem"] * 5, *["mer", "vcl", "c-bvirm"] * 5]
MINUTE = {"erm": 4.0, "irmv1": 5.0, "ewc": 6.0, "gem": 9.0}


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.6])
@pytest.mark.parametrize("spread", [1.0, 1.3])
def test_the_time_left_is_right_within_a_factor_of_two_from_the_start(factor, spread):
    work = sorted(jobs(*TABLE), key=lambda job: job.seeds[0] % 7)
    seconds = {
        job.key: MINUTE.get(job.name, 25.0) * (spread if job.seeds[0] % 2 else 1.0)
        for job in work
    }
    expected = {key: value / factor for key, value in seconds.items()}
    trace = simulate(work, seconds, expected)
    wrong = [
        (left, true)
        for left, true in trace[5:]
        if true > 10 and not (true / 2 < left < true * 2)
    ]
    assert len(trace) > 150
    assert wrong == []


def test_the_time_left_of_a_single_job_follows_its_own_pace():
    (job,) = jobs("erm")
    trace = simulate([job], {job.key: 300.0}, {job.key: 60.0}, 1, 0.0, 1.0)
    assert all(true / 2 < left < true * 2 for left, true in trace[60:290])


def test_the_clock_counts_what_a_learner_does_not_record():
    now = [0.0]
    first, second = jobs("erm", "erm")
    expected = {first.key: 100.0, second.key: 100.0}
    tracker = JobProgressTracker([first, second], 1, [], lambda: now[0], expected)
    tracker.update(first, 0.0)
    now[0] = 300.0
    tracker.finish(first, 100.0)  # and 200 s of diagnostics
    assert 150 < tracker.seconds_left < 400


def test_workers_share_the_jobs_but_not_a_single_job():
    tracker = JobProgressTracker(
        jobs("erm", "erm", "erm", "erm"), 2, [("erm", 1.0, 10.0)]
    )
    assert tracker.seconds_left == pytest.approx(20.0)
    assert JobProgressTracker(
        jobs("erm"), 8, [("erm", 1.0, 10.0)]
    ).seconds_left == pytest.approx(10.0)


def test_on_a_cluster_as_many_workers_are_assumed_as_have_been_seen():
    work = jobs("erm", "erm", "erm", "erm")
    tracker = JobProgressTracker(work, 0, [("erm", 1.0, 10.0)], clock=lambda: 0.0)
    assert tracker.seconds_left == pytest.approx(40.0)
    for job in work[:2]:
        tracker.update(job, 0.5)
    assert tracker.seconds_left == pytest.approx(15.0)
    for job in work[:2]:
        tracker.finish(job, 10.0)
    assert tracker.seconds_left == pytest.approx(10.0)


def test_only_the_first_of_many_running_jobs_are_named():
    tracker = JobProgressTracker(work := jobs(*["erm"] * 20), 0, [])
    for job in work:
        tracker.update(job, 0.5)
    assert tracker.describe_running_jobs()[0] == "erm (mnist, seed 0) 50%"
    assert tracker.describe_running_jobs()[-1] == "12 more"


def test_a_late_report_does_not_make_a_finished_job_run_again():
    first, second = jobs("erm", "erm")
    tracker = JobProgressTracker([first, second], 0, [], clock=lambda: 0.0)
    tracker.finish(first, 4.0)
    tracker.update(first, 0.9)
    tracker.update(second, 0.5)
    assert tracker.describe_running_jobs() == ["erm (mnist, seed 1) 50%"]
    assert tracker.seconds_left == pytest.approx(2.0)


def test_a_job_counts_as_finished_only_once_its_records_are_written():
    (job,) = jobs("erm")
    tracker = JobProgressTracker([job], 1, [])
    tracker.update(job, 1.0)
    assert tracker.finished_jobs == 0
    assert tracker.fraction_done == pytest.approx(0.99)
    tracker.finish(job, 1.0)
    assert (tracker.finished_jobs, tracker.fraction_done, tracker.seconds_left) == (
        1,
        1.0,
        0.0,
    )


def test_a_job_is_described_in_few_words():
    (job,) = jobs("gem", scheme="b11", environments=6)
    assert describe_job_in_few_words(job) == "gem (mnist b11 n=6, seed 0)"
    assert (
        describe_job_in_few_words(TrainingJob("scm", "icp", "joint", (0, 1, 2)))
        == "icp (3 seeds)"
    )
