"""What a trained model is: how it reads data, how it learns, and what it has learned.

Nothing in it changes: learning gives a new model. All of it but the tensors is plain
values that JSON can hold, so that a model's file explains itself.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from cirm.data.schema import Schema
from cirm.environments import Task
from cirm.learners import NETWORK, create, get_learner_class
from cirm.learners.base import Learner
from cirm.likelihoods import make_likelihood
from cirm.memory import move_to_device
from cirm.networks import MLP, ModuleNetwork, Network
from cirm.randomness import Randomness
from cirm.training import Descent

Settings = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How a model learns, in plain values; none of it changes after the first fit.

    `learner` is the key and `settings` are all of its settings, defaults too: a later
    version's defaults do not change an old model. With `paced` the number of epochs
    follows the number of rows. `network` describes it; a module of the user's own is
    described by its parameters.
    """

    learner: str
    settings: Settings
    network: Settings
    seed: int = 0
    paced: bool = True
    held_out: float = 0.1


@dataclass(frozen=True)
class Visit:
    """One environment as it was when the model learned from it.

    `held_out` of its `rows` were not trained on; `before` and `after` are what was
    measured before and after learning, the latter on the rows held out if there are
    any; `reliance` is how much each column moves the predictions. `diagnostics` are
    further numbers by name. `mark` tells whether the same rows come again.
    """

    name: str
    stage: int
    rows: int
    held_out: int
    when: str
    epochs: int
    seconds: float
    mark: str
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    reliance: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Model:
    """A learner with its state, how it reads data, and where it has been.

    `state` is what the learner remembers, a named tuple of tensors of one replica.
    """

    plan: Plan
    schema: Schema
    learner: Learner[Any]
    state: Any
    visits: tuple[Visit, ...]
    created: str

    @property
    def stages(self) -> int:
        """How often it has learned."""
        return max((visit.stage for visit in self.visits), default=-1) + 1

    @property
    def task(self) -> Task:
        """What it predicts."""
        return self.schema.task

    def explain(self) -> dict[str, Any]:
        """Return what the learner says about its own decisions; {} if nothing."""
        encoding = self.schema.treatment.encoding
        columns = encoding.columns if encoding is not None else ()
        widths = {column.name: len(column.features) for column in columns}
        return self.learner.explain(self.state, widths, len(self.visits))

    def on(self, device: str) -> Model:
        """The same model, computing on another device."""
        learner = replace(
            self.learner, descent=replace(self.learner.descent, device=device)
        )
        return replace(self, learner=learner, state=move_to_device(self.state, device))


def planned(
    key: str,
    task: Task,
    shape: tuple[int, ...],
    settings: Mapping[str, Any],
    preset: str,
    network: nn.Module | None,
) -> tuple[Learner[Any], Settings, Settings]:
    """A new learner, all its settings, and a description of its network."""
    learner = create(key, _like(task, shape), settings, preset)
    if network is not None:
        if given := [name for name in NETWORK if name in settings]:
            raise ValueError(
                "settings: a network of your own has its own shape; "
                f"got {', '.join(given)}"
            )
        # A copy, since learning draws new parameters: the user's own stays as it is.
        learner = replace(learner, network=ModuleNetwork(copy.deepcopy(network)))
        _check_outputs(learner.network, task)
        _check_inputs(learner.network, shape)
    own = {f.name: getattr(learner, f.name) for f in dataclasses.fields(learner)}
    kept = {k: v for k, v in own.items() if k not in ("network", "likelihood")}
    descent = dataclasses.asdict(kept.pop("descent"))
    descent.pop("device")
    return learner, {**kept, **descent}, described_network(learner.network)


def rebuilt(
    key: str,
    settings: Mapping[str, Any],
    network: Mapping[str, Any],
    task: Task,
    module: nn.Module | None,
) -> Learner[Any]:
    """The learner of these settings, as `planned` gave them, also after JSON."""
    plain: Settings = {
        k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
    }
    names = {f.name for f in dataclasses.fields(Descent)} - {"device"}
    made: Network
    if network["kind"] == "mlp":
        sizes = tuple(int(size) for size in network["sizes"])
        made = MLP(sizes, network["activation"], network["dropout"])
    else:
        made = _own_network(network, module)
    return get_learner_class(key)(
        network=made,
        likelihood=make_likelihood(task),
        descent=Descent(**{n: v for n, v in plain.items() if n in names}),
        **{n: v for n, v in plain.items() if n not in names},
    )


def described_network(network: Network) -> Settings:
    """A network in plain values."""
    if isinstance(network, MLP):
        return {
            "kind": "mlp",
            "sizes": list(network.sizes),
            "activation": network.activation,
            "dropout": network.dropout,
        }
    assert isinstance(network, ModuleNetwork)
    module = network.module
    shapes = {name: list(p.shape) for name, p in module.named_parameters()}
    return {"kind": "module", "name": type(module).__name__, "parameters": shapes}


def _own_network(network: Mapping[str, Any], module: nn.Module | None) -> Network:
    if module is None:
        raise ValueError(
            f"model: it was trained with a network of your own, {network['name']!r}, "
            "which must be given to load it; got none"
        )
    own = ModuleNetwork(copy.deepcopy(module))
    if (got := described_network(own)["parameters"]) != network["parameters"]:
        raise ValueError(
            "model: the given network must have the parameters that were trained, "
            f"{network['parameters']}; got {got}"
        )
    return own


def _check_outputs(network: Network, task: Task) -> None:
    wanted = {1} if len(task.classes) < 3 else set()
    wanted |= {len(task.classes)} - {0}
    if network.outputs not in wanted:
        raise ValueError(
            f"network: outputs of its last layer must be "
            f"{' or '.join(map(str, wanted))} for this {task.kind}; "
            f"got {network.outputs}"
        )


def _check_inputs(network: Network, shape: tuple[int, ...]) -> None:
    """Refuse a network whose layers do not fit inputs of a shape, or one another."""
    try:
        with torch.no_grad():
            network(network.init(Randomness((0,))), torch.zeros(1, 2, *shape))
    except RuntimeError as error:
        said = (str(error).splitlines() or ["an error"])[0]
        raise ValueError(
            f"network: it must take inputs of shape {list(shape)}; got {said!r}"
        ) from None


@dataclass(frozen=True)
class _Like:
    """What `create` asks of an environment: features and a task."""

    features: tuple[int, ...]
    task: Task


def _like(task: Task, shape: tuple[int, ...]) -> Any:  # noqa: ANN401  an environment
    return _Like(shape, task)
