from cirm.paper import get_paper_experiment
from cirm.paper.priorities import rank_jobs_by_open_verdicts
from cirm.paper.reproduction import PaperReproductionPlan
from cirm.records import RunRecord, ScoreRecord
from cirm.runs.archive import FinishedJobArchive, pack_job_records


def record(trial, seed, train, test):
    """Records of a job with these accuracies."""
    place = trial.label, trial.order, seed, 1
    scores = [
        ScoreRecord(*place, "train-1", "train", "accuracy", train),
        ScoreRecord(*place, "test", "test", "accuracy", test),
    ]
    data = {"name": trial.dataset, **trial.data}
    run = RunRecord(trial.label, trial.order, (seed,), {}, data, "", {}, 1.0)
    return {"commit": "a test", **pack_job_records([*scores, run])}


def test_cells_with_an_open_verdict_come_before_those_that_are_decided():
    experiment = get_paper_experiment("table1")
    near, far, unpublished = (
        next(t for t in experiment.list_trials() if t.label == label)
        for label in ("erm", "irmv1", "erm on gray")
    )
    archive = FinishedJobArchive()
    for seed, shift in enumerate((0.0, 6.0)):
        # ERM has 86.4 and 12.7 in the paper; its band ends about 4 points away.
        for trial, train, test in ((near, 91.0, 17.0), (far, 50.0, 90.0)):
            entry = record(trial, seed, train + shift * (trial is near), test)
            archive.add_job(f"{trial.label} {seed}", entry)
        archive.add_job(f"gray {seed}", record(unpublished, seed, 70.0, 60.0 + shift))
    planned = {t.identity: t.plan_jobs(range(3)) for t in (near, far, unpublished)}
    plan = PaperReproductionPlan(experiment, 3, planned, absent={})
    jobs = [job for job in plan.all_jobs if job.seeds == (2,)]
    ranks = rank_jobs_by_open_verdicts(plan, jobs, archive)
    by_label = {job.label: ranks[job.key] for job in jobs}
    assert by_label == {"erm": 0, "irmv1": 1, "erm on gray": 1}
