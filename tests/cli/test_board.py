"""The command that makes the board: what it refuses, writes and continues."""

import json
import re
import shutil

import numpy as np
import pandas as pd
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


def write_table(folder, weight, rows=60):
    """Three places whose outcome follows x, with some weight of the noise."""
    folder.mkdir(parents=True)
    for seed, name in enumerate("abc"):
        rng = np.random.default_rng(seed)
        x, noise = rng.normal(size=(2, rows))
        y = np.where(x + weight * noise > 0, "yes", "no")
        pd.DataFrame({"x": x, "y": y}).to_csv(folder / f"{name}.csv", index=False)


def test_a_table_of_your_own_must_be_one(refused, tmp_path_factory):
    refused(["board", "--quick", "--table", "nowhere:y"], "no folder 'nowhere'")
    folder = tmp_path_factory.mktemp("tables") / "data"
    write_table(folder, 1.0)
    refused(["board", "--quick", "--table", f"{folder}:z"], "no column 'z'")


@pytest.mark.integration
def test_tables_in_folders_of_one_name_have_scores_of_their_own(cirm, tmp_path):
    words = ["board", "--quick", "--column", "data", "--seeds", "2", "--trials", "1"]
    words += ["--learner", "logistic", "--workers", "1", "--examples", "40"]
    words += ["--out", str(tmp_path / "out")]
    for name, weight in (("clear", 0.1), ("noisy", 4.0)):
        write_table(tmp_path / name / "data", weight)
        words += ["--table", f"{tmp_path / name / 'data'}:y"]
    status, _, error = cirm(*words)
    assert status == 0, error
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [c["name"] for c in summary["columns"]] == ["data", "noisy/data"]
    cells = summary["cells"]["logistic"]
    assert cells["data"]["unseen"]["mean"] > cells["noisy/data"]["unseen"]["mean"] + 10
    # Each seed draws 40 of the 60 rows, so that seeds differ.
    assert cells["noisy/data"]["unseen"]["std"] > 0


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
