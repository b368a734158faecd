import pytest

from cirm.cli.progress import Watch, guess, size, spelled, told
from cirm.runs.jobs import Job


def jobs(*names, **data):
    return [
        Job("colored", name, "sequential", (seed,), {"source": "mnist", **data})
        for seed, name in enumerate(names)
    ]


def test_a_learner_that_was_timed_takes_as_long_again():
    first, second = jobs("erm", "erm")
    watch = Watch([first, second], 1, [])
    watch.ended(first, 10.0)
    assert (watch.done, watch.share) == (1, 0.5)
    assert watch.left == pytest.approx(10.0)
    watch.moved(second, 0.25)
    assert watch.left == pytest.approx(7.5)
    assert watch.running == ["erm (mnist, seed 1) 25%"]


def test_a_learner_not_timed_yet_is_guessed_at_the_speed_of_the_others():
    first, second = jobs("erm", "mer")
    watch = Watch([first, second], 1, [])
    watch.ended(first, 3 * guess("erm"))
    assert watch.left == pytest.approx(3 * guess("mer"))


def test_times_of_an_earlier_run_count():
    (job,) = jobs("erm", environments=6, examples=1000)
    assert Watch([job], 1, [("erm", 1.0, 5.0)]).left == pytest.approx(15.0)
    assert size({"environments": 6, "examples": 1000}, 1) == 3


def test_a_small_job_of_an_earlier_run_says_little_of_a_large_one():
    (job,) = jobs("irmv1", environments=1, examples=50_000)
    timed = [("irmv1", 0.5, 60.0), ("irmv1", 24.5, 440.0)]
    assert Watch([job], 1, timed).left == pytest.approx(500.0)


def test_a_learner_that_runs_for_the_first_time_shows_its_speed():
    now = [0.0]
    first, second = jobs("erm", "erm")
    watch = Watch([first, second], 1, [], clock=lambda: now[0])
    watch.moved(first, 0.1)
    now[0] = 20.0
    watch.moved(first, 0.3)
    assert watch.left == pytest.approx(70.0 + 100.0)


def test_workers_share_what_is_left_but_not_one_job():
    watch = Watch(jobs("erm", "erm", "erm", "erm"), 2, [("erm", 1.0, 10.0)])
    assert watch.left == pytest.approx(20.0)
    assert Watch(jobs("erm"), 8, [("erm", 1.0, 10.0)]).left == pytest.approx(10.0)


def test_on_a_cluster_as_many_share_it_as_were_seen_at_a_time():
    work = jobs("erm", "erm", "erm", "erm")
    watch = Watch(work, 0, [("erm", 1.0, 10.0)])
    assert watch.left == pytest.approx(40.0)
    for job in work[:2]:
        watch.moved(job, 0.5)
    assert watch.left == pytest.approx(15.0)
    for job in work[:2]:
        watch.ended(job, 10.0)
    assert watch.left == pytest.approx(10.0)


def test_of_many_running_jobs_the_first_are_named():
    watch = Watch(work := jobs(*["erm"] * 20), 0, [])
    for job in work:
        watch.moved(job, 0.5)
    assert watch.running[0] == "erm (mnist, seed 0) 50%"
    assert watch.running[-1] == "12 more"


def test_a_job_that_has_ended_does_not_run_again_by_a_late_word():
    first, second = jobs("erm", "erm")
    watch = Watch([first, second], 0, [])
    watch.ended(first, 4.0)
    watch.moved(first, 0.9)
    watch.moved(second, 0.5)
    assert watch.running == ["erm (mnist, seed 1) 50%"]
    assert watch.left == pytest.approx(2.0)


def test_a_job_is_done_only_when_it_has_ended():
    (job,) = jobs("erm")
    watch = Watch([job], 1, [])
    watch.moved(job, 1.0)
    assert watch.done == 0
    assert "0 of 1 jobs" in watch.line()
    watch.ended(job, 1.0)
    assert watch.line() == "1 of 1 jobs, 100%, about 0 s left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(42.4, "42 s"), (600, "10 min"), (9000, "2.5 h")]
)
def test_times_are_spelled_as_a_person_says_them(seconds, text):
    assert spelled(seconds) == text


def test_a_job_is_told_in_few_words():
    (job,) = jobs("gem", scheme="b11", environments=6)
    assert told(job) == "gem (mnist b11 n=6, seed 0)"
    assert told(Job("scm", "icp", "joint", (0, 1, 2))) == "icp (3 seeds)"
