"""A trained model: how it reads data, how it learns, and what it has learned.

A model is immutable: training returns a new one. Everything except the tensors consists
of plain values that JSON can hold, so a model file describes itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cirm.data.schema import KIND_NAMES, Schema
from cirm.learners import (
    NETWORK,
    REGISTRY,
    create,
    get_learner_class,
    get_learner_key,
    get_learner_key_and_settings,
    list_learner_settings,
)
from cirm.learners.base import Learner, TableNames
from cirm.likelihoods import choose_likelihood
from cirm.memory import check_torch_device, move_tensors_to_device
from cirm.model.facts import (
    ModelMetadata,
    ModelTrainingPlan,
    Settings,
    count_features_of_each_column,
    list_distinct_environment_names,
    list_names_of_features,
)
from cirm.model.outputs import ArrayPredictions
from cirm.networks import ModuleNetwork, Network, restore_network
from cirm.randomness import Randomness
from cirm.tasks import Task
from cirm.training import Descent

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

ADAPTIVE_LEARNER = "steady"  # the built-in learner that messages recommend
NetworkLike = str | nn.Module | Network
"""The name of a network, a torch module of the user, or a network."""

REMOVED_LEARNERS = {"cirm": "0.1"}
"""Learners that are no longer built in, and the last version that had them."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Model(ModelMetadata):
    """A trained model: the result of `fit`, `update`, `adapt` and `load`.

    Attributes:
        plan: How the model learns: learner, settings, network and seed.
        schema: How it reads data: columns, target and task.
        learner: The learner, ready to train and predict.
        state: What the learner has learned, a named tuple of tensors of one replica.
        history: The environments that it has learned from, oldest first.
        created: When it was first fitted, in ISO format (UTC).
        adaptation: The environment that it was adapted to since then, if any.
        earlier: Model files of the versions before the last updates, oldest first,
            as far as they are kept; `rollback` restores them.
        threshold: From which probability of the positive class on it is predicted. By
            default the more likely class is.
        held_out_scores: Of two classes, the probabilities of the held-out rows of the
            last stage, by which `predict` and `evaluate` can choose a threshold.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit
        >>> table = pd.DataFrame({"age": range(20), "ill": ["no", "yes"] * 10})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings)
        >>> model.task.classes, model.stages, model.history[0].rows
        (('no', 'yes'), 1, 20)
    """

    learner: Learner[Any]
    state: Any
    earlier: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        """Return the learner, the target and the places in a line."""
        kind = "classification" if self.task.classes else "regression"
        places = ", ".join(repr(entry.name) for entry in self.history)
        return (
            f"<Model: {self.plan.learner}, {kind} of {self.schema.target.name!r}, "
            f"places {places or 'none'}>"
        )

    def explain(self) -> dict[str, Any]:
        """Return what the learner reports about its decisions; {} if nothing."""
        widths = count_features_of_each_column(self.schema)
        from cirm.model.equations import explain_unsolvable_equations

        with explain_unsolvable_equations("explaining the model"):
            names = TableNames(
                list_names_of_features(self.schema),
                self.task.classes,
                list_distinct_environment_names(self.history),
            )
            return self.learner.explain(self.state, widths, len(self.history), names)

    def predict_from_inputs(self, inputs: NDArray[np.float32]) -> ArrayPredictions:
        """Return predictions for inputs [n, *shape].

        Args:
            inputs: Encoded rows.
        """
        from cirm.model.compute import predict_inputs_as_arrays

        return predict_inputs_as_arrays(self, inputs)

    def get_residual_ratio_after_adapting(self) -> float:
        """Return by what factor an adaptation has made residuals smaller."""
        return self.learner.get_residual_ratio_after_adapting(self.state)

    def to(self, device: str) -> Model:
        """Return the same model on another device.

        Args:
            device: A torch device, such as "cpu" or "cuda".

        Raises:
            ValueError: If PyTorch cannot use the device on this machine.
        """
        check_torch_device(device, "device")
        descent = replace(self.learner.descent, device=device)
        return replace(
            self,
            learner=replace(self.learner, descent=descent),
            state=move_tensors_to_device(self.state, device),
        )


def build_learner_column_settings(
    learner: LearnerLike, schema: Schema, unstable: Sequence[str], stable: Sequence[str]
) -> Settings:
    """Return the settings of a learner that depend on the columns of a table.

    A learner may have the settings `widths`, the number of features of each column,
    and `unstable` and `stable`, columns by their index among these.
    """
    names = [name for name, _, _ in list_learner_settings(learner)]
    widths = count_features_of_each_column(schema)
    settings: Settings = {}
    if "widths" in names:
        settings["widths"] = tuple(widths.values())
    for setting, wanted in (("unstable", unstable), ("stable", stable)):
        if wanted and setting not in names:
            raise ValueError(
                f"--{setting}: the learner {get_learner_key(learner)} treats all "
                "columns alike and cannot use this option. Remove it, or use "
                f"--learner {ADAPTIVE_LEARNER}."
            )
        for name in wanted:
            _check_column_is_an_input(name, f"--{setting}", schema, list(widths))
        if wanted:
            settings[setting] = tuple(map([*widths].index, dict.fromkeys(wanted)))
    if both := [name for name in unstable if name in stable]:
        raise ValueError(
            f"Column {both[0]!r} is given with both --unstable and --stable. Remove "
            "one of the two."
        )
    return settings


def _check_column_is_an_input(
    name: str, option: str, schema: Schema, inputs: Sequence[str]
) -> None:
    """Raise an error unless a column that the user names is one of the inputs."""
    if name in inputs:
        return
    encoding = schema.treatment.encoding
    if encoding is None:
        raise ValueError(
            f"{option}: only a table has columns, but the data are "
            f"{KIND_NAMES[schema.treatment.kind]}. Remove the option."
        )
    for column in encoding.columns:
        if column.name == name:
            raise ValueError(
                f"{option}: the model does not use the column {column.describe()}. "
                "Remove the option."
            )
    listed = ", ".join(map(repr, inputs))
    raise ValueError(
        f"{option}: there is no input column {name!r}. The inputs are {listed}; check "
        "the spelling."
    )


def build_learner_for_inputs(
    choice: LearnerLike,
    task: Task,
    shape: tuple[int, ...],
    settings: Mapping[str, Any],
    preset: str,
    network: NetworkLike | None,
) -> tuple[Learner[Any], ModelTrainingPlan]:
    """Return a new learner for a task and inputs of a shape, and the plan for it."""
    if isinstance(network, str):
        settings, network = {**settings, "network": network}, None
    example: Any = _InputShapeAndTask(shape, task)
    if network is not None:
        if given := [name for name in NETWORK if name in settings]:
            raise ValueError(
                f"The settings {', '.join(given)} describe a network, but you passed "
                "your own network with network=. Remove these settings."
            )
        if not isinstance(network, Network):
            network = ModuleNetwork(network)
    learner = create(choice, example, settings, preset, network)
    _check_number_of_network_outputs(learner.network, task)
    _check_network_accepts_inputs(learner.network, shape)
    is_instance = isinstance(choice, Learner)
    fixed = preset or is_instance or set(learner.epoch_settings) & set(settings)
    return learner, ModelTrainingPlan(
        learner=get_learner_key(choice),
        settings=get_learner_key_and_settings(learner)[1],
        network=learner.network.describe(),
        adaptive_epochs=not fixed,
    )


def restore_learner_from_plan(
    plan: ModelTrainingPlan,
    task: Task,
    module: nn.Module | Network | None,
    choice: LearnerLike | None = None,
) -> Learner[Any]:
    """Return the learner of a plan that was read from a file.

    What the file names is never imported unless it is registered: only the user
    decides, by `choice`, to use the class of another learner.
    """
    if choice is not None:
        cls = get_learner_class(choice)
    elif plan.learner in REGISTRY.list_keys():
        cls = get_learner_class(plan.learner, allow_import_paths=False)
    elif plan.learner in REMOVED_LEARNERS:
        raise ValueError(
            f"the model was trained with the learner {plan.learner!r}, which cirm no "
            f"longer has. Fit the model again with the learner {ADAPTIVE_LEARNER}, or "
            f"open it with version {REMOVED_LEARNERS[plan.learner]} of cirm."
        )
    else:
        raise ValueError(
            f"the learner {plan.learner!r}, which trained the model, is not "
            "installed. Install the package that provides this learner, or give its "
            "class with --learner package.module:Class (in Python learner=)."
        )
    plain: Settings = {
        k: tuple(v) if isinstance(v, list) else v for k, v in plan.settings.items()
    }
    names = {f.name for f in dataclasses.fields(Descent)} - {"device"}
    # A network of a class that is not registered is the user's to give, too.
    if isinstance(module, Network) and module.describe() == plan.network:
        network = module
    else:
        network = restore_network(plan.network, module)
    return cls(
        network=network,
        likelihood=choose_likelihood(task),
        descent=Descent(**{n: v for n, v in plain.items() if n in names}),
        **{n: v for n, v in plain.items() if n not in names},
    )


def _check_number_of_network_outputs(network: Network, task: Task) -> None:
    wanted = {1} if len(task.classes) < 3 else set()
    wanted |= {len(task.classes)} - {0}
    if network.outputs not in wanted:
        raise ValueError(
            f"The network has {network.outputs} outputs, but this {task.kind} needs "
            f"{' or '.join(map(str, wanted))}. Change the last layer of the network."
        )


def _check_network_accepts_inputs(network: Network, shape: tuple[int, ...]) -> None:
    """Raise an error if the layers do not fit inputs of this shape, or one another."""
    try:
        with torch.no_grad():
            network(network.init(Randomness((0,))), torch.zeros(1, 2, *shape))
    except RuntimeError as error:
        reason = (str(error).splitlines() or ["unknown reason"])[0]
        raise ValueError(
            f"The network cannot process inputs of shape {list(shape)}. Pass a "
            f"network that accepts them. (PyTorch: {reason})"
        ) from None


@dataclass(frozen=True)
class _InputShapeAndTask:
    """What `create` needs of an environment: the shape of its inputs and the task."""

    features: tuple[int, ...]
    task: Task
