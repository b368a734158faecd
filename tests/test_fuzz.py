"""Odd inputs of every kind are accepted, or refused in one line."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).parent / "fuzz.py")
fuzz = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fuzz)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    fuzz.make_folder(folder)
    return folder


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_an_odd_input_is_accepted_or_refused_in_one_line(root, kind):
    for number in range(2):
        assert fuzz.try_input(root, kind, number) in ("accepted", "refused")


# A table without hinges, a target of 1e308, a later place of one row, images of one
# row, damaged text in a Parquet file, a control character in place of a number, and a
# lone dash as the value of an option.
FAILED_ONCE = [
    ("tables of odd cells", 689),
    ("tables of odd cells", 200129),
    ("odd later tables", 100095),
    ("tables on standard input", 500218),
    ("NPZ files", 166),
    ("Parquet files", 122),
    ("Parquet files", 700587),
    ("Parquet files", 1300067),
    ("model files with a replaced value", 288),
    ("odd options", 244),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("start", "number"), FAILED_ONCE)
def test_an_odd_input_that_failed_once_does_not_fail_again(root, start, number):
    (kind,) = (name for name in fuzz.KINDS if name.startswith(start))
    assert fuzz.try_input(root, kind, number) in ("accepted", "refused")


@pytest.mark.integration
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_many_odd_inputs_are_accepted_or_refused_in_one_line(root, kind):
    outcomes = {fuzz.try_input(root, kind, number) for number in range(2, 30)}
    assert outcomes <= {"accepted", "refused"}


def test_the_documentation_has_the_table_of_all_kinds_without_a_failure():
    text = fuzz.DOCUMENT.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    counts = {row[0].removeprefix("| "): row[1:] for row in rows}
    assert set(fuzz.KINDS) <= set(counts)
    total = [int(part.rstrip(" |").replace(",", "")) for part in counts["**all**"]]
    assert total[0] >= 300
    assert total[3] == 0
