"""The engine for images, embeddings and long vectors: unstable directions.

At each stage the differences between class means are compared with those of earlier
environments. A change leads to a feature, a function of the inputs with one value per
class, and to a view of the inputs without it; the search is repeated in the view until
nothing is left. An ensemble learns the classes from the view. What the features say of
the classes in an environment is a table P(value | class), counted where there are
labels and estimated by EM where there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import TableNames
from cirm.learners.steady import directions_regression as regression
from cirm.learners.steady import directions_state as states
from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_adapt import (
    choose_value_log_tables_for_prediction,
    correct_stable_logits_by_features,
    estimate_adaptation_of_replica,
)
from cirm.learners.steady.directions_compare import LabelledStageRows, Trend
from cirm.learners.steady.directions_explain import explain_state_of_networks
from cirm.learners.steady.directions_inputs import fit_input_scale, scale_inputs
from cirm.learners.steady.directions_kernel import fit_kernel_width
from cirm.learners.steady.directions_reference import (
    EasiestFeaturePredictions,
    count_correct_answers_by_class,
    predict_with_easiest_feature_ensemble,
    train_easiest_predictor,
)
from cirm.learners.steady.directions_regression_explain import (
    explain_regression_with_networks,
)
from cirm.learners.steady.directions_remainder import StageRemainder
from cirm.learners.steady.directions_stable import (
    compute_mean_logits_of_members,
    has_single_target,
    keep_earlier_calibration,
)
from cirm.learners.steady.directions_stage import (
    FeatureSearchOutcome,
    ReaderTraining,
    UnstableFeatureSearch,
    remove_features_from_rows,
)
from cirm.learners.steady.directions_start import (
    FEW_ROWS,
    train_members_beside_plain_ensemble,
    weigh_training_on_few_rows,
)
from cirm.learners.steady.directions_state import (
    EasiestPredictorState,
    SteadyNetworkState,
)
from cirm.learners.steady.directions_statistics import (
    ImageStatisticsScale,
    fit_image_statistics_scale,
)
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    NetworkEnsemble,
    assign_rows_to_folds,
    compute_ensemble_member_outputs,
    select_held_out_outputs_of_members,
    train_ensemble_members,
)
from cirm.learners.steady.directions_update import build_state_after_feature_search
from cirm.memory import select_state_of_replica, stack_states_of_replicas
from cirm.randomness import RandomDraws, Randomness
from cirm.training import Watch

if TYPE_CHECKING:
    from cirm.learners.steady.learner import Steady


@dataclass(frozen=True)
class SteadyNetworkEngine:
    """Learns with networks from inputs of which single entries mean little."""

    learner: Steady

    def init(self, randomness: Randomness) -> SteadyNetworkState:
        """Return the state before any data: new networks, nothing else."""
        network, members = self.learner.network, self.learner.members
        params = network.init(randomness.at("params").spawn(members))
        params[:, network.head] = 0  # a new network says nothing
        return states.create_initial_directions_state(
            params.view(len(randomness.seeds), members, -1)
        )

    def observe(
        self,
        state: SteadyNetworkState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> SteadyNetworkState:
        """Search for unstable features, then learn what holds without them."""
        replicas = len(state.members)
        pieces = [environment.take_all(replicas) for environment in stage]
        inputs = torch.cat([piece.x for piece in pieces], 1).float()
        targets = torch.cat([piece.y for piece in pieces], 1)
        is_first = not bool(state.places[0])
        if is_first and self.learner.network.accepts_scaled_inputs:
            state = state._replace(inputs=fit_input_scale(inputs))
        sizes = torch.tensor([len(environment) for environment in stage])
        places = torch.repeat_interleave(torch.arange(len(stage)), sizes)
        if not self.learner.classes:
            rows = inputs, targets, places
            return regression.observe_regression_stage(
                self._get_regression_settings(), state, *rows, randomness, watch
            )
        shape = tuple(inputs.shape[2:])
        if not state.tables.numel():
            state = states.allocate_directions_state_tensors(
                state, shape, self.learner.classes
            )
        state = states.upgrade_state_of_earlier_version(state)
        state = states.remove_adaptation_from_state(state)
        if is_first:
            state = state._replace(
                scale=self._fit_scales_of_image_statistics(inputs, targets)
            )
        if not is_first and has_single_target(targets):
            return state  # no rows of other classes, from which to tell these
        if not state.width.any():  # also after a stage of an earlier version
            widths = [fit_kernel_width(x.flatten(1)) for x in inputs]
            state = state._replace(width=torch.stack(widths))
        hypotheses = self._score_easiest_predictor(
            state, inputs, targets, places, randomness
        )
        answers = self._predict_with_feature_network(state, inputs)
        plain = scale_inputs(inputs, state.inputs)
        at = [Randomness((seed,), randomness.path) for seed in randomness.seeds]
        folds = assign_rows_to_folds(
            randomness.at("train"), targets.shape[1], self.learner.members
        )
        searches = []
        for r in range(replicas):
            one = select_state_of_replica(state, r)
            search = UnstableFeatureSearch(
                LabelledStageRows(inputs[r].flatten(1), targets[r], places),
                None if is_first else one.moments,
                one.kernel if one.kernel.counts.any() else None,
                one.width,
                hypotheses[r],
                self.learner.level,
                int(one.looks),
                Trend(float(one.trend[0]), int(one.trend[1])),
                shape,
                one.scale,
                self.learner.classes,
                folds[r],
                self._prepare_training_of_shortcut_network(
                    state.members[r : r + 1],
                    plain[r : r + 1],
                    targets[r : r + 1],
                    at[r],
                ),
            )
            features = states.get_unstable_features_of_replica(one)
            searches.append(partial(search.run, features, answers[r]))
        outcomes = [search() for search in searches]
        remainder = StageRemainder(
            state,
            self._compute_network_outputs,
            self.init(randomness.at("restart")).members,
            targets,
            places,
            shape,
            self.learner.classes,
            is_first,
        )
        training_parts = (
            self.learner.likelihood,
            self.learner.descent,
            randomness,
            watch,
        )
        training = remainder.train_stable_models(outcomes, *training_parts)
        tell_all = remainder.do_features_tell_all(outcomes, training)
        if any(tell_all):
            outcomes = [
                search(can_be_explained=False) if all_told else outcome
                for search, outcome, all_told in zip(
                    searches, outcomes, tell_all, strict=True
                )
            ]
            training = remainder.train_stable_models(outcomes, *training_parts)
        seen, known, start, fit, judgements = training
        seen_rows, count = state.moments.counts.sum(1), targets.shape[1]
        if not is_first and count < FEW_ROWS:
            members = weigh_training_on_few_rows(fit.params, start, seen_rows, count)
            fit = fit._replace(params=members)
            judgements = [
                own
                if outcomes[r].found or not state.calibration[r].any()
                else keep_earlier_calibration(select_state_of_replica(state, r), own)
                for r, own in enumerate(judgements)
            ]
        parts = [
            build_state_after_feature_search(
                select_state_of_replica(state, r), outcomes[r], judgements[r], t, places
            )
            for r, t in enumerate(targets)
        ]
        beside = state.beside
        state = stack_states_of_replicas(parts)._replace(members=fit.params)
        state = train_members_beside_plain_ensemble(
            self._compute_network_outputs,
            state,
            fit,
            plain,
            known,
            self.learner.likelihood,
            self.learner.descent,
            randomness.at("beside"),
        )
        if not is_first and count < FEW_ROWS:
            members = weigh_training_on_few_rows(state.beside, beside, seen_rows, count)
            state = state._replace(beside=members)
        return self._update_easiest_predictor(
            state, fit, seen, targets, hypotheses, outcomes
        )

    def outputs(self, state: SteadyNetworkState, inputs: Tensor) -> Tensor:
        """Return logits [replica, sample, n, k], or values [replica, 1, n, 1]."""
        inputs = inputs.to(state.members.dtype)
        if not self.learner.classes:
            return regression.predict_regression_values(
                self._get_regression_settings(), state, inputs
            )
        if not state.tables.numel():  # nothing learned yet
            outputs = compute_ensemble_member_outputs(
                self._compute_network_outputs, state.members, inputs
            )
            return outputs.mean(1, keepdim=True)
        stable, values = self._compute_stable_logits(state, inputs)
        results = []
        for r, logits in enumerate(stable):
            draws = choose_value_log_tables_for_prediction(
                select_state_of_replica(state, r), self.learner.trust
            )
            evidence = tables.compute_class_log_likelihoods(
                draws[:, : len(values[r])], values[r]
            )
            results.append(logits + evidence)
        return torch.stack(results).float()

    def adapt(self, state: SteadyNetworkState, inputs: Tensor) -> SteadyNetworkState:
        """Estimate what the features say in the environment of unlabelled inputs."""
        if not self.learner.classes:
            return regression.adapt_regression_state(
                self._get_regression_settings(), state, inputs.float()
            )
        if not state.tables.numel():
            return state
        state = states.remove_adaptation_from_state(state)
        with torch.no_grad():
            raw, values = self._compute_raw_logits(
                state, inputs.to(state.members.dtype)
            )
        parts = [
            estimate_adaptation_of_replica(
                select_state_of_replica(state, r), raw[r], values[r]
            )
            for r in range(len(raw))
        ]
        return state._replace(adaptation=stack_states_of_replicas(parts))

    def explain(
        self,
        state: SteadyNetworkState,
        columns: Mapping[str, int],
        environments: int,
        names: TableNames,
    ) -> dict[str, Any]:
        """Explain which features are unstable and what an adaptation changed."""
        if not self.learner.classes:
            return explain_regression_with_networks(state, self.learner.trust)
        return explain_state_of_networks(state, self.learner.trust, environments)

    def _compute_network_outputs(
        self, params: Tensor, inputs: Tensor, noise: RandomDraws | None
    ) -> Tensor:
        """Return one logit for each class, or values."""
        outputs = self.learner.network(params, inputs, noise)
        if self.learner.classes:
            outputs = self.learner.likelihood.compute_class_logits(outputs)  # type: ignore[attr-defined]
        return outputs

    def _fit_scales_of_image_statistics(
        self, inputs: Tensor, targets: Tensor
    ) -> ImageStatisticsScale:
        """Return the scale of the statistics of each replica's images."""
        shape = tuple(inputs.shape[2:])
        pairs = zip(inputs.flatten(2).double(), targets, strict=True)
        return stack_states_of_replicas(
            [fit_image_statistics_scale(rows, y, shape) for rows, y in pairs]
        )

    def _remove_features_from_inputs(
        self, state: SteadyNetworkState, inputs: Tensor, n_views: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return inputs without the first so many features, and values [feature, n]."""
        shape = tuple(inputs.shape[2:])
        answers = self._predict_with_feature_network(state, inputs)
        rows, values = [], []
        for r, count in enumerate(n_views.tolist()):
            one = select_state_of_replica(state, r)
            features = states.get_unstable_features_of_replica(one)[: int(count)]
            flat = inputs[r].flatten(1)
            seen, _, known = remove_features_from_rows(
                flat, features, shape, one.scale, answers[r]
            )
            rows.append(seen)
            none = torch.zeros(0, len(seen)).long()
            values.append(torch.stack(known) if known else none)
        return torch.stack(rows).view(inputs.shape), values

    def _predict_with_feature_network(
        self, state: SteadyNetworkState, inputs: Tensor
    ) -> Tensor:
        """Return the answers [replica, n] of networks that read a feature, if any."""
        if not state.taught.any():
            return torch.zeros(inputs.shape[:2], dtype=torch.long)
        inputs = scale_inputs(inputs, state.inputs)
        outputs = compute_ensemble_member_outputs(
            self._compute_network_outputs, state.taught, inputs
        )
        return outputs.log_softmax(-1).mean(1).argmax(-1)

    def _prepare_training_of_shortcut_network(
        self,
        initial_params: Tensor,
        inputs: Tensor,
        targets: Tensor,
        randomness: Randomness,
    ) -> ReaderTraining:
        """Return what trains plain networks on one replica's rows, as readers.

        Where a shortcut and what is stable disagree, a plain network follows the one
        that agrees with the class more often. So its answers are the shortcut, as soon
        as that is worth taking.
        """

        def train_shortcut_network() -> tuple[Tensor, Tensor]:
            offset = torch.zeros(*targets.shape, self.learner.classes)
            fit = train_ensemble_members(
                self._compute_network_outputs,
                initial_params,
                LabelledTrainingRows(inputs, targets, offset),
                self.learner.likelihood,
                self.learner.descent,
                randomness.at("reader"),
            )
            outputs = compute_ensemble_member_outputs(
                self._compute_network_outputs, fit.params, inputs
            )
            held_out = select_held_out_outputs_of_members(outputs, fit.folds)[0]
            return fit.params[0], held_out.argmax(-1)

        return train_shortcut_network

    def _compute_stable_logits(
        self, state: SteadyNetworkState, inputs: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the stable logits [replica, n, k], and the values [feature, n]."""
        raw, values = self._compute_raw_logits(state, inputs)
        corrected = [
            correct_stable_logits_by_features(
                select_state_of_replica(state, r), raw[r], values[r]
            )
            for r in range(len(inputs))
        ]
        return torch.stack(corrected), values

    def _compute_raw_logits(
        self, state: SteadyNetworkState, inputs: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits of the networks, [replica, n, k], and the values."""
        seen, values = self._remove_features_from_inputs(state, inputs, state.found)
        seen = scale_inputs(seen, state.inputs)
        parts = self._compute_network_outputs, state.members, seen
        return compute_mean_logits_of_members(*parts), values

    def _score_easiest_predictor(
        self,
        state: SteadyNetworkState,
        inputs: Tensor,
        targets: Tensor,
        environment_of_row: Tensor,
        randomness: Randomness,
    ) -> list[EasiestFeaturePredictions | None]:
        """Return how often the easiest predictor is right in each environment."""
        is_first, classes = not bool(state.places[0]), self.learner.classes
        if is_first and int(environment_of_row.max()) == 0:
            return [None] * len(inputs)
        if is_first:  # several environments at once: it is trained on all of them
            answers, right = train_easiest_predictor(
                self._compute_network_outputs,
                state.members,
                scale_inputs(inputs, state.inputs),
                targets,
                self.learner.likelihood,
                self.learner.descent,
                randomness.at("reference"),
            )
        else:
            seen, _ = self._remove_features_from_inputs(
                state, inputs, state.reference.views
            )
            seen, params = scale_inputs(seen, state.inputs), state.reference.params
            answers, right = predict_with_easiest_feature_ensemble(
                self._compute_network_outputs, params, seen, targets
            )
        hypotheses: list[EasiestFeaturePredictions | None] = []
        for r in range(len(inputs)):
            tallies = [] if is_first else [state.reference.tally[r]]
            for place in range(int(environment_of_row.max()) + 1):
                here = environment_of_row == place
                tallies.append(
                    count_correct_answers_by_class(
                        right[r][here], targets[r][here], classes
                    )
                )
            hypotheses.append(EasiestFeaturePredictions(answers[r], tallies))
        return hypotheses

    def _update_easiest_predictor(
        self,
        state: SteadyNetworkState,
        ensemble: NetworkEnsemble,
        inputs_in_view: Tensor,
        targets: Tensor,
        hypotheses: list[EasiestFeaturePredictions | None],
        outcomes: list[FeatureSearchOutcome],
    ) -> SteadyNetworkState:
        """Return the state with the tallies of the reference, or with a new one.

        A reference is kept until a feature was found, which is what it answered by.
        """
        is_first = not state.reference.tally.any()
        outputs = compute_ensemble_member_outputs(
            self._compute_network_outputs, ensemble.early, inputs_in_view
        )
        right = (
            select_held_out_outputs_of_members(outputs, ensemble.folds).argmax(-1)
            == targets
        ).double()
        params, tally, views = (part.clone() for part in state.reference)
        for r, hypothesis in enumerate(hypotheses):
            if hypothesis is None or outcomes[r].found or is_first:
                params[r], views[r] = ensemble.early[r], state.found[r]
                tally[r] = count_correct_answers_by_class(
                    right[r], targets[r], self.learner.classes
                )
            else:
                tally[r] = torch.stack(hypothesis.tallies).sum(0)
        return state._replace(reference=EasiestPredictorState(params, tally, views))

    def _get_regression_settings(self) -> regression.RegressionSettings:
        """Return what a regression needs of the learner."""
        own = self.learner
        parts = own.likelihood, own.descent, own.level, own.trust
        return regression.RegressionSettings(self._compute_network_outputs, *parts)
