"""The engine of `steady` for tables: unstable columns, found and re-learned.

A generalised linear model with hinges predicts by the stable columns. Its posterior is
carried from environment to environment, with the moments and effects by which later
environments are compared; no row is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Stage
from cirm.learners.base import TableNames
from cirm.learners.steady import columns_learn as learn
from cirm.learners.steady.columns_adapt import (
    add_evidence_of_unstable_features,
    compute_relative_size_of_residuals,
)
from cirm.learners.steady.columns_arrival import score_models_on_new_environment
from cirm.learners.steady.columns_explain import explain_state_of_columns
from cirm.learners.steady.columns_predict import compute_outputs_of_predictor
from cirm.learners.steady.columns_products import drop_unstable_feature_products
from cirm.learners.steady.columns_refuse import (
    FEWEST_ROWS,
    UNCLEAR,
    has_adapting_to_frequencies_helped,
    list_reasons_not_to_adapt,
)
from cirm.learners.steady.columns_rows import take_rows_up_to_limit
from cirm.learners.steady.columns_search import (
    append_environment_summary_to_state,
    center_environment_moments,
    find_and_set_aside_unstable_features,
    summarise_environment,
)
from cirm.learners.steady.columns_state import (
    SAMPLES,
    ColumnsAdaptation,
    SteadyTableState,
    create_empty_columns_adaptation,
    create_empty_columns_state,
)
from cirm.learners.steady.columns_unlabelled import set_changed_features_aside
from cirm.memory import select_state_of_replica, stack_states_of_replicas
from cirm.randomness import Randomness
from cirm.training import Watch


@dataclass(frozen=True)
class SteadyTableEngine:
    """The engine for vectors whose entries are columns of a table.

    Args:
        classes: Number of classes; 0 for regression.
        trust: What unstable features count for where nothing is known.
        level: Probability of calling any feature unstable if all are stable.
        unstable: Columns that are unstable by the user's word.
        stable: Columns that are stable by the user's word.
        widths: Number of features of each column; empty if each has one.
    """

    classes: int
    trust: Literal["invariant", "interval", "average"] = "invariant"
    level: float = 0.05
    unstable: tuple[int, ...] = ()
    stable: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    def init(self, randomness: Randomness) -> SteadyTableState:
        """Return the state before any data."""
        outputs = 1 if self.classes <= 2 else self.classes
        empty = create_empty_columns_state(0, 0, outputs, max(1, self.classes), 0, 0, 0)
        return stack_states_of_replicas([empty] * len(randomness.seeds))

    def observe(
        self,
        state: SteadyTableState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> SteadyTableState:
        """Return the state after a stage of labelled environments."""
        replicas = len(randomness.seeds)
        rows = [take_rows_up_to_limit(e, randomness, self.classes) for e in stage]
        outputs = state.base.levels.shape[-1]
        states: list[SteadyTableState] = []
        is_first = not state.unit.numel()
        parts = replicas * (is_first + 2 * len(rows))  # each takes about as long
        done = 0

        def report_observed_environment() -> None:
            nonlocal done
            done += 1
            watch(done, parts, {})

        for replica in range(replicas):
            data = [
                (x[replica].flatten(1).double(), self._encode_targets(y[replica]))
                for x, y in rows
            ]
            source = Randomness((randomness.seeds[replica],), ("steady",))
            own = select_state_of_replica(state, replica)
            states.append(
                self._observe_stage_of_replica(
                    own, data, outputs, source, report_observed_environment
                )
            )
        return stack_states_of_replicas(states)

    def _encode_targets(self, targets: Tensor) -> Tensor:
        """Return targets [n] as one column per class, or as values [n, 1]."""
        if not self.classes:
            return targets.double()[:, None]
        return F.one_hot(targets, self.classes).double()

    def _observe_stage_of_replica(
        self,
        state: SteadyTableState,
        data: list[tuple[Tensor, Tensor]],
        n_outputs: int,
        randomness: Randomness,
        report: Callable[[], None],
    ) -> SteadyTableState:
        is_regression = not self.classes
        if not len(state.unit):
            state = learn.create_state_from_first_environment(
                *data[0], self.widths, is_regression
            )
            report()
        d = len(state.unit)
        normals = _draw_normals(randomness, state)
        named, protected = (
            self._find_features_of_columns(columns, d)
            for columns in (self.unstable, self.stable)
        )
        summaries, seen = [], state
        for x, y in data:
            summaries.append(summarise_environment(seen, x, y, is_regression))
            report()
            seen = append_environment_summary_to_state(seen, summaries[-1])
        state = find_and_set_aside_unstable_features(
            state, summaries, self.level, named, protected, is_regression
        )
        for (x, y), summary in zip(data, summaries, strict=True):
            if count := len(state.places.rows):
                share = 6 / (math.pi * count) ** 2
                moments = center_environment_moments(summary)
                state = drop_unstable_feature_products(state, moments, share)
                state = score_models_on_new_environment(
                    state, x, y, normals, self.trust, is_regression
                )
            state = learn.update_state_with_environment(
                state, x, y, summary, is_regression
            )
            report()
        predictor = learn.draw_coefficients_of_trusted_model(state, self.trust, normals)
        return state._replace(
            base=learn.draw_coefficients_of_stable_model(state, normals),
            predictor=predictor,
            adaptation=create_empty_columns_adaptation(
                predictor, d, n_outputs, max(1, self.classes)
            ),
        )

    def _find_features_of_columns(
        self, column_indices: tuple[int, ...], n_features: int
    ) -> Tensor:
        """Return which features [d] belong to columns, given by index."""
        widths = torch.tensor(self.widths or (1,) * n_features)
        return torch.isin(
            torch.arange(len(widths)), torch.tensor(column_indices, dtype=torch.int64)
        ).repeat_interleave(widths)

    def outputs(self, state: SteadyTableState, inputs: Tensor) -> Tensor:
        """Return logits or values [replica, sample, n, k]."""
        pieces = []
        for replica in range(len(inputs)):
            own = select_state_of_replica(state, replica)
            rows = inputs[replica].flatten(1)
            if not len(own.unit):
                k = own.base.levels.shape[-1]
                pieces.append(rows.new_zeros(SAMPLES, len(rows), k))
                continue
            adapted = int(own.adaptation.rows) > 0
            predictor = own.adaptation.predictor if adapted else own.predictor
            pieces.append(
                compute_outputs_of_predictor(predictor, own.basis.expand(rows))
            )
        return torch.stack(pieces).to(inputs.dtype)

    def adapt(self, state: SteadyTableState, inputs: Tensor) -> SteadyTableState:
        """Return the state for the environment of unlabelled inputs."""
        return stack_states_of_replicas(
            [
                self._adapt_state_of_replica(
                    select_state_of_replica(state, i), rows.flatten(1).double()
                )
                for i, rows in enumerate(inputs)
            ]
        )

    def _adapt_state_of_replica(
        self, state: SteadyTableState, inputs: Tensor
    ) -> SteadyTableState:
        basis = state.basis.expand(inputs)
        before = state
        state = self._set_changed_features_aside(state, inputs, basis)
        found = state.unstable & ~before.unstable
        reasons = list_reasons_not_to_adapt(state, inputs, found)
        chosen = (state.unstable & state.needed & (reasons == 0)).nonzero()[:, 0]
        has_frequencies = len(
            inputs
        ) >= FEWEST_ROWS and has_adapting_to_frequencies_helped(state)
        adapted = add_evidence_of_unstable_features(
            state,
            basis,
            learn.summarise_effects_over_environments(state),
            chosen.tolist(),
            self.trust,
            has_frequencies,
        )
        reasons = torch.where(adapted.unclear, UNCLEAR, reasons)
        is_changed = has_frequencies or bool((found | (reasons == 0))[chosen].any())
        return before._replace(
            adaptation=ColumnsAdaptation(
                adapted.predictor if is_changed else state.predictor,
                torch.tensor(len(inputs)),
                basis[:, : len(state.unit)].mean(0),
                adapted.effects,
                reasons,
                adapted.frequencies,
                compute_relative_size_of_residuals(before, state, adapted.variance),
                found,
            )
        )

    def _set_changed_features_aside(
        self, state: SteadyTableState, inputs: Tensor, basis: Tensor
    ) -> SteadyTableState:
        """Set aside features that mean something else in unlabelled inputs [n, d].

        Their basis functions are [n, p].
        """
        d = len(state.unit)
        protected = self._find_features_of_columns(self.stable, d)
        changed = set_changed_features_aside(
            state, inputs, basis, self.level, protected, is_regression=not self.classes
        )
        if bool((changed.unstable == state.unstable).all()):
            return state
        normals = _draw_normals(Randomness((0,), ("steady",)), state)
        return changed._replace(
            base=learn.draw_coefficients_of_stable_model(changed, normals)
        )

    def explain(
        self,
        state: SteadyTableState,
        columns: Mapping[str, int],
        environments: int,
        names: TableNames,
    ) -> dict[str, Any]:
        """Explain which columns are unstable and what an adaptation changed."""
        own = select_state_of_replica(state, 0)
        return explain_state_of_columns(
            own, columns, self.trust, self.level, self.classes, names
        )


def _draw_normals(randomness: Randomness, state: SteadyTableState) -> Tensor:
    """Draw the normal numbers [s / 2, k, p] that samples of a model are made of."""
    shape = SAMPLES // 2, *state.stable.mean.shape
    return randomness.start_draws().normal(*shape)[0].double()
