"""`cirm rollback`: return to an earlier version of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cirm.cli import options
from cirm.cli.options import Json, KeyFile, ModelLearner, Overwrite
from cirm.cli.output_files import (
    check_file_can_be_written,
    check_model_file_is_unchanged,
    check_output_paths_before_work,
    check_signed_model_has_key,
    write_model_file_and_page,
)

EXAMPLES = options.format_examples_for_command_help(
    "cirm rollback triage.cirm --out earlier.cirm", "cirm rollback triage.cirm"
)


def rollback_model(
    model: options.ModelArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="Version to return to, as `cirm inspect --history` shows it; the "
            "first digits are enough.",
            show_default="the version before the last update",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write the earlier version to.", show_default="the model file"
        ),
    ] = None,
    overwrite: Overwrite = False,
    learner: ModelLearner = None,
    key: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Return to the version of a model before its last update, or to another one.

    Nothing is lost: the current version is kept in the file, and the same command with
    --to returns to it.
    """
    from cirm.cli.output import print_lines_to_stderr, print_result_json_and_page_path
    from cirm.cli.progress import show_progress_of_steps

    check_output_paths_before_work({"--out": out}, [model], overwrite)
    check_file_can_be_written(out or model, "--out" if out else "model")
    secret = options.read_signing_key(key)
    with show_progress_of_steps(f"{model} is unchanged"):
        from cirm.model.container import read_model_checksum
        from cirm.model.file import compute_version_key, load
        from cirm.model.versions import rollback

        checksum = read_model_checksum(model)
        current = load(model, learner=learner, key=secret)
        check_signed_model_has_key(model, secret)
        earlier = rollback(current, to)
        if out is None:
            check_model_file_is_unchanged(model, checksum)
        left = compute_version_key(current)
        path = out or model
        content = write_model_file_and_page(earlier, path, None, secret, left=left)
    if not as_json:
        names = ", ".join(entry["name"] for entry in content["history"])
        typer.echo(f"{path} is at version {content['version']}, trained on {names}.")
        typer.echo(
            f"Version {left}, last trained on {current.history[-1].name}, is kept: "
            f"`cirm rollback {path} --to {left}` returns to it."
        )
    print_result_json_and_page_path(content, as_json, None)
    print_lines_to_stderr(f"Wrote the model to {path}")
