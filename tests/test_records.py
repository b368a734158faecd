"""Records come back as they were written, and a file is whole or untouched."""

import json
import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm import records
from cirm.records import RunRecord, ScoreRecord, TrainingCurveRecord

SCORE = ScoreRecord("erm", "joint", 3, 0, "unseen", "test", "accuracy", 12.5, 0.9)
CURVE = TrainingCurveRecord("erm", "joint", 3, 0, 10, "loss", 0.69)
RUN = RunRecord(
    "erm",
    "sequential",
    (0, 1),
    {"rate": 0.001, "hidden": [100, 100], "penalty": None},
    {"name": "colored"},
    "given",
    {"examples": 100},
    1.5,
)
text, whole = st.text(), st.integers()
number = st.floats(allow_nan=False)
score = st.builds(
    ScoreRecord, text, text, whole, whole, text, text, text, number, st.none() | number
)
curve = st.builds(TrainingCurveRecord, text, text, whole, whole, whole, text, number)
plain = st.dictionaries(text, st.none() | st.booleans() | whole | number | text)
run = st.builds(
    RunRecord, text, text, st.lists(whole).map(tuple), plain, plain, text, plain, number
)


@given(score | curve | run)
def test_a_record_is_read_back_from_its_line(record):
    line = records.format_record_as_json(record)
    assert len(line.splitlines()) == 1
    assert records.parse_record(line) == record


def test_a_value_that_is_not_a_number_comes_back_as_one():
    back = records.parse_record(
        records.format_record_as_json(replace(SCORE, value=float("nan")))
    )
    assert back.value != back.value


def test_a_file_of_records_is_read_back_in_order(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    records.write_records(path, [RUN, SCORE, CURVE, SCORE])
    assert records.read_records(path) == [RUN, SCORE, CURVE, SCORE]


def test_empty_lines_hold_nothing(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(f"\n{records.format_record_as_json(SCORE)}\n\n")
    assert records.read_records(path) == [SCORE]


def test_names_in_any_script_survive_on_disc(tmp_path):
    path = tmp_path / "records.jsonl"
    strange = replace(SCORE, environment="клиника\u2028\x85\n№ 1")
    records.write_records(path, [strange, SCORE])
    assert records.read_records(path) == [strange, SCORE]


def test_a_line_is_plain_json_with_its_kind():
    row = json.loads(records.format_record_as_json(CURVE))
    assert row["kind"] == "curve"
    assert row["value"] == 0.69


@pytest.mark.parametrize(
    "line",
    [
        records.format_record_as_json(SCORE)[:-9],
        "[]",
        "7",
        "{}",
        '{"kind": "scores"}',
        '{"kind": []}',
        '{"kind": "score", "learner": "erm"}',
        records.format_record_as_json(SCORE).replace('"seed"', '"sead"'),
        records.format_record_as_json(RUN).replace("[0, 1]", "0"),
    ],
)
def test_a_line_that_is_no_record_is_refused(line):
    with pytest.raises(
        ValueError,
        match=r"^the line is not a JSON record of one of the kinds score, ",
    ) as no:
        records.parse_record(line)
    assert repr(line[:100]) in str(no.value)


@given(st.text())
def test_any_text_is_refused_in_one_sentence(line):
    with pytest.raises(
        ValueError,
        match=r"^the line is not a JSON record .* score, adapted, curve, run: ",
    ):
        records.parse_record(line)


def test_a_torn_file_is_refused_with_its_path_and_row(tmp_path):
    path = tmp_path / "records.jsonl"
    records.write_records(path, [RUN, SCORE, CURVE])
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=r"records\.jsonl, row 3: the line is not"):
        records.read_records(path)


def test_writing_replaces_what_was_there_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "records.jsonl"
    records.write_records(path, [SCORE, SCORE])
    records.write_records(path, [CURVE])
    assert records.read_records(path) == [CURVE]
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "records.jsonl"
    records.write_records(path, [SCORE])
    with pytest.raises(TypeError, match="not JSON serializable"):
        records.write_records(path, [CURVE, replace(RUN, settings={"rate": object()})])
    assert records.read_records(path) == [SCORE]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disc_that_fails_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "records.jsonl"
    records.write_records(path, [SCORE])

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="no space left"):
        records.write_records(path, [CURVE])
    assert records.read_records(path) == [SCORE]
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "records.jsonl"
    records.write_records(path, [SCORE])

    def interrupted():
        yield CURVE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        records.write_records(path, interrupted())
    assert records.read_records(path) == [SCORE]
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_kept_in_utf_8(tmp_path):
    path = tmp_path / "report.html"
    records.write_text_atomically(path, "89 ± 1 %")
    assert path.read_bytes() == "89 ± 1 %".encode()


def test_a_file_has_the_permissions_that_the_user_gives_files(tmp_path):
    before = os.umask(0o027)
    try:
        records.write_text_atomically(tmp_path / "report.html", "private")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o640
