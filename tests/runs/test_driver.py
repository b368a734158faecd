from cirm.runs.driver import LOST, run_queued_jobs
from cirm.runs.job_queue import JobQueue, WallClockBudget
from cirm.runs.jobs import TrainingJob

JOBS = [TrainingJob("scm", "erm", "joint", (seed,)) for seed in range(6)]


class PretendedWorkers:
    """Workers that finish one job at each look, with results that are given."""

    attempts = 3
    lost_message = "lost three times"
    limit = 2

    def __init__(self, results):
        self.results = {key: list(parts) for key, parts in results.items()}
        self.submitted, self.most, self.cancelled = [], 0, []

    def submit_job(self, job):
        self.submitted.append(job)
        return len(self.submitted)

    def wait_for_any_job(self, running, seconds):
        self.most = max(self.most, len(running))
        return [min(running)] if running else []

    def collect_result(self, reference, job):
        parts = self.results.get(job.key, [""])
        return parts.pop(0) if len(parts) > 1 else parts[0]

    def read_progress(self):
        return {JOBS[0].key: 0.5, "a job that ended long ago": 0.9}

    def cancel_jobs(self, running):
        self.cancelled += running


def test_every_job_is_run_once_and_never_more_at_a_time_than_allowed():
    workers, done = PretendedWorkers({}), []
    failures = run_queued_jobs(
        JobQueue(JOBS), workers, lambda job, part: done.append(part)
    )
    assert failures == {}
    assert workers.submitted == JOBS
    assert workers.most == 2
    assert done == [0.5, *[1.0] * 6]


def test_a_lost_worker_costs_a_try_and_a_failure_does_not_stop_the_others():
    lost_once, lost_always, bad = JOBS[0].key, JOBS[1].key, JOBS[2].key
    workers = PretendedWorkers(
        {lost_once: [LOST, ""], lost_always: [LOST], bad: ["a bad job"]}
    )
    failures = run_queued_jobs(JobQueue(JOBS), workers, lambda job, part: None)
    assert failures == {lost_always: "lost three times", bad: "a bad job"}
    assert workers.submitted.count(JOBS[0]) == 2
    assert workers.submitted.count(JOBS[1]) == 3


def test_a_job_that_outlives_the_budget_is_cancelled_and_stays_to_be_done():
    now = iter([0.0, 1.0, 1.0, 2000.0])
    queue = JobQueue(
        JOBS[:3], budget=WallClockBudget(1000.0, clock=lambda: next(now, 2000.0))
    )
    workers = PretendedWorkers({})
    assert run_queued_jobs(queue, workers, lambda job, part: None) == {}
    assert workers.cancelled == [2]
    assert queue.unstarted == [JOBS[1]]
    assert queue.take_next_job() is None
