"""The page of results kept in docs is the one that its records make."""

import re
import shutil
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "results.md").read_text("utf-8")


@pytest.fixture(scope="module")
def words():
    """The command that the page says it was made by, without its program's name."""
    (command,) = re.findall(r"^Made by `cirm (report .+)`; do not edit\.$", PAGE, re.M)
    return command.split()


@pytest.mark.integration
def test_the_page_of_results_is_what_its_command_makes_of_the_kept_records(
    cirm, monkeypatch, tmp_path, words
):
    copy = tmp_path / "docs" / "results"
    left = shutil.ignore_patterns("jobs", "inferred", "report.html")
    shutil.copytree(DOCS / "results", copy, ignore=left)
    monkeypatch.chdir(tmp_path)
    status, _, _ = cirm(*words)
    assert status == 0
    assert (tmp_path / "docs" / "results.md").read_text("utf-8") == PAGE


def test_the_page_of_results_has_every_table_that_records_are_kept_of(words):
    kept = {
        path.parent.name
        for path in DOCS.glob("results/*/records.json")
        if path.with_name("tables.md").is_file()
    }
    assert kept
    assert {Path(word).name for word in words[1:-2]} == kept


def test_every_picture_of_the_page_of_results_is_kept():
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE)
    assert pictures
    assert [name for name in pictures if not (DOCS / name).is_file()] == []


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("../README.md", r"(\d+) match, (\d+) are better and (\d+) differ"),
        (
            "reproduction.md",
            r"(\d+) of ours match, (\d+) are better by a rule, and (\d+)",
        ),
        ("reproduction.md", r"\| all \| [\d, ]+ \| (\d+), (\d+), (\d+) \|"),
    ],
)
def test_other_pages_count_the_verdicts_as_the_page_of_results_does(page, sentence):
    (counts,) = re.findall(
        r"(\d+) match ours, (\d+) of ours .+? and (\d+) differ", PAGE
    )
    text = (DOCS / page).read_text("utf-8")
    assert re.findall(sentence, text) == [counts]
