"""What `cirm COMMAND --help` must say, and whether its examples work."""

import re
import shlex
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from cirm import cli, fit, save, update
from cirm.cli import demo
from cirm.data import idx
from cirm.data.image_sets import IMAGE_SETS
from cirm.stress.cells import USUAL

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MODEL_COMMANDS = {
    "compare",
    *("update", "adapt", "predict", "evaluate", "inspect", "diff", "rollback"),
    "serve",
}


def list_paths():
    """Every command with its path, also of groups."""
    for name in cli.COMMANDS:
        command = cli.import_cli_command(name)
        for inner, one in getattr(command, "commands", {}).items():
            yield (name, inner), one
        if not hasattr(command, "commands"):
            yield (name,), command


COMMANDS = dict(list_paths())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_explains_each_argument_and_option(path):
    result = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "1000"})
    assert result.exit_code == 0
    text = re.sub(r"\s+", " ", result.stdout)
    for parameter in COMMANDS[path].params:
        if getattr(parameter, "hidden", False):
            continue
        assert parameter.help, parameter.name
        assert re.sub(r"\s+", " ", parameter.help) in text
        if isinstance(getattr(parameter, "show_default", None), str):
            assert f"[default: ({parameter.show_default})]" in text
    for example in find_examples(path):
        assert example in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_of_commands_says_what_the_help_of_a_command_begins_with(name):
    command = cli.import_cli_command(name)
    assert command.name == name
    assert cli.COMMANDS[name].summary == command.help.split("\n\n")[0]


@pytest.mark.parametrize("typed", [["ft"], ["data", "lst"]])
def test_a_similar_command_is_suggested_once(typed):
    result = CliRunner().invoke(cli.app, typed)
    assert result.exit_code == 2
    assert result.output.count("Did you mean") == 1


def test_help_groups_the_commands():
    text = CliRunner().invoke(cli.app, ["--help"]).stdout
    titles = ("Start here", "Models of your own data", "Experiments", "Data sets")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)


TINY = ["--set", "epochs=1", "--set", "hidden=4"]
SMALL = [*TINY, "--examples", "60", "--workers", "1"]
QUICK = {
    "fit": TINY,
    "run": [*SMALL, "--seeds", "1"],
    "select": [*SMALL, "--sweep=", "--seeds", "1", "--trials", "1"],
    "demo": ["--seeds", "1", "--workers", "1"],
    "bench": ["--quick", "--rounds", "1"],
    "board": [
        *("--learner", "erm", "--column", "digits-b01"),
        *("--seeds", "1", "--trials", "1", "--workers", "1"),
    ],
    "serve": ["--port", "0"],
    "stress": ["--learner", "erm", "--kind", "none", "--seeds", "1", "--workers", "1"],
}
"""What is added to the examples so that they take a second."""

SLOW = {"run", "select", "demo", "bench", "board", "report", "stress"}


def find_examples(path):
    lines = COMMANDS[path].epilog.split("\n\n")
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


EXAMPLES = [
    pytest.param(
        path, id=" ".join(path), marks=[pytest.mark.integration] * (path[0] in SLOW)
    )
    for path in COMMANDS
]


@pytest.fixture
def folder(files, monkeypatch):
    """The current folder, with all the files that examples use."""
    monkeypatch.chdir(files)
    frames = {name: pd.read_csv(f"clinic-{name}.csv") for name in "abc"}
    every = pd.concat([frame.assign(site=name) for name, frame in frames.items()])
    every.to_csv("clinics.csv", index=False)
    Path("clinics").mkdir()
    shutil.copy("clinic-a.csv", "clinics")
    write_idx(files / "downloads")
    tiny = replace(
        IMAGE_SETS["mnist"], counts=(4, 2), hashes=("",) * 4, mirrors=(), side=5,
        archive="", npm="", installed=str(files / "downloads"),
    )  # fmt: skip
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(IMAGE_SETS, name, replace(tiny, name=name))
    monkeypatch.setattr("cirm.cli.demo.LEARNERS", ("erm",))
    monkeypatch.setattr("cirm.stress.cells.CONDITIONS", (USUAL,))
    # A server would run until it is stopped; tests/serving starts real ones.
    monkeypatch.setattr(
        "cirm.cli.serve.run_server_until_stopped", lambda _, s: s.close()
    )
    Path("token.txt").write_text("0123456789abcdef")
    monkeypatch.setitem(demo.DATA, "examples", "60")
    return files


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_examples_of_the_help_work(path, cirm, folder, reweigh):
    if path[0] == "report":
        for name in ("table1", "table2"):
            shutil.copytree(RESULTS / name, folder / "reproduction" / name)
    elif path[0] in MODEL_COMMANDS:
        settings = {"epochs": 1, "hidden": (4,)}
        model = fit("clinic-a.csv", "outcome", learner=reweigh, settings=settings)
        if path[0] in ("diff", "rollback"):
            save(model, "triage-2.cirm")
            model = update(model, "clinic-b.csv", keep=3)
        save(model, "triage.cirm")
    examples = find_examples(path)
    assert examples
    for example in examples:
        program, *words = shlex.split(example)
        status, _, error = cirm(*words, *QUICK.get(path[0], []))
        assert (program, status) == ("cirm", 0), error


def write_idx(folder):
    """Write four tiny IDX files."""
    folder.mkdir()
    shapes = ((4, 5, 5), (4,), (2, 5, 5), (2,))
    for name, shape in zip(idx.IDX_PARTS, shapes, strict=True):
        header = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
        (folder / name).write_bytes(header + bytes(int(np.prod(shape))))
