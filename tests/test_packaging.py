"""What the package promises to those who install it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import cirm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
)

# A user's settings; the large libraries are passed over, which takes seconds off.
CHECKER = """[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-numpy.*,torch.*,pandas.*]
follow_imports_for_stubs = True
[mypy-cirm.*]
follow_imports = silent
"""


def plain(name):
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirement):
    return plain(re.match(r"[\w.-]+", requirement).group())


@pytest.mark.parametrize(
    "extra", ["ray", "flower", "tensorboard", "parquet", "serve", "dev"]
)
def test_the_extra_is_offered(extra):
    assert PROJECT["optional-dependencies"][extra]


def test_torch_may_be_any_version_since_2_6():
    assert "torch>=2.6" in PROJECT["dependencies"]


def test_python_may_be_any_version_since_3_11():
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_package_ships_its_types():
    assert (Path(cirm.__file__).parent / "py.typed").is_file()


def checked(folder, *lines):
    """What a type checker says of a user's script."""
    (folder / "mypy.ini").write_text(CHECKER)
    (folder / "script.py").write_text("\n".join(["import cirm", *lines]))
    command = [sys.executable, "-m", "mypy", "--no-incremental", "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.stdout


@pytest.mark.integration
def test_a_user_s_type_checker_sees_what_the_public_names_are(tmp_path):
    names = [f"reveal_type(cirm.{name})" for name in cirm.__all__]
    made = "reveal_type(cirm.InvariantClassifier())"
    said = checked(tmp_path, made, *names, "cirm.Nothing")
    first, *others = re.findall('Revealed type is "(.*)"', said)
    assert first == "cirm.estimator.classifier.InvariantClassifier"
    assert len(others) == len(cirm.__all__)
    assert [other for other in others if not re.match(r"def (\[.*\] )?\(", other)] == []
    assert 'Module has no attribute "Nothing"' in said
    assert "Found 1 error" in said


def test_the_package_knows_its_version():
    assert cirm.__version__ == PROJECT["version"]


@pytest.mark.parametrize("name", cirm.__all__)
def test_every_public_name_is_there(name):
    assert getattr(cirm, name).__doc__


def test_a_name_that_is_not_public_is_missed_in_the_usual_way():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = cirm.Nothing


def test_the_licence_is_the_one_that_is_declared():
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_all_that_is_needed_directly_has_a_tested_version():
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["dev"]]
    needed += [*extras["parquet"], *extras["tensorboard"]]
    pinned = {plain(name) for name in PINS}
    assert {named(requirement) for requirement in needed} - {"cirm"} <= pinned


def test_the_pin_of_torch_takes_either_build():
    assert PINS["torch"] == "2.13.0"


def test_the_pins_are_among_what_is_asked_for():
    pins = {plain(name): version for name, version in PINS.items()}
    for text in PROJECT["dependencies"]:
        asked = Requirement(text)
        assert asked.specifier.contains(pins[plain(asked.name)]), text


def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "cirm", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert cirm.__version__ in done.stdout
