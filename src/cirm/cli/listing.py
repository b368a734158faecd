"""`cirm list`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

KINDS = ("learners", "datasets", "inference")


def listing(
    kind: Annotated[
        str, typer.Argument(help="learners, datasets or inference; none: all.")
    ] = "",
    name: Annotated[
        str, typer.Argument(help="One of them: shows its settings and defaults.")
    ] = "",
) -> None:
    """List the learners, data sets and ways to infer environments."""
    if kind and kind not in KINDS:
        raise ValueError(
            f"list: the kind must be one of {', '.join(KINDS)}; got {kind!r}"
        )
    if name:
        _settings(kind, name)
        return
    for chosen in [kind] if kind else KINDS:
        _names(chosen)


def _names(kind: str) -> None:
    import cirm.data
    import cirm.inference
    import cirm.learners
    from cirm.cli.screen import columns

    if kind == "learners":
        from cirm.learners import CONTINUAL, LEARNERS, summarize_learner

        rows = [(key, summarize_learner(key)) for key in LEARNERS]
        rows += [
            (key, f"{joint} on a sequence: the last posterior is the prior")
            for key, joint in CONTINUAL.items()
        ]
    elif kind == "datasets":
        rows = [(k, cirm.data.describe(k)) for k in cirm.data.DATASETS]
    else:
        rows = [
            (k, cirm.inference.summarize_inference(k)) for k in cirm.inference.INFERENCE
        ]
    columns(kind, rows)


def _settings(kind: str, name: str) -> None:
    """Names, types and defaults of the settings of one of them."""
    from cirm.cli.screen import columns
    from cirm.settings import format_type, list_fields

    if kind == "learners":
        from cirm.learners import get_learner_class, list_settings

        rows = [(n, f"{format_type(t)}, {d!r}") for n, t, d in list_settings(name)]
        columns(f"settings of {name}: type, default", rows)
        presets = get_learner_class(name).presets
        columns("presets", [(k, _spelled(v)) for k, v in presets.items()])
        return
    if kind == "datasets":
        from cirm.data import get_dataset_class

        found: type = get_dataset_class(name)
    else:
        from cirm.inference import get_inference_class

        found = get_inference_class(name)
    settings = list_fields(found).items()
    rows = [(n, f"{format_type(t)}, {d!r}") for n, (t, d) in settings]
    columns(f"settings of {name}: type, default", rows)


def _spelled(preset: object) -> str:
    assert hasattr(preset, "items")
    return ", ".join(f"{name}={value}" for name, value in preset.items())
