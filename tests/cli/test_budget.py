import json

import pytest

from cirm.cli.jobs import (
    describe_expected_cost_of_jobs,
    describe_jobs_left_by_time_budget,
)
from cirm.paper.verdicts import is_verdict_unlikely_to_change
from cirm.runs.durations import JobCostEstimate, JobSecondsEstimates
from cirm.runs.job_queue import JobQueue, WallClockBudget
from cirm.runs.jobs import TrainingJob
from cirm.runs.machine_speed import MachineSpeed

LEARNERS = ("erm", "irmv1", "ewc", "vrex", "groupdro")
RUN = ["run", "--source", "digits", "--examples", "200", "--set", "epochs=40"]
JOBS = [TrainingJob("scm", "erm", "joint", (seed,)) for seed in range(3)]


def estimate(recorded=3, calibrated=0, share=1.0, workers=2):
    seconds = {job.key: 120.0 for job in JOBS}
    estimates = JobSecondsEstimates(seconds, recorded, calibrated)
    return JobCostEstimate(
        estimates, MachineSpeed(1.0, 1.0, share), workers, True, len(JOBS)
    )


def scores(folder):
    learners = json.loads((folder / "summary.json").read_text())["learners"]
    return {name: entry["test"]["mean"] for name, entry in learners.items()}


def test_the_cost_is_one_line_that_says_where_it_comes_from(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert describe_expected_cost_of_jobs(estimate()) == (
        "Expected cost of 3 jobs: 6.0 core-minutes, 3 min with 2 workers (from "
        "recorded durations)."
    )
    assert describe_expected_cost_of_jobs(estimate(2, 1, share=0.25, workers=1)) == (
        "Expected cost of 3 jobs: 6.0 core-minutes, 24 min with 1 worker (from "
        "recorded durations and the first steps of some jobs); other programs "
        "leave 25% of a core to each process."
    )


def test_a_spent_budget_says_what_is_left_and_how_to_continue():
    cost = estimate()
    queue = JobQueue(JOBS, budget=WallClockBudget(60.0), seconds=cost.seconds_by_job)
    assert queue.take_next_job() is None
    assert describe_jobs_left_by_time_budget(queue, cost, 3) == (
        "The time budget of 60 s is used up: 3 of 3 jobs have not run and need "
        "about 6.0 core-minutes. The shortest of these jobs is expected to take 2 "
        "min. Run the same command again to run these jobs."
    )


@pytest.mark.parametrize(
    ("mean", "std", "seeds", "decided"),
    [
        (50.0, None, 1, False),  # one seed has no spread
        (50.0, 1.0, 2, True),  # far inside the band of 4 points
        (54.2, 1.0, 2, False),  # near its edge
        (54.2, 0.1, 5, True),  # near its edge, but measured closely
        (90.0, 5.0, 2, True),  # far outside
        (None, None, 0, False),
    ],
)
def test_a_verdict_is_decided_where_more_seeds_would_hardly_change_it(
    mean, std, seeds, decided
):
    cell = {"mean": mean, "std": std, "seeds": seeds, "metric": "accuracy"}
    assert (
        is_verdict_unlikely_to_change({**cell, "paper": {"mean": 50.0, "std": 1.0}})
        is decided
    )
    assert is_verdict_unlikely_to_change({**cell, "paper": None})


def test_a_budget_that_is_no_time_is_refused(cirm, tmp_path):
    status, _, error = cirm(*RUN, "--budget", "soon", "--out", tmp_path / "r")
    assert status == 2
    assert "--budget: 'soon' is not a time. Write a number and h, m or s" in error
    assert not (tmp_path / "r").exists()


@pytest.mark.integration
def test_a_run_within_a_budget_continues_to_the_numbers_of_a_run_without(
    cirm, tmp_path
):
    words = [*RUN, "--seeds", "2", "--workers", "1"]
    for name in LEARNERS:
        words += ["--learner", name]
    parts = [*words, "--out", str(tmp_path / "parts")]
    status, _, error = cirm(*parts, "--budget", "1s")
    assert status == 0
    assert "Expected cost of " in error
    assert "The time budget of 1 s is used up: " in error
    assert "Run the same command again to run these jobs." in error
    assert len(list((tmp_path / "parts").glob("jobs/*"))) < len(LEARNERS)
    status, _, error = cirm(*parts, "--budget", "1h")
    assert (status, "is spent" in error) == (0, False)
    cirm(*words, "--out", str(tmp_path / "whole"))
    assert scores(tmp_path / "parts") == scores(tmp_path / "whole")
    assert len(scores(tmp_path / "parts")) == len(LEARNERS)


@pytest.mark.integration
def test_a_budget_holds_with_several_workers(cirm, tmp_path):
    words = ["run", "--source", "digits", "--examples", "300", "--set", "epochs=100000"]
    words += ["--learner", "erm", "--learner", "irmv1", "--workers", "2"]
    status, _, error = cirm(*words, "--budget", "20s", "--out", tmp_path)
    assert status == 0
    assert "The time budget of 20 s is used up: 2 of 2 jobs have not run" in error
