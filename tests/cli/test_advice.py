"""Advice can be followed: every option that a message names exists."""

import ast
import re
from pathlib import Path

import pytest
import typer.main

from cirm.cli import app

ROOT = Path(__file__).parents[2] / "src" / "cirm"
FILES = sorted(
    path
    for folder in ("model", "data", "evaluation", "learners", "estimator", "report")
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "downloads.py"  # which calls other programs
)
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
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docs:
            yield node.value


def test_every_option_in_a_message_exists():
    known = list_options(typer.main.get_command(app))
    named = {
        (str(path.relative_to(ROOT)), option)
        for path in FILES
        for text in list_texts(path)
        for option in OPTION.findall(text)
    }
    assert len(named) > 20
    assert [place for place in named if place[1] not in known] == []


@pytest.mark.parametrize("name", ["fit", "update", "predict", "evaluate"])
def test_a_threshold_can_be_given_wherever_predictions_are_called_constant(name):
    command = typer.main.get_command(app).commands[name]
    assert "--threshold" in list_options(command)
