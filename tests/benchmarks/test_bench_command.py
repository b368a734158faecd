"""`cirm bench` leaves numbers, tables and a page."""

import json

import pytest


@pytest.mark.integration
def test_the_command_leaves_numbers_tables_and_a_page(tmp_path, cirm):
    words = ("bench", "--quick", "--rounds", "1", "--part", "growth")
    status, printed, _ = cirm(*words, "--out", tmp_path)
    assert status == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    assert {row["axis"] for row in found["growth"]} >= {"examples", "features"}
    assert found["machine"]["threads"] == 1
    assert "| Monte-Carlo evaluations, vcl |" in printed
    assert (tmp_path / "bench.md").read_text() in printed
    assert "cirm bench" in (tmp_path / "bench.html").read_text().replace(
        "</span> <span>", " "
    )


@pytest.mark.integration
def test_tables_and_adapting_are_measured_beside_scikit_learn(tmp_path, cirm):
    words = ("bench", "--quick", "--rounds", "1", "--part", "tables", "--part", "adapt")
    status, printed, _ = cirm(*words, "--out", tmp_path)
    assert status == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    contenders = {row["contender"] for row in found["tables"]}
    assert contenders >= {"logistic regression", "gradient boosting", "erm", "steady"}
    for row in found["tables"]:
        assert 50 < row["accuracy"] < 100
        assert row["rows_per_second"] > 0
        assert (row["contender"] == "gradient boosting") <= (
            row["ratio"]["median"] == 1
        )
    assert [row["rows"] for row in found["adapt"]] == [50, 100]
    assert "| steady, 400 |" in printed


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("--part", "speed"),
            "--part: 'speed' is not one of tables, adapt, start, learners, growth, "
            "peers.",
        ),
        (
            ("--part", "peers"),
            "--part peers: use --peers PYTHON to name an interpreter",
        ),
        (("--peers", "nowhere"), "--peers: there is no interpreter 'nowhere'."),
    ],
)
def test_wrong_parts_are_refused(cirm, words, complaint):
    status, _, error = cirm("bench", "--quick", *words)
    assert status == 2
    assert complaint in error
