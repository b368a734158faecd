"""Names read as plain words: functions are verbs, and one name means one thing."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path
    for folder in ("src/cirm", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
IRREGULAR = """
    begun bent born bought brought built chosen done drawn driven fed felt fought found
    given gone grown held hidden kept known laid led left lent lost made meant met paid
    said seen sent shown sold spent stood taken taught thought told torn understood
    woken worn won written
    """
# Verbs, adjectives and nouns that only look like participles.
NOT_PARTICIPLES = {
    "embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed",
}  # fmt: skip
# Conventions: each learner has a State; commands are named after what they do.
CONVENTIONS = {"State", "main", "app"}


def is_participle(name):
    """Whether a function's name is a participle such as `measured` or `found`."""
    word = name.strip("_")
    if "_" in word or word in NOT_PARTICIPLES:
        return False
    return bool(re.fullmatch(r"[a-z]+ed", word)) or word in IRREGULAR.split()


def functions(tree):
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and not node.name.startswith("__"):
            yield node.name


def test_functions_are_verbs_and_not_participles():
    names = [
        (str(path.relative_to(ROOT)), name)
        for path in FILES
        for name in functions(ast.parse(path.read_text()))
    ]
    assert [place for place in names if is_participle(place[1])] == []


def test_few_names_are_defined_in_more_than_one_file():
    places = defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef)
            if is_definition and not node.name.startswith("_"):
                places[node.name].add(path)
    repeated = {n for n, own in places.items() if len(own) > 1} - CONVENTIONS
    assert len(repeated) < 40, sorted(repeated)


@pytest.mark.parametrize("word", ["measured", "found", "_kept", "drawn"])
def test_participles_are_recognised(word):
    assert is_participle(word)


@pytest.mark.parametrize("word", ["measure", "read_rows", "seed", "split", "fit"])
def test_verbs_are_not_taken_for_participles(word):
    assert not is_participle(word)


def test_no_file_is_too_long_to_read():
    lengths = Counter({p: len(p.read_text().splitlines()) for p in FILES})
    assert [str(p) for p, lines in lengths.items() if lines > 520] == []
