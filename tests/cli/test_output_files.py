"""No command replaces an input or another file unasked; all is written, or nothing."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cirm.cli.exit_codes import ExitCode

pytestmark = pytest.mark.integration  # whole commands or many simulations

QUICK = ["--learner", "erm", "--set", "epochs=2", "--set", "hidden=4"]
FIT = ["fit", "clinic-a.csv", "--target", "outcome", *QUICK]


@pytest.fixture
def fitted(cirm, files, monkeypatch):
    monkeypatch.chdir(files)
    status, _, error = cirm(*FIT, "--model", "m.cirm")
    assert status == 0, error
    Path("other.cirm").write_bytes(Path("m.cirm").read_bytes())
    Path("page.html").write_text("mine")
    Path("p.csv").write_text("mine")
    return files


def read_files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def unchanged(cirm, fitted):
    """Holds that words give one line and status 2, and change no file."""

    def hold(words, message):
        before = read_files(fitted)
        status, _, error = cirm(*words)
        assert status == 2, error
        assert message in error
        assert error.count("\n") == 1
        assert read_files(fitted) == before

    return hold


UPDATE = ["update", "clinic-b.csv", "--model", "m.cirm"]
PREDICT = ["predict", "clinic-b.csv", "--model", "m.cirm"]
EVALUATE = ["evaluate", "clinic-b.csv", "--model", "m.cirm"]
INSPECT = ["inspect", "m.cirm"]


@pytest.mark.parametrize(
    "words",
    [
        [*FIT, "--model", "m.cirm"],
        [*FIT, "--model", "new.cirm", "--report", "page.html"],
        [*UPDATE, "--out", "other.cirm"],
        [*UPDATE, "--report", "page.html"],
        [*PREDICT, "--out", "p.csv"],
        [*PREDICT, "--out", "new.csv", "--report", "page.html"],
        [*EVALUATE, "--report", "page.html"],
        [*INSPECT, "--report", "page.html"],
    ],
    ids=" ".join,
)
def test_an_existing_file_is_replaced_only_by_overwrite(cirm, unchanged, words):
    unchanged(words, "already exists. Use --overwrite to replace it, or ")
    status, _, error = cirm(*words, "--overwrite")
    assert status == 0, error
    assert Path("page.html" if "page.html" in words else words[-1]).stat().st_size > 4


@pytest.mark.parametrize(
    "words",
    [
        [*FIT, "--model", "clinic-a.csv"],
        [*UPDATE, "--out", "clinic-b.csv"],
        [*PREDICT, "--out", "clinic-b.csv"],
        [*PREDICT, "--out", "./clinic-b.csv"],
        [*PREDICT, "--out", "link.csv"],
    ],
    ids=" ".join,
)
def test_an_input_is_never_replaced(unchanged, words):
    Path("link.csv").symlink_to("clinic-b.csv")
    message = "is an input of this command. Choose another name."
    unchanged([*words, "--overwrite"], message)


RUN = ["run", "--dataset", "scm", "--examples", "20", "--set", "epochs=1"]


@pytest.mark.parametrize(
    "command",
    [
        *(RUN, ["demo"], ["select", "erm", "scm"], ["stress", "--quick"]),
        *(["reproduce", name] for name in ("table1", "figures", "theory", "all")),
        ["board", "--quick"],
    ],
    ids=" ".join,
)
def test_a_run_does_not_replace_files_that_are_not_of_a_run(unchanged, command):
    Path("mine").mkdir()
    Path("mine/report.html").write_text("mine")
    message = "'mine/report.html' already exists and was not written by an earlier run"
    unchanged([*command, "--out", "mine"], message)


def test_a_benchmark_does_not_replace_files_that_are_not_its_own(unchanged):
    Path("mine").mkdir()
    Path("mine/bench.md").write_text("mine")
    message = "'mine/bench.md' already exists and was not written by an earlier run"
    unchanged(["bench", "--quick", "--out", "mine"], message)


def test_a_run_replaces_its_own_results(cirm, fitted):
    words = [*RUN, "--seeds", "1", "--out", "results"]
    assert cirm(*words)[0] == 0
    Path("results/report.html").write_text("")
    assert cirm(*words)[0] == 0
    assert Path("results/report.html").stat().st_size > 1000


def test_figures_replace_figures(cirm, fitted):
    words = ["reproduce", "figures", "--out", "results"]
    assert cirm(*words)[0] == 0
    assert cirm(*words)[0] == 0


def test_two_results_need_two_files(unchanged):
    words = [*UPDATE, "--out", "new.html", "--report", "./new.html"]
    unchanged(words, "--report: the file 'new.html' is also named by --out.")


def test_updating_a_model_in_place_needs_no_permission(cirm, fitted):
    before = Path("m.cirm").read_bytes()
    assert cirm(*UPDATE, "--out", "./m.cirm")[0] == 0
    assert Path("m.cirm").read_bytes() != before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("none/p.html", "--report: the folder 'none' does not exist."),
        ("/proc/p.html", "--report: no file can be written to the folder '/proc':"),
    ],
)
@pytest.mark.parametrize("command", [UPDATE, PREDICT, EVALUATE, INSPECT])
def test_a_page_that_cannot_be_written_is_noticed_first(
    unchanged, command, place, message
):
    out = ["--out", "new.csv"] if command is PREDICT else []
    unchanged([*command, *out, "--report", place], message)


def test_a_disk_without_space_is_noticed_first(unchanged, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    unchanged(
        UPDATE, "--model: the disk that holds the folder '.' has only 1,000 bytes left"
    )


@pytest.fixture
def small_files():
    """No file can grow beyond 600 bytes, as on a disk that gets full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (UPDATE, "m.cirm"),
        ([*UPDATE, "--report", "new.html"], "new.html"),
        ([*PREDICT, "--out", "new.csv"], "new.csv"),
        ([*PREDICT, "--out", "new.tsv", "--report", "new.html"], "new.tsv"),
    ],
)
def test_a_disk_that_gets_full_changes_nothing(unchanged, small_files, words, name):
    small_files()
    unchanged(words, f"The file '{name}' cannot be written: file too large.")


def test_a_full_temporary_folder_is_named(cirm, fitted, small_files, monkeypatch):
    monkeypatch.setattr("cirm.data.rows.MEMORY_BYTES", 64)
    before = read_files(fitted)
    small_files()
    status, _, error = cirm(*UPDATE)
    assert status == 2
    assert f"A temporary file in {tempfile.gettempdir()!r} cannot be written" in error
    assert "TMPDIR" in error
    assert read_files(fitted) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device here")
@pytest.mark.parametrize("words", [["--json"], []])
def test_a_full_standard_output_is_one_line(fitted, words):
    command = [sys.executable, "-m", "cirm", "inspect", "m.cirm", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if "so far" not in line]
    assert len(lines) == 1
    assert "The standard output cannot be written: no space left" in lines[0]


@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize(
    "words",
    [
        INSPECT,
        [*INSPECT, "--history"],
        EVALUATE,
        ["compare", "clinic-a.csv", "clinic-b.csv", "--target", "outcome"],
        [*FIT, "--model", "new.cirm"],
        UPDATE,
        PREDICT,
        ["adapt", "clinic-b.csv", "--model", "default.cirm", "--out", "new.cirm"],
    ],
    ids=" ".join,
)
def test_files_are_written_though_nobody_reads_the_output(cirm, fitted, words, json):
    if words[0] == "adapt":
        fit = ("fit", "clinic-a.csv", "--target", "outcome", "--model", "default.cirm")
        assert cirm(*fit)[0] == 0
    if words[0] == "predict" and json:
        return  # predictions and the summary cannot both go to standard output
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does
    command = [sys.executable, "-m", "cirm", *words, "--report", "new.html", *json]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == ExitCode.CLOSED_PIPE, done.stderr
    assert "Traceback" not in done.stderr
    assert Path("new.html").read_text().rstrip().endswith("</html>")
    assert "new.cirm" not in words or Path("new.cirm").exists()
    if words is UPDATE:
        assert Path("m.cirm").read_bytes() != Path("other.cirm").read_bytes()


@pytest.mark.parametrize("command", [UPDATE, PREDICT])
def test_a_page_that_fails_leaves_the_rest_as_it_was(
    cirm, fitted, monkeypatch, command
):
    def fail(content, line):
        raise ValueError("no page")

    name = "build_model_page" if command is UPDATE else "build_prediction_page"
    monkeypatch.setattr(f"cirm.report.model_page.{name}", fail)
    before = read_files(fitted)
    out = ["--out", "p.csv", "--overwrite"] if command is PREDICT else []
    status, _, error = cirm(*command, *out, "--report", "new.html")
    assert (status, error.strip().splitlines()[-1]) == (2, "cirm: no page")
    assert read_files(fitted) == before
