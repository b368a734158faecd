"""The engine for vectors of many continuous numbers: by column and by direction.

Such vectors may be tables with many measurements, in which a shortcut is one column, or
embeddings, in which it is spread over all entries. Both engines learn from every stage,
each with half of the level. The directions predict if they have found something, unless
the columns have found the same: columns that make up much of a direction. What is left
without the directions must also be better than chance; otherwise they are what tells
the target, and no shortcut. In all other cases the columns predict. If the first rows
are not continuous, the columns are searched alone, as if there were no other engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import TableNames
from cirm.learners.steady.columns_changes import MOST_TOGETHER
from cirm.learners.steady.columns_state import SteadyTableState
from cirm.learners.steady.columns_words import get_column_names_of_features
from cirm.learners.steady.directions_stable import are_outputs_better_than_chance
from cirm.learners.steady.directions_state import SteadyNetworkState
from cirm.learners.steady.directions_tables import convert_counts_to_probabilities
from cirm.likelihoods import CrossEntropy
from cirm.memory import (
    list_state_tensors,
    select_state_of_replica,
    stack_states_of_replicas,
)
from cirm.randomness import Randomness
from cirm.training import Watch

if TYPE_CHECKING:
    from cirm.learners.steady.learner import Steady

Part = TypeVar("Part")

ROWS = 1_000  # of the first environment that show whether its numbers are continuous
DISTINCT = 0.5  # of the values in each column; rounding makes some of them equal
SHARE = 0.25  # of a direction, below which it is not the change of the columns found:
# columns that were planted alone made up 0.48 to 0.92, those of a spread shortcut 0.07
SHARE_OF_MANY = 0.5  # the same if more columns are found than change together otherwise
NAMED = 5  # columns that a sentence about a direction names


class SteadyBothState(NamedTuple):
    """The states of both engines; every tensor has a leading replica axis.

    Attributes:
        columns: State of the engine for columns.
        directions: State of the engine for directions; without entries if the inputs
            are not continuous.
        leads: Whether the directions predict, [replica].
    """

    columns: SteadyTableState
    directions: SteadyNetworkState
    leads: Tensor

    @property
    def has_directions(self) -> bool:
        """Whether directions are searched."""
        return bool(self.directions.members.numel())


@dataclass(frozen=True)
class SteadyBothEngine:
    """Learns by column and by direction, and predicts by what was found.

    Args:
        learner: The learner, whose level the engines share.
    """

    learner: Steady

    @property
    def columns(self) -> Steady:
        """The learner by column, with its part of the level."""
        return replace(self.learner, view="columns", level=self.learner.level / 2)

    @property
    def directions(self) -> Steady:
        """The learner by direction, with its part of the level."""
        return replace(self.learner, view="directions", level=self.learner.level / 2)

    def init(self, randomness: Randomness) -> SteadyBothState:
        """Return the state before any data."""
        return SteadyBothState(
            self.columns.init(randomness),
            self.directions.init(randomness),
            torch.zeros(len(randomness.seeds), dtype=torch.bool),
        )

    def observe(
        self,
        state: SteadyBothState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> SteadyBothState:
        """Return the state after a stage of labelled environments."""
        is_first = not state.columns.unit.numel()
        if is_first and not are_inputs_continuous(
            stage[0].take_all(len(randomness.seeds)).x
        ):
            state = state._replace(directions=_remove_entries(state.directions))
        if not state.has_directions:
            learner = self._get_learner_by_column(state)
            columns = learner.observe(state.columns, stage, randomness, watch)
            return state._replace(columns=columns)
        columns = self.columns.observe(
            state.columns, stage, randomness, _watch_half(watch, 0)
        )
        held = self._is_stable_model_better_than_chance(state.directions, stage)
        directions = self.directions.observe(
            state.directions, stage, randomness, _watch_half(watch, 1)
        )
        leads = []
        for r, has_held in enumerate(held):
            own = select_state_of_replica(directions, r)
            leads.append(
                has_held
                and _is_direction_of_other_columns(
                    select_state_of_replica(columns, r), own
                )
                and _is_stable_model_better_on_held_out_rows(own)
            )
        return SteadyBothState(columns, directions, torch.tensor(leads))

    def outputs(self, state: SteadyBothState, inputs: Tensor) -> Tensor:
        """Return logits or values [replica, sample, n, k]."""
        if not state.leads.any():
            return self._get_learner_by_column(state).outputs(state.columns, inputs)
        if state.leads.all():
            return self.directions.outputs(state.directions, inputs)
        pieces = []
        for r in range(len(inputs)):
            learner, own = self._get_leader(_keep_replica(state, r))
            pieces.append(learner.outputs(own, inputs[r : r + 1])[0])
        if isinstance(self.learner.likelihood, CrossEntropy):
            pieces = [self.learner.likelihood.compute_class_logits(p) for p in pieces]
        samples = math.lcm(*map(len, pieces))
        return torch.stack([p.repeat(samples // len(p), 1, 1) for p in pieces])

    def adapt(self, state: SteadyBothState, inputs: Tensor) -> SteadyBothState:
        """Return the state for the environment of unlabelled inputs."""
        columns, directions = state.columns, state.directions
        if not state.leads.all():
            columns = self._get_learner_by_column(state).adapt(columns, inputs)
        if state.leads.any():
            directions = self.directions.adapt(directions, inputs)
        return state._replace(columns=columns, directions=directions)

    def forget_adaptation(self, state: SteadyBothState) -> SteadyBothState:
        """Return the state as if it had not been adapted."""
        state = state._replace(columns=self.columns.forget_adaptation(state.columns))
        if not state.has_directions:
            return state
        return state._replace(
            directions=self.directions.forget_adaptation(state.directions)
        )

    def get_residual_ratio_after_adapting(self, state: SteadyBothState) -> float:
        """Return by what factor an adaptation has made residuals smaller."""
        learner, own = self._get_leader(state)
        return learner.get_residual_ratio_after_adapting(own)

    def list_unstable_features(self, state: SteadyBothState) -> list[list[str]]:
        """Name the unstable columns or directions of each replica by their numbers."""
        leaders = (
            self._get_leader(_keep_replica(state, r)) for r in range(len(state.leads))
        )
        return [learner.list_unstable_features(own)[0] for learner, own in leaders]

    def explain(
        self,
        state: SteadyBothState,
        columns: Mapping[str, int],
        environments: int,
        table: TableNames,
    ) -> dict[str, Any]:
        """Explain what is unstable, by the engine that predicts."""
        learner, own = self._get_leader(state)
        explanation = learner.explain(own, columns, environments, table)
        if not state.has_directions:
            return explanation
        found = self.directions.list_unstable_features(state.directions)[0]
        sentences: list[str] = []
        if state.leads[0]:
            names = get_column_names_of_features(columns, state.columns.unit.shape[-1])
            sentences = _describe_columns_of_directions(state, names, found)
        elif found and _is_direction_of_other_columns(
            select_state_of_replica(state.columns, 0),
            select_state_of_replica(state.directions, 0),
        ):
            sentences = [
                "The search by direction found a change, too. Without it, predictions "
                "are no better than chance. So it is taken for what tells the target, "
                "and not for a shortcut, and the model keeps it."
            ]
        elif found:
            sentences = [
                "The search by direction found a change, too. It is taken for that of "
                "the columns named. If the model fails at a new place, compare it with "
                "one of `cirm fit --set view=directions`."
            ]
        elif environments > 1 and not explanation["unstable"]:
            other = self.directions.explain(state.directions, columns, environments)
            sentences = other["evidence"]
            if not state.directions.unexplained[0]:
                sentences = [
                    "Nor was a direction, a weighted sum of many columns, found to "
                    "change its meaning.",
                    *sentences,
                ]
        return explanation | {"evidence": [*explanation["evidence"], *sentences]}

    def check_state(self, state: SteadyBothState, shape: tuple[int, ...]) -> None:
        """Raise an error if a state from a file is none of this learner."""
        self.columns.check_state(state.columns, shape)
        if state.leads.dtype != torch.bool or tuple(state.leads.shape) != (1,):
            raise ValueError("the stored tensor leads is not one truth value")
        if state.has_directions:
            self.directions.check_state(state.directions, shape)
            counts = self.directions.list_unstable_features(state.directions)[0]
        else:
            counts = []
            if any(t.shape != (1, 0) for t in list_state_tensors(state.directions)):
                raise ValueError("a stored tensor of the unused directions has entries")
        if state.leads[0] and not counts:
            raise ValueError(
                "the stored tensor leads is true, but no direction was found"
            )

    def score_on_past_environments(
        self, before: SteadyBothState, after: SteadyBothState
    ) -> dict[str, float]:
        """Score a later state on the moments of the rows seen before, of columns."""
        if before.leads[0] or after.leads[0]:
            return {}  # a network cannot be scored on moments
        return self.columns.score_on_past_environments(before.columns, after.columns)

    def _is_stable_model_better_than_chance(
        self, state: SteadyNetworkState, stage: Stage
    ) -> list[bool]:
        """Return whether each replica's stable model predicts a stage that arrives.

        It is true of replicas without a direction so far, whose model is not stable.
        """
        replicas = len(state.found)
        if not state.found.any():
            return [True] * replicas
        pieces = [environment.take_all(replicas) for environment in stage]
        inputs = torch.cat([piece.x for piece in pieces], 1).float()
        targets = torch.cat([piece.y for piece in pieces], 1)
        learner = replace(self.directions, trust="invariant")
        with torch.no_grad():
            outputs = learner.outputs(learner.forget_adaptation(state), inputs).mean(1)
        return [
            not bool(found) or are_outputs_better_than_chance(*pair)
            for found, *pair in zip(state.found, outputs, targets, strict=True)
        ]

    def _get_learner_by_column(self, state: SteadyBothState) -> Steady:
        """Return the learner by column, with the whole level if it is alone."""
        whole = replace(self.learner, view="columns")
        return self.columns if state.has_directions else whole

    def _get_leader(self, state: SteadyBothState) -> tuple[Steady, Any]:
        """Return the learner that predicts for the first replica, and its state."""
        if state.leads[0]:
            return self.directions, state.directions
        return self._get_learner_by_column(state), state.columns


def are_inputs_continuous(inputs: Tensor) -> bool:
    """Return whether inputs [replica, n, d] are continuous numbers in every column.

    Most of the values of each column differ then. Constant columns do not count.
    """
    n = inputs.shape[1]
    rows = inputs[:, :: max(1, -(-n // ROWS))].flatten(2).sort(1).values
    steps = (rows.diff(dim=1) > 0).sum(1)
    varying = steps[steps > 0]
    return len(varying) > 0 and bool((varying >= DISTINCT * rows.shape[1] - 1).all())


def _is_direction_of_other_columns(
    columns: SteadyTableState, directions: SteadyNetworkState
) -> bool:
    """Return whether directions of one replica were found that columns do not explain.

    A direction that a network reads has no clear weights, so that the columns explain
    it if they have found something.
    """
    if not directions.found:
        return False
    if not columns.unstable.any():
        return True
    weights = _measure_weights_of_columns(columns, directions)
    n_units = len(columns.unit[columns.unstable & columns.needed].unique())
    least = SHARE if n_units <= MOST_TOGETHER else SHARE_OF_MANY
    return bool((weights[:, columns.unstable].sum(1) < least).all()) and not bool(
        directions.taught.any()
    )


def _is_stable_model_better_on_held_out_rows(directions: SteadyNetworkState) -> bool:
    """Return whether the stable model of one replica tells anything of held-out rows.

    Chance are the class frequencies that the model knows, on the rows of each
    environment.
    """
    if directions.numbers.effects.numel():
        return float(directions.numbers.stable[4]) > 0
    rows, likelihood = directions.gains[:, :2].double().unbind(-1)
    counts = directions.tables[:, 0].double().sum(-1)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    frequencies = convert_counts_to_probabilities(directions.moments.counts)
    chance = shares @ frequencies.log()
    return float((rows * (likelihood - chance)).sum()) > 0


def _measure_weights_of_columns(
    columns: SteadyTableState, directions: SteadyNetworkState
) -> Tensor:
    """Return the weights [found, d] of columns in directions, which sum to one.

    They are squares of how far a direction moves each column, in standard deviations.
    The first trace of a direction is the way in which it moves the means of classes.
    """
    numbers = directions.numbers  # of a regression
    is_regression = bool(numbers.effects.numel())
    patterns = numbers.readers.pattern if is_regression else directions.traces[:, 0]
    scale = columns.basis.scale  # one over the standard deviation
    moved = patterns[: int(directions.found), : len(scale)].to(scale) * scale
    return moved.square() / moved.square().sum(1, keepdim=True).clamp(min=1e-12)


def _describe_columns_of_directions(
    state: SteadyBothState, names: list[str], found: list[str]
) -> list[str]:
    """Name the columns that make up most of each direction, in the first replica."""
    sentences = []
    all_weights = _measure_weights_of_columns(
        select_state_of_replica(state.columns, 0),
        select_state_of_replica(state.directions, 0),
    )
    for direction, weights in zip(found, all_weights, strict=True):
        best = weights.argsort(descending=True)[:NAMED]
        if not weights.any():
            continue
        words = ", ".join(f"`{names[int(j)]}`" for j in best)
        sentences.append(
            f"{direction.capitalize()} is a weighted sum of the columns. It is seen "
            f"most in {words}, which make up {float(weights[best].sum()):.0%} of it."
        )
    return sentences


def _keep_replica(state: Part, replica: int) -> Part:
    """Return the state of one replica, with its axis."""
    return stack_states_of_replicas([select_state_of_replica(state, replica)])


def _remove_entries(part: Any) -> Any:  # noqa: ANN401  nested tuples of tensors
    """Return nested tuples whose tensors [replica, ...] are [replica, 0]."""
    if isinstance(part, Tensor):
        return part.new_zeros(len(part), 0)
    return type(part)(*map(_remove_entries, part))


def _watch_half(watch: Watch, half: int) -> Callable[[int, int, Any], None]:
    """Return what tells how much is done after a part of one of two halves."""
    return lambda done, parts, terms: watch(half * parts + done, 2 * parts, terms)
