"""The command that makes a stress map: what it refuses, writes and continues."""

import json

import pytest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--kind", "smell"],
            "--kind: 'smell' is not known. Use one of figure",
        ),
        (
            ["--quick", "--table", "here"],
            "--table: 'here' is not of the form FOLDER:COLUMN",
        ),
        (["--quick", "--learner", "nope"], "There is no learner 'nope'"),
        (["--source", "nowhere"], "no data set or folder 'nowhere'"),
        (["--quick", "--engine", "cloud"], "no engine 'cloud'"),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(refused, words, message):
    refused(["stress", *words], message)


@pytest.mark.integration
def test_a_map_leaves_a_summary_and_a_page_and_continues(cirm, tmp_path):
    words = ["stress", "--quick", "--kind", "table-numeric", "--seeds", "1"]
    words += ["--workers", "1", "--out", str(tmp_path)]
    status, printed, _ = cirm(*words)
    assert status == 0
    assert "table: numeric column" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    (usual, *_) = summary["cells"]
    assert summary["learner"] == "steady" and summary["seeds"] == [0]
    assert usual["unseen"]["mean"] > usual["erm"]["mean"]
    assert usual["adapted"]["all"]["mean"] > usual["unseen"]["mean"] + 5
    assert (tmp_path / "report.html").read_text().count("<svg") == 3
    for file in (tmp_path / "jobs").iterdir():
        file.unlink()  # the archive holds what is needed
    status, printed, _ = cirm(*words)
    assert status == 0 and "jobs have finished already; nothing to run." in printed
