import pytest

from cirm.runs.job_queue import (
    JobQueue,
    TimeBudgetSpentError,
    WallClockBudget,
    parse_time_budget,
)
from cirm.runs.jobs import TrainingJob


def job(learner, seed=0):
    return TrainingJob("scm", learner, "joint", (seed,))


def take_all(queue):
    return [(one.learner, one.seeds[0]) for one in iter(queue.take_next_job, None)]


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-5m", "0s", "1d", "5m!"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="is not a time"):
        parse_time_budget(text)


def test_every_learner_has_its_first_seed_before_any_has_its_second():
    queue = JobQueue([job("erm", s) for s in (0, 1)] + [job("icp", s) for s in (1, 0)])
    assert take_all(queue) == [("erm", 0), ("icp", 0), ("erm", 1), ("icp", 1)]


def test_a_round_is_put_in_order_when_it_begins():
    rounds = []

    def order(jobs):
        rounds.append([one.learner for one in jobs])
        return reversed(jobs)

    jobs = [job(name, seed) for name in ("erm", "icp") for seed in (0, 1)]
    queue = JobQueue(jobs, order)
    assert queue.take_next_job() == job("icp")
    assert rounds == [["erm", "icp"]]
    assert take_all(queue) == [("erm", 0), ("icp", 1), ("erm", 1)]


def test_only_jobs_that_fit_into_the_time_left_are_started():
    clock = Clock()
    long, short = job("erm"), job("icp")
    queue = JobQueue(
        [long, short],
        budget=WallClockBudget(60.0, clock=clock),
        seconds={long.key: 100.0, short.key: 30.0},
    )
    assert take_all(queue) == [("icp", 0)]
    assert queue.unstarted == [long]


def test_expectations_follow_how_long_jobs_really_took():
    clock = Clock()
    jobs = [job(name) for name in ("erm", "icp", "vrex")]
    queue = JobQueue(
        jobs,
        budget=WallClockBudget(60.0, clock=clock),
        seconds={j.key: 10.0 for j in jobs},
    )
    first = queue.take_next_job()
    clock.now = 35.0
    queue.correct_expected_durations(
        first.key, 35.0
    )  # so each of the others takes 35 s too
    assert queue.take_next_job() is None
    assert queue.unstarted == jobs[1:]


def test_a_spent_budget_starts_nothing_and_later_stops_what_runs():
    clock = Clock()
    queue = JobQueue([job("erm")], budget=WallClockBudget(100.0, clock=clock))
    clock.now = 101.0
    queue.check_time_budget()
    assert queue.take_next_job() is None
    clock.now = 110.5
    with pytest.raises(TimeBudgetSpentError):
        queue.check_time_budget()
