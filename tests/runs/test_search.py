import math
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch

from cirm import Descent
from cirm.evaluation.selection import Rule
from cirm.learners.erm import ERM
from cirm.records import ScoreRecord, read_records, write_records
from cirm.runs.jobs import run_job_and_return_records
from cirm.runs.local import get_records_path, list_unfinished_jobs, run_jobs_locally
from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner
from cirm.runs.search import (
    SettingsRandomSearch,
    format_cirm_run_command,
    remove_test_environments,
    summarise_random_search,
)
from cirm.runs.search_space import parse_search_space
from cirm.settings import parse_name_value_assignments

DATA = {"source": "digits", "examples": "100", "sweep": ""}
SPACE = "rate=1e-4..1e-2:log,dropout=0|0.5"
HONEST = ("held-out", "next", "worst-group", "leave-one-out")
FIXED = {"epochs": 2, "hidden": (8,)}


def search(rules=HONEST, trials=2, data=DATA, space=SPACE, learner="erm", **rest):
    on = remove_test_environments(create_and_draw_dataset("colored", data))
    fields = {"order": "sequential", "seeds": (0, 1), "settings": FIXED, **rest}
    return SettingsRandomSearch(
        on,
        learner,
        space=parse_search_space(learner, [space]),
        rules=rules,
        trials=trials,
        **fields,
    )


def scores(records):
    found = [r for r in records if isinstance(r, ScoreRecord)]
    return {(r.metric, r.environment, r.seed): r.value for r in found}


def nothing(done):
    """A report that no one reads."""


def test_a_search_holds_no_test_environment():
    problem = search().on.problem
    assert problem.train and not problem.test and not problem.sweep


def test_no_rule_depends_on_the_test_environment_but_the_oracle():
    found = []
    for flip in ("0.9", "0.1"):
        jobs = search((*HONEST, "oracle"), 1, {**DATA, "test_flip": flip}).plan_jobs()
        rows = {}
        for job in jobs:
            rows |= scores(run_job_and_return_records(job, nothing))
        found.append(rows)
    assert {rule for rule, _, _ in found[0]} == {*HONEST, "oracle"}
    for place, value in found[0].items():
        assert (value == found[1][place]) == (place[0] != "oracle")


def test_only_with_the_oracle_is_the_test_environment_scored():
    (job,) = search(("held-out",), 1).plan_jobs()
    assert not job.oracle
    assert "oracle" not in {
        rule for rule, _, _ in scores(run_job_and_return_records(job, nothing))
    }


def test_rules_share_what_was_trained(tmp_path):
    one = search(("held-out",))
    run_jobs_locally(one.plan_jobs(), tmp_path, 1)
    more = search(("held-out", "worst-group", "next"))
    assert list_unfinished_jobs(more.plan_jobs(), tmp_path) == []
    assert set(summarise_random_search(more, tmp_path)["picks"]) == {
        "held-out",
        "worst-group",
        "next",
    }
    assert (
        len(list_unfinished_jobs(search(HONEST).plan_jobs(), tmp_path)) == 4
    )  # those left out


def test_more_trials_go_on_from_those_there_are(tmp_path):
    run_jobs_locally(search(trials=2, rules=("next",)).plan_jobs(), tmp_path, 1)
    more = search(trials=3, rules=("next",))
    assert len(list_unfinished_jobs(more.plan_jobs(), tmp_path)) == 1
    assert search(trials=2).key == more.key
    assert search(space="rate=1e-4..1e-3").key != more.key


def test_each_rule_picks_the_trial_with_its_highest_score(tmp_path):
    made = search(trials=3)
    run_jobs_locally(made.plan_jobs(), tmp_path, 1)
    found = summarise_random_search(made, tmp_path)
    assert [trial["state"] for trial in found["trials"]] == ["done"] * 3
    assert found["trials"][0]["settings"] == FIXED
    for rule, pick in found["picks"].items():
        means = [trial["scores"][rule]["mean"] for trial in found["trials"]]
        assert pick["score"]["mean"] == max(means)
        assert pick["trial"] == means.index(max(means))
        assert pick["settings"] == found["trials"][pick["trial"]]["settings"]


def test_the_score_of_leave_one_out_is_the_mean_over_environments(tmp_path):
    made = search(("leave-one-out",), 1)
    rows = {}
    for job in made.plan_jobs():
        rows |= scores(run_job_and_return_records(job, nothing))
    assert {place for _, place, _ in rows} == {"train-1", "train-2"}
    run_jobs_locally(made.plan_jobs(), tmp_path, 1)
    found = summarise_random_search(made, tmp_path)["trials"][0]["scores"][
        "leave-one-out"
    ]
    assert found["mean"] == pytest.approx(sum(rows.values()) / 4)
    assert found["seeds"] == 2


def test_scores_have_the_sample_deviation_over_all_seeds(tmp_path):
    made = search(("held-out",), 1)
    (job,) = made.plan_jobs()
    run_jobs_locally([job], tmp_path, 1)
    path = get_records_path(job, tmp_path)
    rows = [
        replace(row, value=10.0 * row.seed) if isinstance(row, ScoreRecord) else row
        for row in read_records(path)
    ]
    write_records(path, rows)
    found = summarise_random_search(made, tmp_path)["trials"][0]["scores"]["held-out"]
    assert found == {"mean": 5.0, "std": pytest.approx(50**0.5), "seeds": 2}
    lost = [
        replace(row, value=math.nan) if getattr(row, "seed", 0) == 1 else row
        for row in rows
    ]
    write_records(path, lost)
    summary = summarise_random_search(made, tmp_path)
    assert summary["trials"][0]["scores"] == {} and summary["picks"] == {}


def test_another_seed_of_the_draws_is_another_search():
    assert search(draw=1).key != search().key
    assert search(draw=1).get_settings(1) != search().get_settings(1)


def test_a_trial_that_diverges_is_not_picked_and_not_tried_again(tmp_path):
    wild = {**FIXED, "rate": 1e30, "optimiser": "sgd"}
    made = search(("held-out",), 2, settings=wild, space="rate=1e-4..1e-3")
    assert run_jobs_locally(made.plan_jobs(), tmp_path, 1) == {}
    assert list_unfinished_jobs(made.plan_jobs(), tmp_path) == []
    found = summarise_random_search(made, tmp_path)
    assert [trial["state"] for trial in found["trials"]] == ["diverged", "done"]
    assert found["picks"]["held-out"]["trial"] == 1


def test_a_trial_without_all_its_jobs_is_not_picked(tmp_path):
    made = search(trials=2)
    jobs = made.plan_jobs()
    run_jobs_locally(jobs, tmp_path, 1)
    get_records_path(jobs[-1], tmp_path).unlink()
    found = summarise_random_search(made, tmp_path)
    assert [trial["state"] for trial in found["trials"]] == ["done", "not run"]
    assert {pick["trial"] for pick in found["picks"].values()} == {0}


@pytest.mark.integration
def test_another_process_knows_what_to_do_with_a_trial():
    """Workers get jobs by pickle, and nothing else tells them of this kind of job."""
    (job,) = search(("held-out",), 1).plan_jobs()
    code = (
        "import pickle, sys\n"
        "job = pickle.load(sys.stdin.buffer)\n"
        "from cirm.runs.jobs import run_job_and_return_records\n"
        "print(run_job_and_return_records.dispatch(type(job)).__name__, job.key)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(job),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().split() == ["train_and_score_trial", job.key]


def test_the_command_of_a_pick_gives_its_settings_back():
    made = search(preset="paper")
    settings = made.get_settings(1)
    words = format_cirm_run_command(made, settings).split()
    assert words[:2] == ["cirm", "run"]
    texts = [words[n + 1] for n, word in enumerate(words) if word == "--set"]
    assert parse_name_value_assignments(texts, "--set")["hidden"] == "8"
    (job, *_) = plan_jobs_of_learner(
        made.on, "erm", "sequential", (0,), preset="paper", setting_texts=texts
    )
    assert job.settings == settings
    data = dict(zip(words[2::2], words[3::2], strict=True))
    assert data["--examples"] == "100"
    assert data["--preset"] == "paper"


def test_settings_that_make_no_sense_are_refused_before_anything_runs():
    with pytest.raises(ValueError, match="must be at least 0 and less"):
        search(space="dropout=1.5|2").plan_jobs()


def test_values_are_searched_by_negative_errors(tmp_path):
    on = remove_test_environments(create_and_draw_dataset("scm", {"examples": "40"}))
    made = replace(search(HONEST, 2), on=on, order="joint", rules=("worst-group",))
    run_jobs_locally(made.plan_jobs(), tmp_path, 1)
    found = summarise_random_search(made, tmp_path)
    assert found["metric"] == "error"
    assert found["picks"]["worst-group"]["score"]["mean"] < 0


@dataclass(frozen=True)
class Quantile(Rule):
    """A rule of a user's own, with a setting."""

    name = "quantile"
    description = "quantile of the scores on held-out parts"
    q: float = 0.0

    def score(self, trained, data):
        scores = torch.stack([trained.compute_mean_score([e]) for e in data.held_out])
        return scores.quantile(self.q, 0)


class LeftOutTwice(Rule):
    """A rule that needs trainings without one environment."""

    name = "twice"
    description = "twice the score where nothing was trained"
    leaves_out = True

    def score(self, trained, data):
        return 2 * trained.compute_mean_score([data.whole[trained.left_out]])


def test_a_rule_of_ones_own_picks_beside_the_others(tmp_path):
    made = search(("held-out", "leave-one-out", Quantile(0.0), LeftOutTwice()), 2)
    assert run_jobs_locally(made.plan_jobs(), tmp_path, 1) == {}
    found = summarise_random_search(made, tmp_path)
    assert found["rules"]["quantile"] == Quantile.description
    for trial in found["trials"]:
        means = {rule: score["mean"] for rule, score in trial["scores"].items()}
        assert means["quantile"] <= means["held-out"]
        assert means["twice"] == pytest.approx(2 * means["leave-one-out"])
    assert set(found["picks"]) == {"held-out", "leave-one-out", "quantile", "twice"}


def test_another_setting_of_a_rule_is_another_job_and_no_rule_none():
    (plain,) = search(("held-out",), 1).plan_jobs()
    keys = {search((Quantile(q),), 1).plan_jobs()[0].key for q in (0.0, 0.5)}
    assert len(keys | {plain.key}) == 3
    assert plain.rules == ()


def test_rules_must_have_names_of_their_own():
    with pytest.raises(ValueError, match="must have its own name"):
        search((Quantile(0.1), Quantile(0.2))).plan_jobs()


def test_a_rule_that_no_process_can_import_is_refused():
    class Local(Quantile):
        pass

    with pytest.raises(ValueError, match=r"'quantile' is defined inside a function"):
        search((Local(),)).plan_jobs()


def test_a_learner_instance_is_searched_from_its_own_settings():
    one = search(("held-out",), 2, learner="erm")
    instance = ERM(descent=Descent(epochs=7))
    made = replace(one, learner=instance, settings={"hidden": (8,)})
    assert [job.learner for job in made.plan_jobs()] == ["erm", "erm"]
    assert [job.settings["epochs"] for job in made.plan_jobs()] == [7, 7]
    assert made.plan_jobs()[1].settings["rate"] == one.get_settings(1)["rate"]
    assert "--set epochs=7" in format_cirm_run_command(made, made.get_settings(0))


def test_a_trial_after_inference_learns_from_inferred_environments(tmp_path):
    plain = search(("held-out",), 1, seeds=(0,))
    after = replace(plain, infer="eiil", inference={"epochs": 2, "steps": 0})
    (one,), (two,) = plain.plan_jobs(), after.plan_jobs()
    assert one.key != two.key
    run_job_and_return_records(two, nothing, tmp_path)
    inferred = list((tmp_path / "inferred").iterdir())
    assert len(inferred) == 2  # one for each stage
    assert scores(run_job_and_return_records(two, nothing, tmp_path)) == scores(
        run_job_and_return_records(two, nothing)
    )
