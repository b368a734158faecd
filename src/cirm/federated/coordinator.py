"""The coordinator at the server: the average, the feature step and the rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cirm.federated.checkpoint import FederatedStageProgress, StudyCheckpoint
from cirm.federated.connection import CheckedSiteReply, SiteMessenger, SiteRequest
from cirm.federated.ledger import MessageExchangeLog
from cirm.federated.study import (
    FederatedStageInfo,
    FederatedStudySettings,
    SiteAssignment,
    StageStepRange,
    split_stage_into_step_ranges,
)
from cirm.randomness import Randomness
from cirm.training import check_parameters_are_finite

if TYPE_CHECKING:
    from cirm.learners.birm import BIRM

MAX_REFUSALS = 3  # exchanges in a row in which every answer is refused
LEDGER_NAME = "ledger.jsonl"


@dataclass
class FederatedStudyCoordinator:
    """Runs a study over stages of named sites, from the checkpoint in its folder.

    The sites tell the form of the data. An exchange that fewer than `min_sites` answer
    is repeated.
    """

    study: FederatedStudySettings
    stages: Sequence[Sequence[str]]
    connection: SiteMessenger
    folder: Path
    min_sites: int = 1
    log: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.ledger = MessageExchangeLog(self.folder / LEDGER_NAME)
        self.checkpoint = StudyCheckpoint(self.folder, self.stages)
        names = [name for stage in self.stages for name in stage]
        if not names or not all(self.stages) or len(set(names)) < len(names):
            raise ValueError(
                "stages: every stage needs at least one site, and no site may occur "
                f"twice, but the stages are {list(map(list, self.stages))}. Separate "
                "sites by spaces and stages by semicolons, such as stages='a b; c'."
            )
        fewest = min(map(len, self.stages))
        if not 1 <= self.min_sites <= fewest:
            raise ValueError(
                "min_sites, the number of sites that a stage continues with, is "
                f"{self.min_sites}, but the smallest stage has only {fewest}. Use a "
                f"number from 1 to {fewest}."
            )

    def run(self) -> None:
        """Run every stage that has not ended."""
        self.study, first = self.checkpoint.resume_study(self.study)
        for number in range(first, len(self.stages)):
            self._run_stage_of_study(number, self.stages[number])
        self.log(f"the study has finished: {self.checkpoint.path}")

    def _run_stage_of_study(self, number: int, names: Sequence[str]) -> None:
        is_started = self.checkpoint.is_stage_unfinished(number)
        # A stage starts when all its sites are online; to continue, fewer are enough.
        enough = self.min_sites if is_started else len(names)
        exchange = self.ledger.start_exchange_record("join", number, (0, 0))
        self.connection.wait_for_sites(names, enough, exchange)
        if exchange.refused:
            self.ledger.append_exchange_record(exchange)
        present = [name for name in names if name in self.connection.sites]
        self._check_data_of_sites(present)
        learner = self.study.create_learner_of_study()
        state = self._start_stage_of_study(number, present, learner)
        if is_started:
            self.checkpoint.restore_stage_progress(state)
            self.log(f"continuing stage {number} after step {state.steps_done}")
        steps, epochs = state.info.steps, learner.descent.epochs
        has_features = state.features.shape[1] > 0
        for segment in split_stage_into_step_ranges(
            learner.admm, epochs, steps, has_features
        ):
            if segment.last > state.steps_done:
                self._train_sites_for_segment(segment, names, state)
                state.steps_done = segment.last
                parameters = torch.cat([state.shared, state.features], 1)
                check_parameters_are_finite(parameters, segment.last)
                self.checkpoint.save_stage_progress(self.study, state)
        self.checkpoint.save_finished_stage(self.study, state)

    def _check_data_of_sites(self, names: Sequence[str]) -> None:
        """Take the form of the data from the sites; refuse sites that differ."""
        for name in names:
            _, features, classes = self.connection.sites[name]
            if self.study.features:
                self.study.check_data_format_of_site(name, features, classes)
            self.study = replace(self.study, features=features, classes=classes)

    def _start_stage_of_study(
        self, number: int, names: Sequence[str], learner: BIRM
    ) -> FederatedStageProgress:
        if ended := self.checkpoint.finished_stage_tensors:
            learned = learner.build_state_after_stage(*ended)
        else:
            learned = learner.init(Randomness(self.study.seeds).at("init"))
        features, shared = learner.get_initial_parameters_of_stage(learned)
        sizes = [self.connection.sites[name].examples for name in names]
        batch = learner.descent.batch
        steps = -(-max(sizes) // batch) if batch else 1
        features = features.detach().clone().requires_grad_()
        return FederatedStageProgress(
            info=FederatedStageInfo(number, steps, sum(sizes)),
            features=features,
            shared=shared,
            past=learned.last,
            prior=learner.get_prior_parameters(learned),
            optimiser=learner.descent.create_optimiser(features),
        )

    def _train_sites_for_segment(
        self,
        segment: StageStepRange,
        names: Sequence[str],
        state: FederatedStageProgress,
    ) -> None:
        """Let the sites take their steps, average, and move the features."""
        answers = self._request_answers_of_sites("steps", segment, names, state)
        for name, answer in answers.items():
            for kind, sent in (("value", state.values), ("local", state.locals)):
                if kind in answer.tensors:
                    sent[name] = answer.tensors[kind]
        if segment.updates_features_before_average:
            _update_features_by_gradients(answers, state)
        if segment.averages:
            values = [state.values[name] for name in sorted(state.values)]
            state.shared = torch.cat([torch.stack(values, 1), state.past], 1).mean(1)
        if segment.is_last:  # a site that is absent at the end counts as it last was
            state.locals = {**state.values, **state.locals}
        if segment.updates_features_after_average:
            answers = self._request_answers_of_sites("gradient", segment, names, state)
            _update_features_by_gradients(answers, state)

    def _request_answers_of_sites(
        self,
        kind: str,
        segment: StageStepRange,
        names: Sequence[str],
        state: FederatedStageProgress,
    ) -> dict[str, CheckedSiteReply]:
        """Ask the sites until enough of them have answered."""
        collected: dict[str, CheckedSiteReply] = {}
        refusals, has_logged = 0, False
        while len(collected) < self.min_sites:
            steps = segment.first, segment.last
            exchange = self.ledger.start_exchange_record(kind, state.info.number, steps)
            requests = {
                name: self._build_request_to_site(kind, segment, name, state)
                for name in names
                if name not in collected
            }
            answers = self.connection.send_requests_and_receive_answers(
                kind, requests, exchange
            )
            collected |= {name: a for name, a in answers.items() if name in names}
            if exchange.down or exchange.up or exchange.refused:
                self.ledger.append_exchange_record(exchange)
                self.log(exchange.describe())
            refusals = refusals + 1 if exchange.refused and not answers else 0
            if refusals == MAX_REFUSALS:
                why = "; ".join(f"{n}: {text}" for n, text in exchange.refused.items())
                raise ValueError(
                    f"study: in {MAX_REFUSALS} attempts, no site sent an answer that "
                    f"the server could use ({why}). Check the logs of the sites, then "
                    "start the study again."
                )
            if len(collected) < self.min_sites:
                if not has_logged:
                    wanted = f"{self.min_sites} of {', '.join(names)}"
                    self.log(f"waiting for answers of {wanted}")
                has_logged = True
                time.sleep(self.connection.poll_interval)
        return collected

    def _build_request_to_site(
        self,
        kind: str,
        segment: StageStepRange,
        name: str,
        state: FederatedStageProgress,
    ) -> SiteRequest:
        tensors = {"features": state.features.detach(), "shared": state.shared}
        if name in self.connection.needs_prior:
            tensors["prior"] = state.prior
        shared, features = list(state.shared.shape), list(state.features.shape)
        expected: dict[str, list[int]] = {}
        if kind == "steps":
            expected |= {"value": shared} if segment.averages else {}
            expected |= {"local": shared} if segment.is_last else {}
        if kind == "gradient" or segment.updates_features_before_average:
            expected["gradient"] = features
        notes = SiteAssignment(self.study, state.info, segment).to_dict()
        notes["shapes"] = {name: list(t.shape) for name, t in tensors.items()}
        return SiteRequest(tensors, notes, expected)


def _update_features_by_gradients(
    answers: dict[str, CheckedSiteReply], state: FederatedStageProgress
) -> None:
    """Move the features by the sum of the sites' gradients; late answers have none."""
    tensors = [answers[name].tensors for name in sorted(answers)]
    gradients = [each["gradient"] for each in tensors if "gradient" in each]
    if gradients:
        state.features.grad = torch.stack(gradients).sum(0)
        state.optimiser.step()
