"""Every public name says what its parameters mean, with an example that runs."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import cirm
from cirm.cli import COMMANDS, import_cli_command
from cirm.data import DATASETS, get_dataset_class
from cirm.learners import LEARNERS, get_learner_class
from cirm.learners.base import Learner

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Examples?):$")
EXPORTS = {f"cirm.{name}": getattr(cirm, name) for name in cirm.__all__}
CLASSES = {
    **{f"learner {key}": get_learner_class(key) for key in LEARNERS},
    **{f"data set {key}": get_dataset_class(key) for key in DATASETS},
}
ADAPTING = ("sfb", "t3a", "tent", "label-shift")  # their table has other columns
SHARED = {field.name for field in dataclasses.fields(Learner)}


def sections(thing):
    """The lines of a Google-style docstring by section."""
    found, name = {"": []}, ""
    for line in inspect.cleandoc(thing.__doc__ or "").splitlines():
        if heading := SECTION.match(line):
            name = heading.group(1).removesuffix("s") + "s"
            found[name] = []
        else:
            found[name].append(line)
    return found


def described(thing):
    """The parameters that a docstring describes."""
    own = sections(thing)
    lines = [*own.get("Args", []), *own.get("Attributes", [])]
    entries = [re.match(r"    (\*{0,2}\w+)( \(.*?\))?: +\S", line) for line in lines]
    return {entry.group(1).lstrip("*") for entry in entries if entry}


def parameters(thing):
    """The parameters of a function, or those with which a class is created."""
    try:
        names = inspect.signature(thing).parameters
    except ValueError:
        return set()
    return {name for name in names if name not in ("self", "cls")}


@pytest.mark.parametrize("name", EXPORTS)
def test_every_parameter_of_an_exported_name_is_described(name):
    thing = EXPORTS[name]
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        pytest.skip("not something that is called")
    assert parameters(thing) - described(thing) == set()


@pytest.mark.parametrize("name", EXPORTS)
def test_every_exported_name_has_an_example_that_the_tests_run(name):
    thing = EXPORTS[name]
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        pytest.skip("not something that is called")
    assert ">>>" in (thing.__doc__ or "")


@pytest.mark.parametrize("name", CLASSES)
def test_every_setting_of_a_learner_or_data_set_is_described(name):
    cls = CLASSES[name]
    fields = {field.name for field in dataclasses.fields(cls)}
    shared = SHARED if issubclass(cls, Learner) else set()
    assert fields - shared - described(cls) == set()


def test_every_learner_is_in_the_table_and_on_the_page_of_learners():
    docs = Path(__file__).parents[1] / "docs"
    table, page = (
        (docs / name).read_text() for name in ("learners.md", "api/learners.md")
    )
    for key in LEARNERS:
        assert f"`{key}`" in table
        if key != "steady":  # it has a page of its own
            module = get_learner_class(key).__module__
            assert f"::: {module}.{LEARNERS[key]}\n" in page


def test_presets_in_the_table_of_learners_exist():
    table = Path(__file__).parents[1] / "docs" / "learners.md"
    for line in table.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        key = re.match(r"`([\w-]+)`", cells[0])
        if key and len(cells) == 5 and key.group(1) not in ADAPTING:
            presets = set(get_learner_class(key.group(1)).presets)
            assert set(re.findall("`(.*?)`", cells[4])) <= presets


def test_what_all_learners_share_is_described_once():
    assert described(Learner) >= SHARED


@pytest.mark.parametrize("name", EXPORTS)
def test_a_function_that_returns_something_says_what(name):
    thing = EXPORTS[name]
    if not inspect.isfunction(thing):
        pytest.skip("not a function")
    if inspect.signature(thing).return_annotation in (None, "None"):
        return
    assert {"Returns", "Yields"} & set(sections(thing))


def list_anchors(page):
    """What links to the headings of a page end in."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    words = [re.sub(r"[^\w\s-]", "", heading.lower()) for heading in headings]
    return {re.sub(r"\s+", "-", word.strip()) for word in words}


def test_every_link_between_pages_leads_somewhere():
    root = Path(__file__).parents[1]
    pages = [
        page
        for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/**/*.md")
        for page in root.glob(pattern)
    ]
    links = [
        (page, *link.partition("#")[::2])
        for page in pages
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not link.startswith("http")
    ]
    assert len(links) > 100
    broken = []
    for page, path, anchor in links:
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in list_anchors(target)):
            broken.append((page.name, path, anchor))
    assert broken == []


PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md")
    for page in Path(__file__).parents[1].glob(pattern)
    if page.name != "CHANGELOG.md"  # which also names what is gone
)
COMMAND = re.compile(rf"\bcirm ({'|'.join(COMMANDS)})\b((?:\\\n|[^`\n|#])*)")


def list_options(command):
    """What a command takes, with the settings of all data sets where it takes them."""
    loaded = import_cli_command(command)
    known = set()
    for one in (loaded, *getattr(loaded, "commands", {}).values()):
        known |= {text for option in one.params for text in option.opts}
    if command in ("run", "select"):
        for key in DATASETS:
            names = [field.name for field in dataclasses.fields(get_dataset_class(key))]
            known |= {f"--{name.replace('_', '-')}" for name in names}
    return known | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_of_a_command_on_a_page_exists(page):
    for command, rest in COMMAND.findall(page.read_text()):
        used = set(re.findall(r"(?<=\s)--[a-z][\w-]*", rest))
        assert used - list_options(command) == set(), f"cirm {command}{rest}"


def test_the_pages_show_many_commands():
    text = "".join(page.read_text() for page in PAGES)
    shown = {command for command, _ in COMMAND.findall(text)}
    assert shown == set(COMMANDS)
