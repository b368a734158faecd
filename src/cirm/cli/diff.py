"""`cirm diff`: what differs between two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from cirm.cli import options
from cirm.cli.options import Json, KeyFile, ModelLearner

EXAMPLES = options.format_examples_for_command_help(
    "cirm diff triage.cirm triage-2.cirm", "cirm diff triage.cirm triage-2.cirm --json"
)


def diff_models_command(
    first: options.ModelArgument,
    second: options.ModelArgument,
    learner: ModelLearner = None,
    key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two models, with a summary first.

    Compares the places they have learned from, settings, thresholds, columns,
    the importance of columns, unstable columns and scores.
    """
    from cirm.cli.output import print_result_json_and_page_path
    from cirm.cli.progress import show_progress_of_steps

    secret = options.read_signing_key(key)
    with show_progress_of_steps():
        from cirm.model.difference import describe_differences_of_models
        from cirm.model.file import load

        models = (load(path, learner=learner, key=secret) for path in (first, second))
        content: dict[str, Any] = {"first": str(first), "second": str(second)}
        content |= describe_differences_of_models(*models)
    if not as_json:
        print_model_differences(content)
    print_result_json_and_page_path(content, as_json, None)


def print_model_differences(content: Mapping[str, Any]) -> None:
    """Print the answer, and a table of what differs."""
    from cirm.cli.output import print_rows_as_table, remove_control_characters_in_values

    content = remove_control_characters_in_values(content)
    typer.echo(content["answer"])
    rows = list_table_rows_of_differences(content)
    if rows:
        headings = ["what", content["first"], content["second"]]
        print_rows_as_table("Differences", headings, rows, n_text_columns=3)


def list_table_rows_of_differences(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the differences as rows: what differs, and its value in both models."""
    rows: list[list[str]] = []
    environments, unstable = content["environments"], content["unstable"]
    if environments["first"] or environments["second"]:
        both = [", ".join(environments[name]) for name in ("first", "second")]
        rows.append(["places that only this model has learned from", *both])
    if unstable["first"] or unstable["second"]:
        both = [", ".join(unstable[name]) for name in ("first", "second")]
        rows.append(["columns that only this model calls unstable", *both])
    for name, pair in content["importance"].items():
        rows.append([f"importance of {name}", *(f"{value:.0f} %" for value in pair)])
    for one in content["scores"]:
        both = [f"{one[name]:.4g}" for name in ("first", "second")]
        rows.append(
            [f"{one['metric']} on held-out rows of {one['environment']}", *both]
        )
    for word in ("settings", "columns"):
        for name, pair in content[word].items():
            kind = word.removesuffix("s")
            rows.append([f"{kind} {name}", *map(format_model_setting_value, pair)])
    if content["adaptation"][0] != content["adaptation"][1]:
        rows.append(["adapted to", *(name or "" for name in content["adaptation"])])
    return rows


def format_model_setting_value(value: object) -> str:
    """Return a value of a setting as text; empty if the model has none."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
