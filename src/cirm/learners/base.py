"""The base class of all learners."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from cirm.early_stopping import EarlyStoppingDescent
from cirm.environments import Examples, Stage, count_examples
from cirm.likelihoods import CrossEntropy, Likelihood
from cirm.memory import find_stored_examples
from cirm.networks import Network
from cirm.randomness import Randomness
from cirm.training import Descent, Terms, Watch, ignore_training_steps

ORIGINAL = {
    "anneal": 190 / 501,
    "l2": 0.00110794568,
    "rate": 0.0004898536566546834,
    "hidden": (390, 390),
    "activation": "relu",
    "outputs": 1,
    "epochs": 501,
    "batch": 0,
}
"""Settings of the IRM authors on coloured digits, which the EIIL authors reused."""

PAPER_DROPOUT = {"dropout": 0.75}
"""Dropout of reference methods: the paper has it in each layer, and 0.75 with IRMG."""

PRIOR_PRECISION = 10.0
"""Of each weight, if training stops early: the weight decay times the examples. With
it, `erm` is within a point of logistic regression on 1,000 rows, and above it on 10,000
(`cirm bench --part tables`)."""

MOST_STEPS = 20_000
"""Most optimiser steps of a stage if the user sets no number of epochs."""

State = TypeVar("State", bound=tuple[Any, ...])


class TableNames(NamedTuple):
    """What the features, classes and environments of a table are called.

    Args:
        features: Such as "age", "ward=north" for a category, or "age: missing".
        classes: In their order; none for regression.
        environments: Those that were learned from, oldest first.
    """

    features: Sequence[str] = ()
    classes: Sequence[str] = ()
    environments: Sequence[str] = ()


NO_NAMES = TableNames()


class PointState(NamedTuple):
    """The state of a learner that keeps nothing but one network per replica.

    Args:
        params: The parameters of the network, [replica, p].

    Example:
        >>> import torch
        >>> PointState(torch.zeros(1, 5)).params.shape
        torch.Size([1, 5])
    """

    params: Tensor


@dataclass(frozen=True)
class Learner(Generic[State]):
    """A learning method: settings, and functions of a state that never change it.

    A subclass is a frozen dataclass `Learner[State]` whose fields are its settings. Its
    state is a named tuple of tensors (or of such tuples) with a leading replica axis;
    everything that training changes is in there. A learner whose state is `PointState`
    needs only a method `compute_loss(params, past, batch)`, which returns named terms
    [replica] that are added up; others define `init` and `observe`, and `outputs` if
    needed. `cirm.learners.train_on_tiny_data` checks quickly that a new learner works.

    Args:
        network: Maps parameters and inputs to outputs. An instance that is passed to
            `cirm.fit` or `cirm.create` may leave it out: they create one for the data.
        likelihood: How outputs are scored against targets; set by the task of the data.
        descent: How long and how fast to train.

    Attributes:
        presets: Settings by name of a preset: the learner's own, those of `Descent` and
            those of the network.
        defaults: Defaults of network settings that differ from the usual ones.
        revision: Number of code changes after which results differ; records of an
            earlier revision are not used any more.
        table_revision: The same for results on tables, if these are counted on their
            own; `revision` is then that of images.
        added_later: Paths of tensors of the state that model files of earlier revisions
            lack. They are then as before any data.
        removed_later: Paths of tensors that only model files of earlier revisions have.
            They are not read.
        epoch_settings: Names of the settings that count epochs.
        min_steps: Fewest optimiser steps of a stage if the user sets no number of
            epochs; 0 for a learner that relies on early stopping.
        stops_early: Whether training on vectors stops when the loss on held-out
            examples no longer falls, if the user sets no number of epochs.
        adapts: Whether the learner can adapt to unlabelled inputs (see `adapt`).
        tasks: The kinds of task that it can learn.
        weighs_examples: Whether it honours the weights of examples, as a learner does
            that keeps no examples and averages by `batch.share`.
        search_space: Values that `cirm select` tries, as its option --space takes them;
            empty for the usual ranges.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> from cirm.objectives import compute_environment_risks
        >>> @dataclass(frozen=True)
        ... class WorstCase(Learner[PointState]):
        ...     def compute_loss(self, params, past, batch):
        ...         risks = compute_environment_risks(
        ...             self.network, self.likelihood, params, batch
        ...         )
        ...         return {"worst": risks.max(-1).values}
        >>> train_on_tiny_data(WorstCase()).shape
        torch.Size([1, 20, 2])
    """

    # None until `create` binds it to data; all methods need a network.
    network: Network = None  # type: ignore[assignment]
    likelihood: Likelihood = field(default_factory=CrossEntropy)
    descent: Descent = Descent()

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    revision: ClassVar[int] = 0
    table_revision: ClassVar[int] = 0
    added_later: ClassVar[tuple[str, ...]] = ()
    removed_later: ClassVar[tuple[str, ...]] = ()
    epoch_settings: ClassVar[tuple[str, ...]] = ("epochs",)
    min_steps: ClassVar[int] = 1_000
    stops_early: ClassVar[bool] = False
    adapts: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    weighs_examples: ClassVar[bool] = False
    search_space: ClassVar[str] = ""
    compute_loss: ClassVar[Callable[..., Terms]]

    def init(self, randomness: Randomness) -> State:
        """Return the state before any data.

        Args:
            randomness: Source of random numbers, with one seed per replica.

        Returns:
            The state; by default random parameters.
        """
        params = self.network.init(randomness.at("params"))
        return PointState(params)  # type: ignore[return-value]

    def observe(
        self,
        state: State,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> State:
        """Train on one stage.

        Args:
            state: The state before the stage.
            stage: The environments that are learned together.
            randomness: Source of random numbers, with one seed per replica.
            watch: Called after each epoch with the number of steps so far, that of all
                steps, and numbers [replica] by name.

        Returns:
            The state after the stage; `state` itself is not changed. By default the
            parameters that minimise `compute_loss(params, state, batch)`.
        """
        start: Tensor = state.params  # type: ignore[attr-defined]
        args = start, state, stage, randomness, watch
        return PointState(self.descent.minimise(self.compute_loss, *args))  # type: ignore[return-value]

    def outputs(self, state: State, inputs: Tensor) -> Tensor:
        """Compute the outputs of networks drawn from the posterior.

        Args:
            state: A trained state.
            inputs: The inputs of each replica, [replica, n, ...].

        Returns:
            Outputs [replica, sample, n, k]. By default there is one sample, the network
            with the parameters `state.params`, [replica, p].
        """
        params: Tensor = state.params  # type: ignore[attr-defined]
        return self.network(params, inputs).unsqueeze(1)

    def predict(self, state: State, inputs: Tensor) -> Tensor:
        """Predict the targets of inputs.

        Args:
            state: A trained state.
            inputs: The inputs of each replica, [replica, n, ...].

        Returns:
            Class probabilities [replica, n, k], or values [replica, n, 1].
        """
        return self.likelihood.convert_outputs_to_predictions(
            self.outputs(state, inputs)
        )

    def adapt(self, state: State, inputs: Tensor) -> State:
        """Adapt to a new environment, of which only inputs are known.

        Neither the order of the inputs nor their number changes what one input is
        predicted afterwards, except through what they show of the environment.

        Args:
            state: A trained state. One that was adapted before is adapted anew, from
                what it was before that.
            inputs: Inputs of the new environment for each replica, [replica, n, ...].

        Returns:
            The state to predict with in that environment. `observe` continues from
            it as if it had not been adapted.

        Raises:
            NotImplementedError: If the learner cannot adapt (`adapts` is false).
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot adapt to rows without labels. Use a "
            "learner that can adapt, such as steady."
        )

    def forget_adaptation(self, state: State) -> State:
        """Undo what `adapt` has changed; every learner that adapts defines this.

        Args:
            state: A trained state, which may be adapted.

        Returns:
            A state that predicts as the one before the adaptation.

        Raises:
            ValueError: If the learner adapts, but does not define this.
        """
        if self.adapts:
            raise ValueError(
                f"{type(self).__name__} supports adaptation but does not implement "
                "forget_adaptation(), so an adapted model cannot be trained further. "
                "Add this method to the class, or continue from the model as it was "
                "before it was adapted."
            )
        return state

    def check_state(self, state: State, shape: tuple[int, ...]) -> None:
        """Check a state that was read from a file, beyond that it can predict.

        By default the types and shapes of a built-in learner's tensors are compared
        with those before any data. A learner of your own may define its own check.

        Args:
            state: The state of one replica.
            shape: Shape of an input.

        Raises:
            ValueError: If the state cannot be one of this learner.
        """
        from cirm.learners.state_check import check_state_shapes

        if type(self).__module__.startswith(f"{__package__}."):
            check_state_shapes(self, state, shape)

    def explain(
        self,
        state: State,
        columns: Mapping[str, int] | None = None,
        environments: int = 1,
        names: TableNames = NO_NAMES,
    ) -> dict[str, Any]:
        """Explain what the learner decided, beyond what every learner reports.

        Args:
            state: The trained state of one replica.
            columns: For tables, the number of input features of each column, in the
                order in which the inputs hold them.
            environments: Number of environments that the state has learned from.
            names: What features and classes are called, if that is known.

        Returns:
            Plain values that JSON can hold, with at least a sentence `verdict` (without
            a full stop) and sentences `evidence`; empty if there is nothing to say. For
            an adapted state there is also `adaptation`: the number of `rows` used, a
            sentence `verdict`, `effects` (for each feature its name, its effects in the
            environments `seen`, and its effect `here` with `low` and `high`), and
            sentences `gains` and `refusals`.
        """
        return {}

    def list_unstable_features(self, state: State) -> list[list[str]] | None:
        """List what was found to change its meaning between environments.

        Args:
            state: A trained state.

        Returns:
            Names such as "column 3" for each replica; None, as by default, if the
            learner does not search for unstable features.
        """
        return None

    def get_residual_ratio_after_adapting(self, state: State) -> float:
        """Return by what factor an adaptation has made residuals smaller.

        Args:
            state: A trained state, which may be adapted.

        Returns:
            The typical size of residuals of a regression, relative to that before the
            adaptation; 1 if the state is not adapted.
        """
        return 1.0

    def score_on_past_environments(
        self, before: State, after: State
    ) -> dict[str, float]:
        """Score a later state on what an earlier one has stored of its environments.

        Args:
            before: A trained state, which may store examples or other traces of the
                rows that it has learned from.
            after: A state that has learned more since then.

        Returns:
            The number of past `rows`, how many of them are `stored` (0 if the scores
            are estimates), and the accuracy in percent or mean squared error on them
            `before` and `after`; empty if they cannot be scored. By
            default, the stored examples are scored.
        """
        examples = [e for e in find_stored_examples(before) if e.y.shape[1]]
        if not examples:
            return {}
        rows = float(sum(e.y.shape[1] for e in examples))
        scores = [
            self._compute_mean_score_of_examples(state, examples)
            for state in (before, after)
        ]
        return {"rows": rows, "stored": rows, "before": scores[0], "after": scores[1]}

    def _compute_mean_score_of_examples(
        self, state: State, examples: list[Examples]
    ) -> float:
        """Return the accuracy in percent or mean squared error on examples."""
        scores = []
        for x, y in examples:
            prediction = self.predict(state, x)
            if isinstance(self.likelihood, CrossEntropy):
                scores.append(100.0 * (prediction.argmax(-1) == y).double())
            else:
                scores.append((prediction[..., 0] - y).double().square())
        return float(torch.cat(scores, 1).mean())

    def adjust_settings_to_inputs(
        self, features: tuple[int, ...], chosen: bool
    ) -> Self:
        """Adjust settings that depend on the shape of the inputs.

        Args:
            features: Shape of the inputs of one example.
            chosen: Whether the user chose the network, or a setting of it.

        Returns:
            The learner for such inputs; by default the learner itself.
        """
        return self

    @property
    def trains_network(self) -> bool:
        """Whether it trains its network, so that settings of the training matter."""
        return True

    def adjust_epochs_to_data(self, stage: Stage) -> Self:
        """Adjust the number of epochs to the size of a stage.

        Small stages get enough epochs for `min_steps` steps and large ones at most as
        many as make 20,000. All settings that count epochs, `epoch_settings`, are
        shortened in proportion. On vectors, such as the rows of a table, learners that
        stop early do so when the loss on held-out examples no longer falls, and small
        stages get weight decay.

        Args:
            stage: The environments that are learned next.

        Returns:
            The learner for this stage.
        """
        steps = self.descent.count_steps(stage)
        least = -(-self.min_steps // steps)
        epochs = {"epochs": max(self.descent.epochs, least)}
        epochs |= {n: getattr(self, n) for n in self.epoch_settings if n != "epochs"}
        part = min(1.0, max(1, MOST_STEPS // steps) / max(epochs.values()))
        shorter: dict[str, Any] = {
            name: max(1, round(part * count)) for name, count in epochs.items()
        }
        descent = replace(self.descent, epochs=shorter.pop("epochs"))
        if self.stops_early and len(stage[0].features) == 1:
            descent = EarlyStoppingDescent.from_descent(descent)
            if not descent.decay:
                descent = replace(
                    descent, decay=PRIOR_PRECISION / count_examples(stage)
                )
        return replace(self, descent=descent, **shorter)

    def check_setting(self, name: str, valid: bool, allowed: str) -> None:
        """Raise an error about a setting that is out of range.

        Args:
            name: Name of the setting.
            valid: Whether its value can be used.
            allowed: Which values can be used, such as "0 or more".

        Raises:
            ValueError: If the value is not valid.
        """
        if not valid:
            raise ValueError(
                f"{type(self).__name__.lower()}: the setting {name} must be "
                f"{allowed}, but is {getattr(self, name)!r}. Change it with --set "
                f"{name}=VALUE (in Python {name}=)."
            )
