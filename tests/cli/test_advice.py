"""Advice can be followed: every option that a message names exists where it is said."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from cirm import cli
from cirm.data import DATASETS, get_dataset_class

ROOT = Path(__file__).parents[2] / "src" / "cirm"
FILES = sorted(
    path
    for folder in ("model", "data", "evaluation", "learners", "estimator", "report")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "downloads.py"  # which calls other programs
)
ERRORS = ROOT.parents[1] / "docs" / "errors.md"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+[a-z]")


def list_options(command):
    """The options of a command and of those below it."""
    found = {name for one in command.params for name in one.opts}
    for below in getattr(command, "commands", {}).values():
        found |= list_options(below)
    return found


def list_texts(path):
    """Literal text in a file, but for docstrings."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docs:
            yield node.value


COMMANDS = {name: cli.import_cli_command(name) for name in cli.COMMANDS}
LOADERS = ("update", "adapt", "predict", "evaluate", "inspect", "diff", "rollback")
PRINTERS = {  # which commands print the messages of a file
    "data/columns.py": ("fit", "inspect"),
    "data/encoded_chunks.py --environment": ("fit", "update", "evaluate"),
    "data/encoded_chunks.py": ("update", "adapt", "predict", "evaluate", "serve"),
    "data/open_sources.py --encoder": ("update", "adapt", "predict", "evaluate"),
    "data/open_sources.py": ("fit", "update", "evaluate"),
    "data/encoders.py": ("update", "adapt", "predict", "evaluate"),
    "data/periods.py": ("fit",),
    "data/planted.py": ("stress", "board"),
    "data/schema_inference.py": ("fit",),
    "data/values.py": ("fit", "compare"),
    "evaluation/adaptation.py": ("run",),
    "evaluation/run.py": ("run",),
    "evaluation/selection.py": ("select",),
    "inference/__init__.py": ("run",),
    "learners/__init__.py": ("fit", "run", "select"),
    "learners/base.py": ("fit", "run"),
    "learners/steady/columns_explain.py": ("fit", "inspect"),
    "learners/steady/both.py": ("fit", "inspect"),
    "model/abstention.py": ("predict", "evaluate", "serve"),
    "model/compare.py": ("compare",),
    "model/conformal.py": ("predict", "evaluate", "serve"),
    "model/data_notes.py": ("fit",),
    "model/evaluate.py": ("fit", "update", "inspect", "evaluate"),
    "model/file.py": ("fit",),
    "model/fit.py --held-out": ("fit",),
    "model/fit.py --channels": ("fit",),
    "model/fit.py --set": ("fit",),
    "model/fit.py": ("update",),
    "model/model.py --unstable": ("fit",),
    "model/model.py --stable": ("fit",),
    "model/facts.py": ("fit", "update", "predict", "evaluate"),
    "model/model.py --learner": ("fit", *LOADERS, "compare", "serve"),
    "model/rare_classes.py --threshold": ("update",),
    "model/rare_classes.py": ("fit",),
    "model/table_pair.py": ("compare",),
    "model/threshold.py": ("fit", "update", "predict", "evaluate"),
    "model/verdict.py": ("fit", "update", "evaluate"),
    "model/versions.py": ("update",),
    "report/model_tables.py": ("predict", "evaluate"),
    "model/warnings.py --accept-units": ("update", "adapt", "predict"),
    "model/warnings.py --again": ("update",),
    "model/warnings.py": ("fit",),
    "model/predict.py": ("predict",),
    "model/stage_scores.py": ("fit",),
    "report/diagnostics.py": ("run",),
    "report/selection_page.py": ("select",),
}


def list_named_commands(text):
    """The commands that a text tells the user to run, as in "fit a new model"."""
    words = re.findall(r"\b[a-z]+\b", text.lower())
    return [word for word in words if word in COMMANDS]


def has_option(option, commands):
    return all(option in list_options(COMMANDS[name]) for name in commands)


ADVICE = sorted(
    {
        (str(path.relative_to(ROOT)), option, text)
        for path in FILES
        for text in list_texts(path)
        for option in OPTION.findall(text)
    }
)


def test_every_option_in_a_message_exists_on_the_command_that_prints_it():
    assert len(ADVICE) > 40
    wrong = []
    for file, option, text in ADVICE:
        printers = PRINTERS.get(f"{file} {option}") or PRINTERS[file]
        named = [one for one in list_named_commands(text) if has_option(option, [one])]
        if not named and not has_option(option, printers):
            wrong.append((file, option, text))
    assert wrong == []


def test_every_option_in_the_table_of_errors_exists_on_the_command_there():
    pattern = r"^\| (.*?) \| `cirm ([a-z]+).*?` \| (.*) \|$"
    rows = re.findall(pattern, ERRORS.read_text(), re.MULTILINE)
    assert len(rows) > 90
    wrong = [
        (title, option)
        for title, command, message in rows
        for option in OPTION.findall(message)
        if not any(
            has_option(option, [one])
            for one in (command, *list_named_commands(message))
        )
    ]
    assert wrong == []


def test_every_option_of_a_command_in_the_documentation_exists():
    project = ROOT.parents[1]
    pages = [*project.glob("*.md"), *project.glob("docs/*.md")]
    settings = {  # of data sets, which `run` and `select` pass on
        f"--{field.name.replace('_', '-')}"
        for key in DATASETS
        for field in dataclasses.fields(get_dataset_class(key))
    }
    found = [
        (page.name, command, option)
        for page in pages
        for command, rest in re.findall(
            r"\bcirm ([a-z]+)([^`\n#|]*)", page.read_text().replace("\\\n", " ")
        )
        if command in COMMANDS
        for option in OPTION.findall(rest)
    ]
    assert len(found) > 150
    wrong = [
        (page, command, option)
        for page, command, option in found
        if not has_option(option, [command])
        and not (command in ("run", "select") and option in settings)
    ]
    assert wrong == []


@pytest.mark.parametrize("name", ["fit", "update", "predict", "evaluate"])
def test_a_threshold_can_be_given_wherever_predictions_are_called_constant(name):
    assert "--threshold" in list_options(COMMANDS[name])
