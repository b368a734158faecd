"""What `cirm COMMAND --help` must say."""

import re

import pytest
import typer
from typer.testing import CliRunner

from cirm import cli


def commands(group, path=()):
    """Every command with its path, also of groups."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(cli.app)))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_tells_what_each_argument_and_option_is_for(path):
    found = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "1000"})
    assert found.exit_code == 0
    said = re.sub(r"\s+", " ", found.stdout)
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "hidden", False):
            continue
        assert parameter.help, parameter.name
        assert re.sub(r"\s+", " ", parameter.help) in said
        if isinstance(getattr(parameter, "show_default", None), str):
            assert f"[default: ({parameter.show_default})]" in said
