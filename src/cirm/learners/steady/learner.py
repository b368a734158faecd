"""Learn what holds everywhere, and what a changing feature means at each place.

This project's own method; docs/method.md derives it. Some features predict the target
in the same way in every environment: they are stable. Others mean something different
in each: they are unstable. Tests between environments find the unstable ones. A stable
model predicts without them. What each of them says about the target is estimated in
every environment, together with its spread over environments, and again in a new
environment from its unlabelled rows (`adapt`).

Tables are searched by column, images and long vectors by direction, and vectors of many
continuous numbers both ways; see `cirm.learners.steady.columns`,
`cirm.learners.steady.directions`, for numbers to predict
`cirm.learners.steady.directions_regression`, and `cirm.learners.steady.both`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import NO_NAMES, Learner, TableNames
from cirm.likelihoods import CrossEntropy
from cirm.networks import MLP
from cirm.randomness import Randomness
from cirm.training import Descent, Watch, ignore_training_steps

if TYPE_CHECKING:
    from cirm.learners.steady.both import SteadyBothEngine

Trust = Literal["invariant", "interval", "average"]
View = Literal["auto", "columns", "directions", "both"]

MOST_COLUMNS = 512  # longer vectors are embeddings, whose single entries mean little
FEWEST_NUMBERS = 50  # of shorter vectors the columns nearly always have a meaning
MOST_FEATURES = 2_000  # of these columns: the information matrix then has 32 MB


def _list_paths_in_state_of_both_views(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return where tensors of one view's state are in the state of both."""
    views = "state.columns.", "state.directions."
    return tuple(view + p.removeprefix("state.") for p in paths for view in views)


class SteadyEngine(Protocol):
    """The part of the learner that depends on the kind of inputs."""

    def init(self, randomness: Randomness) -> Any:  # noqa: ANN401
        """Return the state before any data."""

    def observe(
        self,
        state: Any,  # noqa: ANN401
        stage: Stage,
        randomness: Randomness,
        watch: Watch,
    ) -> Any:  # noqa: ANN401
        """Return the state after a stage of labelled environments."""

    def outputs(self, state: Any, inputs: Tensor) -> Tensor:  # noqa: ANN401
        """Return logits or values [replica, sample, n, k]."""

    def adapt(self, state: Any, inputs: Tensor) -> Any:  # noqa: ANN401
        """Return the state for the environment of unlabelled inputs."""

    def explain(
        self,
        state: Any,  # noqa: ANN401
        columns: Mapping[str, int],
        environments: int,
        names: TableNames,
    ) -> dict[str, Any]:
        """Explain which features are unstable and what an adaptation changed."""


@dataclass(frozen=True)
class Steady(Learner[Any]):
    """Predict by stable features, and by unstable ones as far as they can be trusted.

    Args:
        network: The network of the stable model for images, embeddings and long
            vectors; created for the data if left out.
        likelihood: How outputs are scored; set by the task of the data.
        descent: How long and how fast to train the networks.
        trust: What an unstable feature counts for in an environment of which nothing
            is known: nothing ("invariant"), its mean effect if the prediction interval
            for a new environment excludes zero ("interval"), or always its mean effect
            ("average").
        view: Whether to search for unstable "columns", "directions" of the inputs, or
            "both", if the first rows show that every column is continuous. "auto"
            searches columns, without a network, if the inputs are vectors of at most
            512 columns and no network or setting of one is given; with at least 50
            columns, none of which is a category or named by the user, it chooses
            "both", with a linear network for the directions.
        level: Probability of calling any feature unstable if all are stable.
        unstable: Columns that are unstable by the user's word, by index.
        stable: Columns that are stable by the user's word, by index.
        widths: Number of input features of each column; empty if each has one.
        members: Number of networks in the ensemble, for the view "directions".

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Steady()).shape
        torch.Size([1, 20, 2])
    """

    descent: Descent = Descent(epochs=120, batch=0, rate=5e-3, decay=1e-2)
    trust: Trust = "invariant"
    view: View = "auto"
    level: float = 0.05
    unstable: tuple[int, ...] = ()
    stable: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    members: int = 5

    defaults = {"hidden": (100,), "activation": "relu", "dropout": 0.5}
    min_steps = 0  # training stops early by held-out rows
    adapts = True
    revision = 14
    table_revision = 10
    added_later: ClassVar[tuple[str, ...]] = (
        "state.cluster",
        "state.column",
        "state.simple",
        "state.places.cluster_effects",
        "state.places.coefficients",
        "state.unexplained",
        "state.inputs.shift",
        "state.inputs.factor",
        "state.kernel.counts",
        "state.kernel.means",
        "state.kernel.factor",
        "state.width",
        "state.views.erased",
        "state.weights",
        "state.places.score_effects",
        "state.arrivals.slopes",
        "state.arrivals.slope_variances",
        "state.arrivals.frequency_misses",
        "state.adaptation.found",
        "state.calibration",
        "state.trend",
        "state.numbers.readers.scores",
        "state.numbers.readers.pattern",
        "state.numbers.readers.centre",
        "state.numbers.views.gains",
        "state.numbers.views.pattern",
        "state.numbers.effects",
        "state.numbers.halves.slopes",
        "state.numbers.halves.precision",
        "state.numbers.stable",
    )
    added_later += _list_paths_in_state_of_both_views(added_later)
    removed_later: ClassVar[tuple[str, ...]] = (
        "state.curves.cuts",
        "state.curves.values",
        "state.places.clusters",
        "state.places.scores",
    )
    removed_later += _list_paths_in_state_of_both_views(removed_later)

    def __post_init__(self) -> None:
        for name, kind in (("trust", Trust), ("view", View)):
            choices = get_args(kind)
            is_known = getattr(self, name) in choices
            self.check_setting(name, is_known, f"one of {', '.join(choices)}")
        self.check_setting("level", 0 <= self.level <= 1, "from 0 to 1")
        self.check_setting("members", self.members >= 1, "1 or more")

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        known = isinstance(self.likelihood, CrossEntropy)
        return self.likelihood.classes if known else 0  # type: ignore[attr-defined]

    @property
    def trains_network(self) -> bool:
        """Whether it trains a network, as it does when it searches directions."""
        return self.view != "columns"

    def init(self, randomness: Randomness) -> Any:  # noqa: ANN401
        """Return the state before any data."""
        return self._create_engine_for_inputs().init(randomness)

    def observe(
        self,
        state: Any,  # noqa: ANN401
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> Any:  # noqa: ANN401
        """Look for unstable features, and learn from the environments of a stage."""
        return self._create_engine_for_inputs().observe(state, stage, randomness, watch)

    def outputs(self, state: Any, inputs: Tensor) -> Tensor:  # noqa: ANN401
        """Return logits or values [replica, sample, n, k]."""
        return self._create_engine_for_inputs().outputs(state, inputs)

    def adapt(self, state: Any, inputs: Tensor) -> Any:  # noqa: ANN401
        """Learn what unstable features mean in the environment of unlabelled inputs."""
        return self._create_engine_for_inputs().adapt(state, inputs)

    def forget_adaptation(self, state: Any) -> Any:  # noqa: ANN401
        """Return the state as if it had not been adapted."""
        if self.view == "both":
            return self._create_engine_for_both_views().forget_adaptation(state)
        if self.view == "directions":
            from cirm.learners.steady.directions_state import (
                remove_adaptation_from_state,
            )

            return remove_adaptation_from_state(state)
        known = state.adaptation
        rows, residual = torch.zeros_like(known.rows), torch.ones_like(known.residual)
        return state._replace(adaptation=known._replace(rows=rows, residual=residual))

    def get_residual_ratio_after_adapting(self, state: Any) -> float:  # noqa: ANN401
        """Return by what factor an adaptation has made residuals smaller."""
        if self.view == "both":
            engine = self._create_engine_for_both_views()
            return engine.get_residual_ratio_after_adapting(state)
        if self.view != "directions":
            return float(state.adaptation.residual)
        known = state.adaptation
        is_used = not self.classes and known.error.numel() and known.notes[0, 0]
        return math.exp(float(known.error[0, 0])) if is_used else 1.0

    def explain(
        self,
        state: Any,  # noqa: ANN401
        columns: Mapping[str, int] | None = None,
        environments: int = 1,
        names: TableNames = NO_NAMES,
    ) -> dict[str, Any]:
        """Return the unstable features, their effects, and what was adapted."""
        return self._create_engine_for_inputs().explain(
            state, columns or {}, environments, names
        )

    def list_unstable_features(self, state: Any) -> list[list[str]]:  # noqa: ANN401
        """Name the unstable columns or directions of each replica by their numbers."""
        if self.view == "both":
            return self._create_engine_for_both_views().list_unstable_features(state)
        if self.view == "directions":
            counts = state.found.tolist()
            return [
                [f"direction {j + 1}" for j in range(int(count))] for count in counts
            ]
        return [
            [f"column {j + 1}" for j in row.nonzero()[:, 0].tolist()]
            for row in state.unstable & state.needed
        ]

    def check_state(self, state: Any, shape: tuple[int, ...]) -> None:  # noqa: ANN401
        """Raise an error if a state from a file is none of this learner."""
        from cirm.learners.steady import state_check
        from cirm.memory import select_state_of_replica

        if self.view == "both":
            self._create_engine_for_both_views().check_state(state, shape)
        elif self.view == "directions":
            first = self.init(Randomness((0,)))
            state_check.check_state_of_directions_engine(
                state, first, shape, self.classes, self.added_later
            )
        else:
            own, features = select_state_of_replica(state, 0), math.prod(shape)
            state_check.check_state_of_columns_engine(
                own, features, self.classes, self.added_later
            )

    def score_on_past_environments(self, before: Any, after: Any) -> dict[str, float]:  # noqa: ANN401
        """Score a later state on the moments of the rows seen before, of columns."""
        if self.view == "both":
            engine = self._create_engine_for_both_views()
            return engine.score_on_past_environments(before, after)
        if self.view == "directions":
            return {}  # a network cannot be scored on moments
        from cirm.learners.steady.columns_past import score_predictors_on_past_rows
        from cirm.memory import select_state_of_replica

        first, second = (select_state_of_replica(state, 0) for state in (before, after))
        return score_predictors_on_past_rows(
            first, second, is_regression=not self.classes
        )

    def adjust_settings_to_inputs(
        self, features: tuple[int, ...], chosen: bool
    ) -> Self:
        """Choose the view for inputs of a shape, if the user has not."""
        view = self.view
        if view == "auto":
            columns = len(self.widths) or features[0]
            is_table = len(features) == 1 and columns <= MOST_COLUMNS
            is_table &= features[0] <= MOST_FEATURES and not chosen
            view = "columns" if is_table else "directions"
            # What the user says of columns, and categories, mean columns.
            is_plain = columns == features[0] and not (self.unstable or self.stable)
            if is_table and is_plain and columns >= FEWEST_NUMBERS:
                view = "both"
        if view != "both" or chosen:
            return replace(self, view=view)
        # Linear models need fewest rows to learn from embeddings.
        network = MLP((math.prod(features), self.network.outputs))
        return replace(self, view=view, network=network)

    def _create_engine_for_both_views(self) -> SteadyBothEngine:
        from cirm.learners.steady.both import SteadyBothEngine

        return SteadyBothEngine(self)

    def _create_engine_for_inputs(self) -> SteadyEngine:
        if self.view == "both":
            return self._create_engine_for_both_views()
        if self.view == "directions":
            from cirm.learners.steady.directions import SteadyNetworkEngine

            return SteadyNetworkEngine(self)
        from cirm.learners.steady.columns import SteadyTableEngine

        return SteadyTableEngine(
            self.classes,
            self.trust,
            self.level,
            self.unstable,
            self.stable,
            self.widths,
        )
