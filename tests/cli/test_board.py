"""The command that makes the board: what it refuses, writes and continues."""

import json
import re
import shutil

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--quick", "--column", "smell"],
            "'smell' is not known. Use one of digits-b01",
        ),
        (
            ["--quick", "--table", "here"],
            "--table: 'here' is not of the form FOLDER:COLUMN",
        ),
        (["--quick", "--learner", "nope"], "There is no learner 'nope'"),
        (["--quick", "--engine", "cloud"], "no engine 'cloud'"),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(refused, words, message):
    refused(["board", *words], message)


@pytest.mark.integration
def test_a_board_leaves_a_summary_a_page_and_markdown_and_continues(cirm, tmp_path):
    out = tmp_path / "out"
    words = ["board", "--quick", "--column", "table", "--learner", "logistic"]
    words += ["--learner", "steady", "--seeds", "2", "--workers", "1"]
    words += ["--out", str(out)]
    status, printed, error = cirm(*words)
    assert status == 0
    assert "3 learners on 1 data set: first 6 trials" in printed
    assert "Expected cost of the whole board: " in error
    assert re.search(
        r"^table +steady ", printed, re.MULTILINE
    )  # the best learner of the data set
    summary = json.loads((out / "summary.json").read_text())
    cells = {row: own["table"] for row, own in summary["cells"].items()}
    assert set(cells) == {"logistic", "logistic, last place", "steady"}
    assert cells["steady"]["unseen"]["mean"] > cells["logistic"]["unseen"]["mean"]
    assert cells["steady"]["adapted"]["mean"] > cells["steady"]["unseen"]["mean"]
    assert "| steady |" in (out / "board.md").read_text()
    assert "<svg" in (out / "report.html").read_text()
    written = {file: file.stat().st_mtime_ns for file in (out / "jobs").iterdir()}
    status, again, error = cirm(*words)
    assert status == 0 and "cirm board, trials" not in again
    assert "Expected cost" not in error  # nothing is left to run
    assert written == {f: f.stat().st_mtime_ns for f in (out / "jobs").iterdir()}
    assert json.loads((out / "summary.json").read_text())["cells"] == summary["cells"]
    shutil.rmtree(out / "jobs")  # as in a clone, which has the archive only
    status, again, _ = cirm(*words)
    assert status == 0 and "cirm board, trials" not in again
    assert set(written) == set((out / "jobs").iterdir())
