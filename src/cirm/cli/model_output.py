"""Printing a model, and its scores, on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from cirm.cli.output import (
    print_notes_once,
    print_table,
    remove_control_characters_in_values,
)
from cirm.report.model_history import (
    build_earlier_versions_table,
    build_model_history_table,
    describe_scores_on_past_environments,
)
from cirm.report.model_tables import (
    ADAPTATION_PARTS,
    add_full_stop,
    build_adapted_effects_table,
    build_confusion_table,
    build_coverage_tables,
    build_evaluation_scores_table,
    build_model_diagnostics_table,
    build_model_environments_table,
    build_model_memory_table,
    build_precision_recall_table,
    list_coverage_sentences,
    list_sentences_on_learner_decisions,
    summarise_adaptation,
)

MAX_COLUMNS = 12  # shown of the most important ones
MAX_CLASSES = 10
MAX_TREATMENTS = 100  # lines of columns, which a reader may still look through

Content = Mapping[str, Any]


def print_result_of_training(
    content: Content, is_first_fit: bool, is_task_detected: bool
) -> None:
    """Print what a fit or an update has learned."""
    content = remove_control_characters_in_values(content)
    print_notes_once(content["history"][-1]["notes"])
    if is_first_fit:
        typer.echo(describe_target_of_model(content, is_task_detected))
        print_column_encodings("Columns, as defined by the first place", content)
    last = content["history"][-1]["stage"]
    print_environment_scores([e for e in content["history"] if e["stage"] == last])
    print_class_weights_and_threshold(content)
    typer.echo(describe_data_stored_in_model(content))
    print_column_importance(content)
    print_learner_explanation(content)
    if not is_first_fit:
        typer.echo(describe_scores_on_past_environments(content["history"][-1]))


def print_model_description(content: Content) -> None:
    """Print everything that is known about a model."""
    content = remove_control_characters_in_values(content)
    typer.echo(describe_target_of_model(content))
    print_learner_explanation(content)
    if content["adaptation"]:
        print_model_adaptation(content["adaptation"])
    settings = ", ".join(f"{k}={v}" for k, v in content["settings"].items())
    typer.echo(f"Learner: {content['learner']} ({content['method']})")
    typer.echo(f"Settings: {settings}; seed={content['seed']}")
    if content["network"]:
        typer.echo(f"Network: {describe_network_settings(content['network'])}")
    if encoder := content["encoder"]:
        typer.echo(
            f"Encoder of images: {encoder['name']}, {encoder['features']:,} features, "
            f"weights {encoder['checksum']} (SHA-256)"
        )
    print_environment_scores(content["history"])
    print_class_weights_and_threshold(content)
    print_table(build_model_memory_table(content))
    typer.echo(describe_data_stored_in_model(content))
    print_column_encodings("Columns", content)
    print_column_importance(content)
    for environment in content["history"]:
        name = environment["name"]
        print_notes_once([f"{name}: {note}" for note in environment["notes"]])


def print_model_history(content: Content) -> None:
    """Print what a model has learned from, and which earlier versions are kept."""
    content = remove_control_characters_in_values(content)
    history, versions = content["history"], content["earlier_versions"]
    created = content["created"][:10]
    typer.echo(f"{content['model']} is at version {content['version']} ({created}).")
    print_table(build_model_history_table(history))
    for entry in history[1:]:
        if entry["past"]:
            typer.echo(
                f"{entry['name']}: {describe_scores_on_past_environments(entry)}"
            )
    if versions:
        print_table(build_earlier_versions_table(versions))
        typer.echo(
            f"Use `cirm rollback {content['model']} --to VERSION` to return to an "
            "earlier version."
        )
    else:
        typer.echo("No earlier version is kept in the file.")


def print_evaluation_scores(content: Content) -> None:
    """Print the scores of a model."""
    content = remove_control_characters_in_values(content)
    print_table(build_evaluation_scores_table(content))
    if content.get("confusion"):
        print_table(build_precision_recall_table(content))
        if len(content["classes"]) <= MAX_CLASSES:
            print_table(build_confusion_table(content))
        if content["threshold"]:
            typer.echo(content["threshold"]["sentence"])
    for table in build_coverage_tables(content):
        print_table(table)
    for sentence in list_coverage_sentences(content):
        typer.echo(sentence)
    typer.echo(add_full_stop(content["verdict"]))
    for one in content["comparisons"]:
        if one["line"].lower() not in content["verdict"].lower():
            typer.echo(f"  {one['line']}")
    print_notes_once(content["notes"])


def print_class_weights_and_threshold(content: Content) -> None:
    """Print the weights of classes and the threshold, where there are any."""
    if content["class_weight"]:
        weights = (f"{n} {value:.4g}" for n, value in content["class_weight"].items())
        typer.echo(
            f"Weights of the classes in training: {', '.join(weights)}. The predicted "
            "probabilities hold for data in which the classes are weighted in this "
            "way."
        )
    if content["threshold"]:
        typer.echo(content["threshold"]["sentence"])


def describe_target_of_model(content: Content, is_detected: bool = False) -> str:
    """Describe what the model predicts."""
    task = content["task"] + (" (detected)" if is_detected else "")
    classes = content["classes"]
    if not classes:
        return f"Target {content['target']}: {task}"
    more = ", ..." if len(classes) > MAX_CLASSES else ""
    names = ", ".join(classes[:MAX_CLASSES]) + more
    return f"Target {content['target']}: {task}, {len(classes)} classes: {names}"


def describe_network_settings(network: Content) -> str:
    """Describe a network."""
    if network["kind"] == "mlp":
        return "-".join(map(str, network["sizes"])) + f", {network['activation']}"
    if network["kind"] == "module":
        return f"module {network['name']}"
    settings = (f"{k}={v}" for k, v in network.items() if k != "kind")
    return f"{network['kind']} ({', '.join(settings)})"


def describe_data_stored_in_model(content: Content) -> str:
    """Describe what the model stores from past data."""
    count = content["raw_examples"]
    rows = "no training rows" if not count else f"{count:,} training rows"
    names = f"{content['category_names']:,} category names"
    return (
        f"The model file keeps {rows} and {names} ({content['bytes']:,} bytes in total)"
    )


def print_environment_scores(environments: Sequence[Content]) -> None:
    """Print the scores and diagnostics of environments."""
    print_table(build_model_environments_table(environments))
    if diagnostics := build_model_diagnostics_table(environments):
        print_table(diagnostics)


def print_column_importance(content: Content) -> None:
    """Print the important columns, and those that are no longer important."""
    values = content["importance"]
    if not values:
        return
    total = sum(values.values()) or 1.0
    parts = [f"{n} {100 * value / total:.0f} %" for n, value in values.items()]
    more = len(parts) - MAX_COLUMNS
    parts = parts[:MAX_COLUMNS] + ([f"{more} more"] if more > 0 else [])
    typer.echo(f"Importance of columns: {', '.join(parts)}")
    first = content["history"][0]["name"]
    for name, drop in content["importance_drops"].items():
        typer.echo(
            f"Importance of `{name}`: {drop['first']:.0f} % after {first}, "
            f"{drop['last']:.0f} % now"
        )


def print_learner_explanation(content: Content) -> None:
    """Print what the learner decided, and why."""
    explanation = content["explanation"]
    if explanation.get("verdict"):
        typer.echo(add_full_stop(explanation["verdict"]))
        for sentence in list_sentences_on_learner_decisions(explanation):
            typer.echo(f"  {sentence}")


def print_model_adaptation(adaptation: Content) -> None:
    """Print what a model was adapted to, what changed, and what did not and why."""
    adaptation = remove_control_characters_in_values(adaptation)
    typer.echo(summarise_adaptation(adaptation))
    if table := build_adapted_effects_table(adaptation):
        print_table(table)
    for effect in adaptation.get("effects", ()):
        if sentence := effect.get("sentence"):
            typer.echo(f"  {add_full_stop(sentence)}")
    for title, name in ADAPTATION_PARTS.items():
        if name != "notes" and adaptation.get(name):
            typer.echo(f"{title}:")
            for sentence in adaptation[name]:
                typer.echo(f"  {add_full_stop(sentence)}")
    print_notes_once(adaptation["notes"])


def print_column_encodings(title: str, content: Content) -> None:
    """Print how each column is used."""
    if content["columns"]:
        typer.echo(f"{title}:")
        columns = content["columns"]
        for column in columns[:MAX_TREATMENTS]:
            typer.echo(f"  {column['name']}: {column['treatment']}")
        if (more := len(columns) - MAX_TREATMENTS) > 0:
            typer.echo(
                f"  {more:,} more columns, which `cirm inspect MODEL --json` lists"
            )
