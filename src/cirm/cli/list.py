"""`cirm list`: the learners, data sets and inference methods to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.output import print_rows

KINDS = ("learners", "datasets", "inference")
EXAMPLES = options.list_examples("cirm list learners", "cirm list learners irmv1")


def list_choices(
    kind: Annotated[
        str,
        typer.Argument(
            help="What to list: learners, datasets or inference.", show_default="all"
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Argument(
            help="One of them, to show its settings and their defaults.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """List learners, data sets and inference methods, or the settings of one."""
    if kind and kind not in KINDS:
        raise ValueError(f"list: {kind!r} is not one of {', '.join(KINDS)}.")
    if name:
        print_settings(kind, name)
        return
    for one in [kind] if kind else KINDS:
        print_names(one)


def print_names(kind: str) -> None:
    """Print the names of a kind, each with its description."""
    import cirm.data
    import cirm.inference
    from cirm.learners import CONTINUAL, LEARNERS, summarize_learner

    if kind == "learners":
        rows = [[key, summarize_learner(key)] for key in LEARNERS]
        rows += [
            [key, f"{joint} on a sequence: the last posterior is the prior"]
            for key, joint in CONTINUAL.items()
        ]
    elif kind == "datasets":
        rows = [[key, cirm.data.describe(key)] for key in cirm.data.DATASETS]
    else:
        rows = [
            [key, cirm.inference.summarize_inference(key)]
            for key in cirm.inference.INFERENCE
        ]
    print_rows(kind, ("name", "description"), rows, text_columns=2)


def print_settings(kind: str, name: str) -> None:
    """Print name, type and default of the settings of a learner or data set."""
    from cirm.settings import format_type, list_fields

    presets: Mapping[str, Mapping[str, Any]] = {}
    if kind == "learners":
        from cirm.learners import get_learner_class, list_settings

        settings = list_settings(name)
        presets = get_learner_class(name).presets
    else:
        from cirm.data import get_dataset_class
        from cirm.inference import get_inference_class

        get_class = get_dataset_class if kind == "datasets" else get_inference_class
        fields = list_fields(get_class(name))
        settings = [(key, *value) for key, value in fields.items()]
    rows = [[key, format_type(type_), repr(value)] for key, type_, value in settings]
    headings = ("setting", "type", "default")
    print_rows(f"Settings of {name}", headings, rows, text_columns=3)
    if presets:
        rows = [
            [key, ", ".join(f"{n}={value}" for n, value in preset.items())]
            for key, preset in presets.items()
        ]
        title = f"Presets of {name} (--preset)"
        print_rows(title, ("preset", "settings"), rows, text_columns=2)
