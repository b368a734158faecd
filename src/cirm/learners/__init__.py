"""The learners, by the name the command line and the tables use."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cirm.registry import Registry

if TYPE_CHECKING:
    from cirm.environments import Environment
    from cirm.learners.base import Learner

LEARNERS = {
    "cirm": "CIRM",
    "erm": "ERM",
    "irmv1": "IRMv1",
    "irmg": "IRMG",
    "birm": "BIRM",
    "virmv1": "VIRMv1",
    "virmg": "VIRMG",
    "bvirm": "BVIRM",
    "ewc": "EWC",
    "gem": "GEM",
    "mer": "MER",
    "vcl": "VCL",
    "vclc": "VCLC",
    "icp": "ICP",
    "vrex": "VREx",
    "replay": "Replay",
}
"""Class by key, ours and then in the paper's order; the module is named so too."""

DEFAULT_LEARNER = "cirm"
"""The learner that is used where none is named."""

CONTINUAL = {"c-virmv1": "virmv1", "c-virmg": "virmg", "c-bvirm": "bvirm"}
"""Names of joint learners when they run on a sequence."""

REGISTRY = Registry("learner", "cirm.learners", __name__, LEARNERS, CONTINUAL)
"""The learners here and those that installed packages offer."""

NETWORK: dict[str, tuple[Any, Any]] = {
    "hidden": (tuple[int, ...], (100, 100)),
    "activation": (Literal["elu", "relu", "linear"], "elu"),
    "dropout": (float, 0.0),
    "outputs": (int, 0),
}
"""Type and default of the network's settings; outputs 0: as many as the task has."""


def get_learner_class(key: str) -> type[Learner[Any]]:
    """The class of a learner."""
    cls: type[Learner[Any]] = REGISTRY.load(key)
    return cls


def describe(key: str) -> str:
    """One line about a learner."""
    return REGISTRY.describe(key)


def list_settings(key: str) -> list[tuple[str, Any, Any]]:
    """Name, type and default of every setting of a learner, its own first."""
    from cirm.settings import list_fields
    from cirm.training import Descent

    parts = ("network", "likelihood", "descent")
    cls = get_learner_class(key)
    own = {n: s for n, s in list_fields(cls).items() if n not in parts}
    table = {**own, **list_fields(Descent), **NETWORK}
    return [
        (name, kind, cls.defaults.get(name, default))
        for name, (kind, default) in table.items()
    ]


def parse_learner_settings(key: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """A learner's settings read from text."""
    from cirm.settings import parse_value

    kinds = {name: kind for name, kind, _ in list_settings(key)}
    check_setting_names(key, texts)
    return {
        n: parse_value(kinds[n], t, f"learner {key}: {n}") for n, t in texts.items()
    }


def check_setting_names(key: str, names: Iterable[str]) -> None:
    """Refuse a setting that the learner does not have."""
    known = [name for name, _, _ in list_settings(key)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"learner {key}: settings are {', '.join(known)}; got {name!r}"
            )


def create(
    key: str,
    environment: Environment,
    settings: Mapping[str, Any] | None = None,
    preset: str = "",
) -> Learner[Any]:
    """A learner for data like this environment's.

    Settings are the learner's own fields, those of `Descent` and those of the
    network; they go over the preset's, and both over the defaults.
    """
    from cirm.likelihoods import make_likelihood
    from cirm.networks import MLP
    from cirm.training import Descent

    cls = get_learner_class(key)
    chosen = {**cls.defaults, **get_preset(key, preset), **(settings or {})}
    check_setting_names(key, chosen)
    shape = {name: chosen.get(name, default) for name, (_, default) in NETWORK.items()}
    descent = [f.name for f in dataclasses.fields(Descent)]
    task = environment.task
    outputs = shape["outputs"] or max(1, len(task.classes))
    sizes = (math.prod(environment.features), *shape["hidden"], outputs)
    return cls(
        network=MLP(sizes, shape["activation"], shape["dropout"]),
        likelihood=make_likelihood(task),
        descent=Descent(**{n: v for n, v in chosen.items() if n in descent}),
        **{n: v for n, v in chosen.items() if n not in NETWORK and n not in descent},
    )


def get_preset(key: str, name: str) -> Mapping[str, Any]:
    """The settings that a learner has under a preset's name; none without a name."""
    presets = get_learner_class(key).presets
    if name and name not in presets:
        known = ", ".join(presets) or "none"
        raise ValueError(f"learner {key}: presets are {known}; got {name!r}")
    return presets[name] if name else {}
