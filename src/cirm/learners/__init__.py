"""The learners: one module per method, chosen by key, class or instance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from cirm.registry import NamedClassRegistry

if TYPE_CHECKING:
    from torch import Tensor

    from cirm.environments import Environment, Task
    from cirm.learners.base import Learner
    from cirm.networks import Network

    LearnerLike = str | type[Learner[Any]] | Learner[Any]

LEARNERS = {
    "steady": "Steady",
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
    "groupdro": "GroupDRO",
    "fishr": "Fishr",
    "coral": "CORAL",
    "mmd": "MMD",
    "ib-irm": "IBIRM",
    "eqrm": "EQRM",
    "jtt": "JTT",
    "lff": "LfF",
    "dfr": "DFR",
    "afr": "AFR",
    "der": "DER",
    "agem": "AGEM",
    "si": "SI",
    "align": "Align",
    "logistic": "Logistic",
    "ridge": "Ridge",
    "boosting": "Boosting",
    "anchor": "Anchor",
    "drig": "DRIG",
    "sfb": "SFB",
    "t3a": "T3A",
    "tent": "TENT",
    "label-shift": "LabelShift",
}
"""Class name by key, in the paper's order; the module is named after the key."""

NETWORK_LEARNERS = frozenset(LEARNERS) - {
    *("steady", "irmg", "virmv1", "virmg", "bvirm", "vcl", "vclc", "icp", "boosting"),
    *("afr", "dfr", "sfb", "t3a", "tent", "label-shift"),
}
"""Learners whose prediction is their network at the parameters `state.params`."""

DEFAULT_LEARNER = "steady"
"""The learner that is used if the user names none."""

CONTINUAL = {"c-virmv1": "virmv1", "c-virmg": "virmg", "c-bvirm": "bvirm"}
"""The paper's names of three learners when they run on a sequence."""

REGISTRY = NamedClassRegistry("learner", "cirm.learners", __name__, LEARNERS, CONTINUAL)
"""The built-in learners and those that installed packages offer."""

NETWORK: dict[str, tuple[Any, Any]] = {
    "network": (str, "mlp"),
    "hidden": (tuple[int, ...], (100, 100)),
    "activation": (Literal["elu", "relu", "linear"], "elu"),
    "dropout": (float, 0.0),
    "outputs": (int, 0),
}
"""Type and default of the network's settings; outputs 0 means as the task needs."""

PARTS = ("network", "likelihood", "descent")
"""Fields of a learner that are not settings of their own."""


def get_learner_class(
    learner: LearnerLike, allow_import_paths: bool = True
) -> type[Learner[Any]]:
    """Return the class of a learner.

    Args:
        learner: A key such as "erm", the name of an entry point of the group
            `cirm.learners`, an import path `package.module:Class`, a subclass of
            `Learner`, or an instance.
        allow_import_paths: Whether an import path is accepted. Switch it off for keys
            that come from a file, which may name any module.

    Raises:
        ValueError: If there is no such learner, or it cannot be imported.

    Example:
        >>> get_learner_class("erm").__name__
        'ERM'
    """
    from cirm.learners.base import Learner

    cls = (
        REGISTRY.load(learner, allow_import_paths)
        if isinstance(learner, str)
        else learner
    )
    if isinstance(cls, Learner):
        return type(cls)
    if not isinstance(cls, type) or not issubclass(cls, Learner):
        raise ValueError(
            f"The learner {learner!r} is not a subclass of "
            "cirm.learners.base.Learner. Give the name of a learner, which `cirm "
            "list learners` shows, an import path such as package.module:Class, or a "
            "class or instance of such a learner."
        )
    return cls


def get_learner_key(learner: LearnerLike) -> str:
    """Return the text under which files and records store a learner.

    Args:
        learner: Any form that `get_learner_class` accepts.

    Returns:
        The key as given, or for a class or instance its built-in key, the name of its
        entry point, or its import path `package.module:Class`.

    Example:
        >>> get_learner_key(get_learner_class("erm"))
        'erm'
    """
    cls = get_learner_class(learner)
    return learner if isinstance(learner, str) else REGISTRY.find_key(cls)


def get_learner_key_and_settings(learner: LearnerLike) -> tuple[str, dict[str, Any]]:
    """Return the key of a learner, and the settings that make up an instance.

    `create(key, environment, settings)` with these two gives the same learner, except
    for its network and its device, which are not settings of the learner.

    Args:
        learner: Any form that `get_learner_class` accepts.

    Returns:
        The key, and for an instance every setting of its own and of its `Descent`;
        for a key or class no settings.

    Example:
        >>> from cirm.learners.vrex import VREx
        >>> key, settings = get_learner_key_and_settings(VREx(penalty=10.0))
        >>> key, settings["penalty"], settings["epochs"]
        ('vrex', 10.0, 100)
    """
    key = get_learner_key(learner)
    if isinstance(learner, str | type):
        return key, {}
    names = [f.name for f in dataclasses.fields(learner) if f.init]
    settings = {name: getattr(learner, name) for name in names if name not in PARTS}
    descent = dataclasses.asdict(learner.descent)
    return key, {**settings, **{n: v for n, v in descent.items() if n != "device"}}


def summarise_learner(key: str) -> str:
    """Return one line that says what the learner of a key does."""
    return REGISTRY.describe(key)


def list_learner_settings(learner: LearnerLike) -> list[tuple[str, Any, Any]]:
    """List the settings of a learner: its own, those of training and of the network.

    Example:
        >>> [name for name, kind, default in list_learner_settings("vrex")][:3]
        ['penalty', 'anneal', 'l2']
    """
    from cirm.settings import list_setting_fields
    from cirm.training import Descent

    cls = get_learner_class(learner)
    fields = list_setting_fields(cls)
    descent = fields["descent"][1]
    table = {name: field for name, field in fields.items() if name not in PARTS}
    for name, (kind, _) in list_setting_fields(Descent).items():
        table[name] = kind, getattr(descent, name)
    table |= NETWORK
    values = {**cls.defaults, **get_learner_key_and_settings(learner)[1]}
    return [
        (name, kind, values.get(name, default))
        for name, (kind, default) in table.items()
    ]


def parse_learner_settings(
    learner: LearnerLike, texts: Mapping[str, str]
) -> dict[str, Any]:
    """Parse settings given as text, such as those of `--set penalty=10`.

    Example:
        >>> parse_learner_settings("erm", {"hidden": "50,50", "epochs": "20"})
        {'hidden': (50, 50), 'epochs': 20}
    """
    from cirm.settings import parse_setting_value

    check_setting_names(learner, texts)
    kinds = {name: kind for name, kind, _ in list_learner_settings(learner)}
    where = f"learner {get_learner_key(learner)}"
    return {
        n: parse_setting_value(kinds[n], t, f"{where}: {n}") for n, t in texts.items()
    }


def check_setting_names(learner: LearnerLike, names: Iterable[str]) -> None:
    """Refuse a setting that the learner does not have."""
    known = [name for name, _, _ in list_learner_settings(learner)]
    for name in names:
        if name not in known:
            raise ValueError(
                f"The learner {get_learner_key(learner)} has no setting {name!r}. "
                f"Choose one of {', '.join(known)}."
            )


def get_preset_settings(learner: LearnerLike, preset: str) -> Mapping[str, Any]:
    """Return the settings that a learner has under the name of a preset.

    Example:
        >>> get_preset_settings("gem", "paper")
        {'memory': 100, 'rate': 0.001, 'dropout': 0.75}
    """
    presets = get_learner_class(learner).presets
    if preset and preset not in presets:
        known = (
            f"Choose one of {', '.join(presets)}."
            if presets
            else ("This learner has no presets; leave out --preset.")
        )
        raise ValueError(
            f"The learner {get_learner_key(learner)} has no preset {preset!r}. {known}"
        )
    return presets[preset] if preset else {}


def create(
    learner: LearnerLike,
    environment: Environment,
    settings: Mapping[str, Any] | None = None,
    preset: str = "",
    network: Network | None = None,
) -> Learner[Any]:
    """Create a learner whose network and likelihood fit the data of an environment.

    Args:
        learner: A key such as "erm", the name of an entry point, an import path
            `package.module:Class`, a subclass of `Learner`, or an instance. An
            instance keeps its own settings, its `descent`, and its network if it has
            one.
        environment: Data like those to learn from: its number of features and its task
            decide the network and the likelihood.
        settings: Values of the learner's own settings, of those of `Descent` and of
            those of the network (`hidden`, `activation`, `dropout`, `outputs`). They
            override the preset, which overrides the defaults or the instance's values.
        preset: Name of one of the learner's presets, such as "paper".
        network: The network to train, instead of one that the settings describe.

    Returns:
        The learner, ready for `init`, `observe` and `outputs`.

    Raises:
        ValueError: If there is no such learner, setting or preset, or a value is out
            of range.

    Example:
        >>> import torch
        >>> from cirm import Environment, Task
        >>> clinic = Environment(
        ...     "a", torch.randn(20, 3), torch.arange(20) % 2, Task.classification(2)
        ... )
        >>> create("erm", clinic, {"hidden": (8,), "epochs": 2}).network.sizes
        (3, 8, 2)
        >>> from cirm.learners.vrex import VREx
        >>> create(VREx(penalty=10.0), clinic, {"anneal": 0.0}).penalty
        10.0
    """
    from cirm.likelihoods import choose_likelihood
    from cirm.settings import list_setting_fields
    from cirm.training import Descent

    cls = get_learner_class(learner)
    given = {**get_preset_settings(learner, preset), **(settings or {})}
    check_setting_names(learner, given)
    _check_learner_supports_task(learner, environment.task)
    values = {**cls.defaults, **get_learner_key_and_settings(learner)[1], **given}
    if network is None and not isinstance(learner, str | type):
        network = learner.network
    chosen = network is not None or any(name in given for name in NETWORK)
    if network is None:
        shape = {n: values.get(n, default) for n, (_, default) in NETWORK.items()}
        network = _build_default_network(environment, shape)
    elif fixed := [name for name in NETWORK if name in given]:
        raise ValueError(
            f"The learner {get_learner_key(learner)} already has a network, so the "
            f"setting {fixed[0]!r} would have no effect. Leave out the setting, or "
            "create the learner without a network."
        )
    if isinstance(learner, str | type):
        descent = list_setting_fields(cls)["descent"][1]
    else:
        descent = learner.descent
    steps = [field.name for field in dataclasses.fields(Descent)]
    bound = cls(
        network=network,
        likelihood=choose_likelihood(environment.task),
        descent=dataclasses.replace(
            descent, **{n: v for n, v in values.items() if n in steps}
        ),
        **{n: v for n, v in values.items() if n not in NETWORK and n not in steps},
    )
    return bound.adjust_settings_to_inputs(environment.features, chosen)


def train_on_tiny_data(learner: LearnerLike, is_regression: bool = False) -> Tensor:
    """Train a learner for two epochs on two tiny environments, one after the other.

    This is a quick check that a learner works, for example one that you are writing.

    Args:
        learner: Any form that `create` accepts.
        is_regression: Whether the targets are numbers instead of two classes.

    Returns:
        Predictions [1, 20, k] for the first environment.

    Example:
        >>> train_on_tiny_data("erm").shape
        torch.Size([1, 20, 2])
    """
    import torch

    from cirm.environments import Environment, Task
    from cirm.randomness import Randomness

    randomness = Randomness((0,))
    inputs = randomness.at("inputs").normal(40, 3)[0]
    targets = inputs[:, 0] if is_regression else (inputs[:, 0] > 0).long()
    task = Task.regression() if is_regression else Task.classification(2)
    environments = [
        Environment(name, x, y, task)
        for name, x, y in zip("ab", inputs.split(20), targets.split(20), strict=True)
    ]
    bound = create(learner, environments[0], {"epochs": 2})
    state = bound.init(randomness.at("init"))
    for index, environment in enumerate(environments):
        state = bound.observe(state, (environment,), randomness.at("stage", index))
    with torch.no_grad():
        return bound.predict(state, inputs[None, :20])


def _check_learner_supports_task(learner: LearnerLike, task: Task) -> None:
    """Raise an error if a learner cannot learn a task."""
    tasks = get_learner_class(learner).tasks
    if task.kind not in tasks:
        other = "numbers" if task.classes else "classes"
        raise ValueError(
            f"{get_learner_key(learner)}: the data are for {task.kind}, but this "
            f"learner supports only {' and '.join(tasks)}. Choose another learner, or "
            f"a target column of {other}."
        )


def _build_default_network(
    environment: Environment, network_settings: Mapping[str, Any]
) -> Network:
    """Return a network for the inputs and the task of an environment."""
    from cirm.networks import build_network

    outputs = network_settings["outputs"] or max(1, len(environment.task.classes))
    return build_network(
        network_settings["network"], environment.features, outputs, network_settings
    )
