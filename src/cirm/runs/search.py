"""A random search over a learner's settings, by rules that see no test environment.

Every trial is a job that trains on a part of each training environment and records the
scores of all rules that one training allows. Each environment that is left out, for the
rule leave-one-out, is a further job. Jobs are named by their content, so nothing is
trained again for another rule, for more trials, or after an interruption.
"""

from __future__ import annotations

import hashlib
import math
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from cirm.records import Record, RunRecord, ScoreRecord, read_records
from cirm.runs.jobs import (
    TrainingJob,
    create_inference_of_job,
    describe_data_of_job,
    draw_environments_of_job,
    run_job_and_return_records,
)
from cirm.runs.local import get_records_path
from cirm.runs.plans import DrawnDataset, plan_jobs_of_learner, resolve_learner_settings
from cirm.runs.search_space import Space, draw_settings_of_trial, format_search_space

if TYPE_CHECKING:
    from torch import Tensor

    from cirm.environments import Problem
    from cirm.evaluation.selection import Rule
    from cirm.learners import LearnerLike
    from cirm.learners.base import Learner

DIVERGED = "diverged"


@dataclass(frozen=True)
class SearchTrialJob(TrainingJob):
    """A job that trains on a part of the training environments and records scores.

    Attributes:
        held: Part of each training environment that is held out.
        left: Index of an environment that is left out of the training.
        oracle: Whether the test environments are scored.
        rules: Import path and settings of the rules that are not built in.
    """

    held: float = 0.2
    left: int | None = None
    oracle: bool = False
    rules: tuple[tuple[str, dict[str, Any]], ...] = ()


@dataclass(frozen=True)
class SettingsRandomSearch:
    """A random search: draws from a space of settings, scored by rules.

    Attributes:
        on: The data set without test environments, see `remove_test_environments`.
        learner: A key, the name of an entry point, an import path, a class, or an
            instance without a network.
        order: Order of the environments, as `cirm.run` takes it.
        seeds: Seeds of each trial.
        space: The settings to draw, from `parse_search_space`.
        rules: Keys of rules, or rules.
        trials: Number of trials; the first has the settings without changes.
        preset: Named settings that all trials start from.
        settings: Fixed settings, over those of the preset and below the draws.
        held: Part of each training environment that is held out.
        draw: Seed of the draws.
        infer: Key of an environment inference that comes first; none if empty. It
            takes one seed.
        inference: Settings of the inference.
    """

    on: DrawnDataset
    learner: LearnerLike
    order: str
    seeds: tuple[int, ...]
    space: Space
    rules: tuple[str | Rule, ...]
    trials: int = 20
    preset: str = ""
    settings: Mapping[str, Any] | None = None
    held: float = 0.2
    draw: int = 0
    infer: str = ""
    inference: Mapping[str, Any] | None = None
    _planned: dict[int, list[SearchTrialJob]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def key(self) -> str:
        """A short name for all but the number of trials and the rules.

        A search with more trials or other rules continues in the same folder.
        """
        (first,) = replace(self, rules=("held-out",)).plan_jobs_of_trial(0)
        text = " ".join(
            [first.key, str(self.draw), str(format_search_space(self.space))]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def learner_key(self) -> str:
        """Key or import path of the learner."""
        return resolve_learner_settings(self.learner)[0]

    def load_selection_rules(self) -> dict[str, Rule]:
        """Return the rules by name."""
        from cirm.evaluation.selection import get_selection_rule

        rules = [get_selection_rule(rule) for rule in self.rules]
        named = {rule.name: rule for rule in rules}
        if len(named) < len(rules):
            names = ", ".join(rule.name for rule in rules)
            raise ValueError(
                "Each rule that selects settings must have its own name, but the "
                f"names are {names}. Rename or remove one."
            )
        return named

    def get_settings(self, trial: int) -> dict[str, Any]:
        """Return the settings of a trial that are neither defaults nor the preset's."""
        settings = {
            **resolve_learner_settings(self.learner, self.preset)[1],
            **(self.settings or {}),
        }
        return settings | draw_settings_of_trial(self.space, trial, self.draw)

    def plan_jobs_of_trial(self, trial: int) -> list[SearchTrialJob]:
        """Plan the jobs of a trial, first the one with all environments."""
        if trial not in self._planned:
            self._planned[trial] = list(self._build_jobs_of_trial(trial))
        return self._planned[trial]

    def _build_jobs_of_trial(self, trial: int) -> Iterator[SearchTrialJob]:
        from cirm.learners import create

        settings, train = self.get_settings(trial), self.on.problem.train
        create(self.learner_key, train[0], settings, self.preset)
        rules = self.load_selection_rules().values()
        left: list[int | None] = []
        if any(not rule.leaves_out for rule in rules):
            left.append(None)
        if any(rule.leaves_out for rule in rules):
            left += range(len(train))
        for index in left:
            yield SearchTrialJob(
                dataset=self.on.dataset,
                learner=self.learner_key,
                order=self.order,
                seeds=self.seeds,
                data=self.on.data,
                settings=settings,
                preset=self.preset,
                selection="a trial of a search",
                label=self.learner_key,
                files=self.on.files,
                held=self.held,
                left=index,
                oracle=index is None and any(rule.sees_test for rule in rules),
                rules=_describe_custom_selection_rules(rules, index is not None),
                infer=self.infer,
                inference=dict(self.inference or {}),
            )

    def plan_jobs(self) -> list[SearchTrialJob]:
        """Plan the jobs of all trials, each once."""
        jobs = [
            job
            for trial in range(self.trials)
            for job in self.plan_jobs_of_trial(trial)
        ]
        return list({job.key: job for job in jobs}.values())


def remove_test_environments(data: DrawnDataset) -> DrawnDataset:
    """Return a data set without its test environments and sweep."""
    from cirm.environments import Problem

    return data._replace(problem=Problem(data.problem.train))


@run_job_and_return_records.register(SearchTrialJob)
def train_and_score_trial(
    job: SearchTrialJob, progress: Callable[[float], None], folder: Path | None = None
) -> list[Record]:
    """Return the scores of a candidate, or that it diverged, and a run record."""
    from cirm.evaluation.run import collect_learner_settings
    from cirm.learners import create

    start = time.perf_counter()
    problem = draw_environments_of_job(job)
    learner = create(job.learner, problem.train[0], job.settings, job.preset)
    rows: list[Record] = [
        ScoreRecord(job.name, job.order, seed, 0, where, "selection", metric, value)
        for where, metric, values in _iterate_scores_of_selection_rules(
            job, learner, problem, progress, folder
        )
        for seed, value in zip(job.seeds, values.tolist(), strict=True)
    ]
    seconds = time.perf_counter() - start
    settings, data = collect_learner_settings(learner), describe_data_of_job(job)
    name, order, words = job.name, job.order, job.selection
    return [
        *rows,
        RunRecord(name, order, job.seeds, settings, data, words, seconds=seconds),
    ]


def _iterate_scores_of_selection_rules(
    job: SearchTrialJob,
    learner: Learner[Any],
    problem: Problem,
    progress: Callable[[float], None],
    folder: Path | None,
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield environment or "all", rule, and the score of each replica."""
    import torch

    from cirm.environments import Stream
    from cirm.evaluation.selection import (
        TrainingAndTestData,
        TrainingData,
        train_without_held_out_examples,
    )
    from cirm.training import DivergenceError

    data = TrainingData.split(problem.train, job.seeds, job.held)
    test = problem.test if job.oracle else ()
    stages = len(Stream.from_order(problem.train, job.order))
    order, seeds = job.order, job.seeds
    try:
        trained = train_without_held_out_examples(
            learner, data, order, seeds, job.left, progress,
            create_inference_of_job(job, folder, f"without {job.held} and {job.left}"),
        )  # fmt: skip
    except DivergenceError:
        yield "all", DIVERGED, torch.ones(len(seeds))
        return
    where = "all" if job.left is None else data.whole[job.left].name
    for rule in _load_rules_of_job(job):
        if rule.find_obstacle(stages, len(problem.train), len(test)):
            continue
        if rule.sees_test and job.oracle:
            parts = (data.whole, data.learn, data.held_out, test)
            yield where, rule.name, rule.score(trained, TrainingAndTestData(*parts))
        elif not rule.sees_test:
            yield where, rule.name, rule.score(trained, data)


def _describe_custom_selection_rules(
    rules: Iterable[Rule], leave_one_out: bool
) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return import path and settings of the rules that are not built in."""
    from cirm.evaluation.selection import RULES

    spelled: list[tuple[str, dict[str, Any]]] = []
    for rule in rules:
        cls = type(rule)
        path = f"{cls.__module__}:{cls.__qualname__}"
        if path in RULES.values() or rule.leaves_out != leave_one_out:
            continue
        if "<locals>" in path:
            raise ValueError(
                f"The rule {rule.name!r} is defined inside a function, so other "
                "processes cannot import it. Define it at the top level of a module."
            )
        spelled.append((path, asdict(rule) if is_dataclass(rule) else {}))
    return tuple(spelled)


def _load_rules_of_job(job: SearchTrialJob) -> list[Rule]:
    """Return all rules that a job's training can be scored by."""
    from cirm.evaluation.selection import REGISTRY, RULES, get_selection_rule

    rules = [get_selection_rule(key) for key in RULES]
    rules += [REGISTRY.load(path)(**settings) for path, settings in job.rules]
    return [rule for rule in rules if rule.leaves_out == (job.left is not None)]


def summarise_random_search(
    search: SettingsRandomSearch, folder: Path, failures: Collection[str] = ()
) -> dict[str, Any]:
    """Return the trials with their scores, and what each rule picks.

    `failures` are the keys of jobs that have failed; others without records were not
    run, as when a budget was spent.
    """
    rules = search.load_selection_rules()
    trials = [
        _summarise_scores_of_trial(search, n, folder, failures)
        for n in range(search.trials)
    ]
    return {
        "learner": search.learner_key,
        "dataset": {"name": search.on.dataset, **search.on.data},
        "order": search.order,
        "seeds": list(search.seeds),
        "preset": search.preset,
        "held": search.held,
        "metric": "accuracy" if search.on.problem.train[0].task.classes else "error",
        "rules": {name: rule.description for name, rule in rules.items()},
        "space": format_search_space(search.space),
        "trials": trials,
        "picks": {
            rule: pick
            for rule in rules
            if (pick := _pick_best_trial(trials, rule)) is not None
        },
    }


def _summarise_scores_of_trial(
    search: SettingsRandomSearch, trial: int, folder: Path, failures: Collection[str]
) -> dict[str, Any]:
    """Return a trial's state, and mean and standard deviation over seeds by rule."""
    jobs = search.plan_jobs_of_trial(trial)
    paths = [path for job in jobs if (path := get_records_path(job, folder)).exists()]
    rows = [
        row
        for path in paths
        for row in read_records(path)
        if isinstance(row, ScoreRecord)
    ]
    state = "done" if len(paths) == len(jobs) else "not run"
    if any(job.key in failures for job in jobs):
        state = "failed"
    if any(row.metric == DIVERGED for row in rows):
        state = DIVERGED
    scores = {}
    for rule in search.load_selection_rules() if state == "done" else ():
        by_seed: dict[int, list[float]] = {}
        for row in rows:
            if row.metric == rule and math.isfinite(row.value):
                by_seed.setdefault(row.seed, []).append(row.value)
        means = [fmean(values) for values in by_seed.values()]
        if len(means) == len(search.seeds):
            std = stdev(means) if len(means) > 1 else None
            scores[rule] = {"mean": fmean(means), "std": std, "seeds": len(means)}
    settings = search.get_settings(trial)
    return {"trial": trial, "settings": settings, "state": state, "scores": scores}


def _pick_best_trial(
    trials: Sequence[Mapping[str, Any]], rule: str
) -> dict[str, Any] | None:
    """Return the first trial with the highest score by a rule."""
    candidates = [trial for trial in trials if rule in trial["scores"]]
    if not candidates:
        return None
    best = max(candidates, key=lambda trial: trial["scores"][rule]["mean"])
    return {
        "trial": best["trial"],
        "settings": best["settings"],
        "score": best["scores"][rule],
    }


def plan_random_search(
    data: DrawnDataset,
    learner: str,
    rules: Sequence[str],
    spaces: Sequence[str],
    assignments: Sequence[str],
    **fields: Any,  # noqa: ANN401  fields of Search
) -> tuple[SettingsRandomSearch, dict[str, str]]:
    """Plan a search after checking everything that could fail when it runs.

    The rules may be "all"; those that cannot be used are returned with the reason.
    """
    from cirm.environments import Stream
    from cirm.evaluation.selection import RULES, get_selection_rule
    from cirm.learners import parse_learner_settings
    from cirm.runs.search_space import parse_search_space
    from cirm.settings import parse_name_value_assignments

    problem = data.problem
    stages = len(Stream.from_order(problem.train, fields["order"]))
    keys = list(RULES if "all" in rules else dict.fromkeys(rules))
    obstacles = [
        get_selection_rule(key).find_obstacle(
            stages, len(problem.train), len(problem.test)
        )
        for key in keys
    ]
    unused = {key: why for key, why in zip(keys, obstacles, strict=True) if why}
    if unused and "all" not in rules:
        key, reason = next(iter(unused.items()))
        raise ValueError(f"--rule {key}: {reason}. Choose another rule.")
    fixed = parse_learner_settings(
        learner, parse_name_value_assignments(list(assignments), "--set")
    )
    space = {
        n: s
        for n, s in parse_search_space(
            learner, spaces, problem.train[0].features
        ).items()
        if n not in fixed
    }
    if not 0 < fields["held"] < 1:
        raise ValueError(
            f"--hold-out: {fields['held']:g} is not between 0 and 1. Give the "
            "fraction of each training environment to hold out, for example 0.2."
        )
    search = SettingsRandomSearch(
        remove_test_environments(data), learner, space=space, settings=fixed,
        rules=tuple(key for key in keys if key not in unused), **fields,
    )  # fmt: skip
    search.plan_jobs()  # raises an error for impossible settings before anything runs
    return search, unused


def plan_jobs_of_selected_trials(
    search: SettingsRandomSearch,
    data: DrawnDataset,
    seeds: tuple[int, ...],
    selected_trials: Iterable[Mapping[str, Any]],
) -> dict[int, list[TrainingJob]]:
    """Plan the jobs of each selected trial, the same that `cirm run` would run."""
    jobs = {}
    for pick in selected_trials:
        texts = [
            f"{n}={format_setting_value(value)}"
            for n, value in pick["settings"].items()
        ]
        planned = plan_jobs_of_learner(
            data, search.learner_key, search.order, seeds, preset=search.preset,
            setting_texts=texts, label=f"{search.learner_key}, trial {pick['trial']}",
        )  # fmt: skip
        jobs[pick["trial"]] = [
            replace(job, selection="chosen by cirm select") for job in planned
        ]
    return jobs


def format_cirm_run_command(
    search: SettingsRandomSearch, settings: Mapping[str, Any]
) -> str:
    """Return the command that runs the learner with these settings."""
    words = ["cirm", "run", "--dataset", search.on.dataset]
    for name, value in search.on.data.items():
        words += [f"--{name.replace('_', '-')}", format_setting_value(value)]
    words += ["--learner", search.learner_key, "--order", search.order]
    words += ["--seeds", str(len(search.seeds))]
    words += ["--preset", search.preset] if search.preset else []
    for name, value in settings.items():
        words += ["--set", f"{name}={format_setting_value(value)}"]
    return shlex.join(words)


def format_setting_value(value: object) -> str:
    """Return a setting's value as it is written on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(format_setting_value, value))
    return str(value).lower() if isinstance(value, bool | None) else str(value)
