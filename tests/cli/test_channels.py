"""Standard input and output, JSON, and the exit status of every command."""

import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from cirm.cli.exit_codes import MEANINGS, ExitCode

pytestmark = pytest.mark.integration  # whole commands or many simulations

ROOT = Path(__file__).parents[2]
QUICK = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")
FIT = ("--target", "outcome", "--model", "m.cirm")


@pytest.fixture(autouse=True)
def folder(files, monkeypatch):
    monkeypatch.chdir(files)


@pytest.fixture
def piped(cirm, monkeypatch):
    """Runs a command with a file on standard input."""

    def run(name, *words):
        content = io.TextIOWrapper(io.BytesIO(Path(name).read_bytes()))
        monkeypatch.setattr("sys.stdin", content)
        return cirm(*words)

    return run


@pytest.fixture
def fitted(cirm):
    assert cirm("fit", "clinic-a.csv", *FIT)[0] == 0


@pytest.fixture
def failing(monkeypatch):
    """Lets an evaluation fail by an error."""

    def set_error(error):
        def fail(*arguments, **options):
            raise error

        module = importlib.import_module("cirm.model.evaluate")
        monkeypatch.setattr(module, "evaluate", fail)

    return set_error


def test_every_command_reads_standard_input(cirm, piped):
    # Which rows are held out depends on the name of the environment.
    words = ("--target", "outcome", "--held-out", "0", "--model")
    assert piped("clinic-a.csv", "fit", "-", *words, "m.cirm")[0] == 0
    assert cirm("fit", "clinic-a.csv", *words, "f.cirm")[0] == 0
    model = ("--model", "m.cirm")
    assert piped("clinic-b.csv", "update", "-", *model)[0] == 0
    assert cirm("update", "clinic-b.csv", "--model", "f.cirm")[0] == 0
    status, table, _ = piped("clinic-c.csv", "predict", "-", *model, "--out", "-")
    assert status == 0
    assert table == cirm("predict", "clinic-c.csv", "--model", "f.cirm")[1]
    adapted = ("adapt", "-", *model, "--out", "c.cirm", "--json")
    status, text, _ = piped("clinic-c.csv", *adapted)
    assert (status, json.loads(text)["adaptation"]["rows"]) == (0, 200)
    status, text, _ = piped("clinic-c.csv", "evaluate", "-", *model, "--json")
    assert (status, json.loads(text)["rows"]) == (0, 200)
    words = ("predict", "-", *model, "--adapt")
    assert piped("clinic-c.csv", *words)[1].count("\n") == 201


def test_standard_input_is_one_environment_with_a_digest(cirm, piped):
    piped("clinic-a.csv", "fit", "-", *FIT)
    entry = json.loads(cirm("inspect", "m.cirm", "--json")[1])["history"][0]
    (digest,) = entry["files"].values()
    cirm("fit", "clinic-a.csv", "--target", "outcome", "--model", "f.cirm")
    other = json.loads(cirm("inspect", "f.cirm", "--json")[1])["history"][0]
    assert (entry["name"], entry["files"]) == (
        "standard input",
        {entry["name"]: digest},
    )
    assert [digest] == list(other["files"].values())


def test_semicolons_of_spreadsheets_with_decimal_commas_are_read(cirm, piped):
    table = pd.read_csv("clinic-a.csv")
    numbers = [name for name in table if table[name].dtype == float]
    assert numbers
    table["note; of the ward"] = "a, b"
    table.to_csv("german.csv", sep=";", decimal=",", index=False, encoding="utf-8-sig")
    # Which rows are held out depends on the name of the file.
    options = ("--target", "outcome", "--held-out", "0", "--model")
    ignored = ("--ignore", "note; of the ward")
    assert cirm("fit", "clinic-a.csv", *options, "c.cirm")[0] == 0
    assert cirm("fit", "german.csv", *ignored, *options, "g.cirm")[0] == 0
    shown = cirm("predict", "german.csv", "--model", "g.cirm")[1]
    wanted = cirm("predict", "clinic-a.csv", "--model", "c.cirm")[1]
    probabilities = [
        pd.read_csv(io.StringIO(text))["probability"] for text in (shown, wanted)
    ]
    assert (probabilities[0] - probabilities[1]).abs().max() < 1e-5
    assert piped("german.csv", "predict", "-", "--model", "g.cirm")[1] == shown


def test_kept_columns_are_written_as_the_file_has_them(cirm):
    table = pd.read_csv("clinic-a.csv", dtype=str)
    table["postcode"] = [f"0{1000 + n % 37}" for n in range(len(table))]
    table.loc[3, "age"] = ""
    table.to_csv("codes.csv", index=False)
    assert cirm("fit", "codes.csv", *FIT)[0] == 0
    words = ("--model", "m.cirm", "--keep", "postcode", "--keep", "age")
    shown = pd.read_csv(
        io.StringIO(cirm("predict", "codes.csv", *words)[1]),
        dtype=str,
        keep_default_na=False,
    )
    assert shown["postcode"].tolist() == table["postcode"].tolist()
    assert shown["age"].tolist() == table["age"].tolist()
    plain = cirm("predict", "codes.csv", "--model", "m.cirm")[1]
    assert pd.read_csv(io.StringIO(plain))["probability"].tolist() == [
        float(p) for p in shown["probability"]
    ]


def test_a_bad_row_of_standard_input_is_named(piped, fitted):
    text = Path("clinic-b.csv").read_text().splitlines()
    cells = text[3].split(",")
    cells[1] = "old"
    text[3] = ",".join(cells)
    Path("bad.csv").write_text("\n".join(text))
    status, _, error = piped("bad.csv", "predict", "-", "--model", "m.cirm")
    assert status == 2
    assert error.startswith("cirm: standard input, row 3: column 'age' has the value")
    Path("empty.csv").write_text("")
    status, _, error = piped("empty.csv", "evaluate", "-", "--model", "m.cirm")
    assert (status, error.startswith("cirm: standard input: the file is empty")) == (
        2,
        True,
    )


def test_a_large_standard_input_is_read_in_chunks(piped, fitted, monkeypatch):
    monkeypatch.setattr("cirm.data.table_files.CHUNK_ROWS", 60)
    _, table, _ = piped("clinic-c.csv", "predict", "-", "--model", "m.cirm")
    frame = pd.read_csv(io.StringIO(table))
    assert frame["patient"].tolist() == pd.read_csv("clinic-c.csv")["patient"].tolist()


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "none.csv", *FIT),
        ("update", "none.csv", "--model", "m.cirm"),
        ("adapt", "none.csv", "--model", "m.cirm", "--out", "n.cirm"),
        ("predict", "none.csv", "--model", "m.cirm"),
        ("evaluate", "none.csv", "--model", "m.cirm"),
        ("inspect", "none.cirm"),
        ("diff", "none.cirm", "none.cirm"),
        ("rollback", "none.cirm"),
        ("run", "--dataset", "none"),
    ],
    ids=lambda words: words[0],
)
def test_errors_are_json_if_json_is_wanted(cirm, words):
    status, out, error = cirm(*words, "--json")
    content = json.loads(out)["error"]
    assert (status, content["status"]) == (2, 2)
    assert error == f"cirm: {content['message']}\n"


def test_wrong_usage_is_json_if_json_is_wanted(cirm):
    for words in (("evaluate", "--nope"), ("nope",), ("fit",)):
        status, out, _ = cirm(*words, "--json")
        assert (status, json.loads(out)["error"]["status"]) == (2, 2)


def test_a_defect_is_reported_as_one(cirm, fitted, failing):
    failing(RuntimeError("no such thing"))
    words = ("evaluate", "clinic-b.csv", "--model", "m.cirm")
    status, _, error = cirm(*words)
    assert status == ExitCode.DEFECT
    assert "RuntimeError: no such thing" in error
    assert "This is a bug in cirm." in error
    status, out, _ = cirm(*words, "--json")
    assert json.loads(out)["error"]["status"] == status == ExitCode.DEFECT


def test_too_little_memory_is_said_in_one_line(cirm, fitted, failing):
    failing(MemoryError)
    status, _, error = cirm("evaluate", "clinic-b.csv", "--model", "m.cirm")
    assert (status, error.count("\n")) == (2, 1)
    assert "ran out of memory" in error


def test_an_interrupted_command_is_json_too(cirm, fitted, failing):
    failing(KeyboardInterrupt)
    words = ("evaluate", "clinic-b.csv", "--model", "m.cirm")
    assert cirm(*words)[0] == ExitCode.INTERRUPTED
    status, out, _ = cirm(*words, "--json")
    error = json.loads(out)["error"]
    assert error["status"] == status == ExitCode.INTERRUPTED
    assert error["message"].startswith("The command was interrupted, so nothing was")


@pytest.mark.integration
def test_a_reader_that_leaves_is_no_error(cirm, fitted):
    for _ in range(6):  # more than a pipe holds
        rows = Path("clinic-c.csv").read_text().partition("\n")
        Path("clinic-c.csv").write_text("".join([*rows, rows[2]]))
    command = f"{sys.executable} -m cirm predict clinic-c.csv --model m.cirm"
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("patient,prediction")
    assert (done.returncode, done.stderr) in ((0, ""), (ExitCode.CLOSED_PIPE, ""))


def test_run_prints_its_summary_as_json(cirm):
    words = ("run", "--dataset", "scm", "--learner", "erm", "--seeds", "1")
    words += ("--examples", "50", "--set", "epochs=1", "--out", "results", "--json")
    for _ in range(2):  # the second time nothing is left to run
        status, out, _ = cirm(*words)
        assert status == 0
        content = json.loads(out)
        assert (content["folder"], content["failures"]) == ("results", {})
        stored = json.loads(Path("results/summary.json").read_text())
        assert content["learners"] == stored["learners"]


def test_run_tells_failed_jobs_in_json(cirm):
    words = ("run", "--dataset", "scm", "--learner", "erm", "--seeds", "1")
    words += ("--examples", "50", "--set", "epochs=2", "--set", "rate=1e30")
    words += ("--set", "optimiser=sgd", "--out", "results", "--json")
    status, out, _ = cirm(*words)
    assert status == ExitCode.FAILED_JOBS
    assert list(json.loads(out)["failures"])


def test_every_exit_status_in_the_code_is_in_the_table():
    assert set(MEANINGS) == set(ExitCode)
    for path in (ROOT / "src" / "cirm" / "cli").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"(typer\.Exit|sys\.exit)\(\d", text), path
