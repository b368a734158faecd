"""`cirm list`: the learners, data sets and other parts to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.output import print_rows_as_table

if TYPE_CHECKING:
    from cirm.registry import NamedClassRegistry

MODULES = {
    "learners": "cirm.learners",
    "datasets": "cirm.data",
    "rules": "cirm.evaluation.selection",
    "networks": "cirm.networks",
    "inference": "cirm.inference",
}
"""The modules whose `REGISTRY` holds the choices of a kind."""

KINDS = ", ".join(MODULES)
EXAMPLES = options.format_examples_for_command_help(
    "cirm list learners", "cirm list learners irmv1"
)


def list_registered_names_or_settings(
    kind: Annotated[
        str, typer.Argument(help=f"What to list: {KINDS}.", show_default="all")
    ] = "",
    name: Annotated[
        str,
        typer.Argument(
            help="Name of a learner, data set or other choice, to show its settings.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """List learners, data sets and other named choices, or the settings of one.

    Choices that another installed package offers are marked with its name. Wherever a
    name is expected, package.module:Class works as well.
    """
    if kind and kind not in MODULES:
        raise ValueError(
            f"list: there is nothing called {kind!r} to list. Use one of {KINDS}."
        )
    if name:
        print_settings_of_registered_name(kind, name)
        return
    for one in [kind] if kind else MODULES:
        print_registered_names(one)


def get_registry_by_name(kind: str) -> NamedClassRegistry:
    """Return the choices of a kind."""
    registry: NamedClassRegistry = import_module(MODULES[kind]).REGISTRY
    return registry


def print_registered_names(kind: str) -> None:
    """Print the names of a kind, each with its description."""
    registry = get_registry_by_name(kind)
    rows = []
    for key in registry.list_keys():
        text, package = registry.describe(key), registry.find_package(key)
        if key in registry.aliases:
            joint = registry.aliases[key]
            text = (
                f"{joint} for a sequence of environments: the posterior of each "
                "stage is the prior of the next"
            )
        rows.append([key, f"{text} (from {package})" if package else text])
    print_rows_as_table(
        kind.capitalize(), ("name", "description"), rows, n_text_columns=2
    )


def print_settings_of_registered_name(kind: str, name: str) -> None:
    """Print name, type and default of the settings of a choice."""
    from cirm.learners import NETWORK, list_learner_settings
    from cirm.settings import describe_setting_type, list_setting_fields

    cls: type = get_registry_by_name(kind).load(name)
    if kind == "learners":
        settings = list_learner_settings(name)
    elif kind == "networks":  # see `build_network`
        parts = ("hidden", "activation", "dropout")
        settings = [(key, *NETWORK[key]) for key in parts]
    elif is_dataclass(cls):
        settings = [(key, *field) for key, field in list_setting_fields(cls).items()]
    else:
        settings = []
    if not settings:
        typer.echo(f"{name} has no settings.")
        return
    rows = [
        [key, describe_setting_type(type_), repr(value)]
        for key, type_, value in settings
    ]
    headings = ("setting", "type", "default")
    print_rows_as_table(f"Settings of {name}", headings, rows, n_text_columns=3)
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    if presets:
        rows = [
            [key, ", ".join(f"{n}={value}" for n, value in preset.items())]
            for key, preset in presets.items()
        ]
        title = f"Presets of {name} (--preset)"
        print_rows_as_table(title, ("preset", "settings"), rows, n_text_columns=2)
