"""An interrupted measurement is continued."""

import json

import pytest

from benchmarks.resume import measure_missing


def test_each_run_is_written_at_once_and_only_missing_ones_are_measured(tmp_path):
    path, calls = tmp_path / "new" / "scores.jsonl", []
    runs = [{"table": "a", "seed": seed} for seed in range(3)]

    def fail_at_last(run):
        calls.append(run["seed"])
        if run["seed"] == 2:
            raise RuntimeError
        return {"score": 10 * run["seed"]}

    with pytest.raises(RuntimeError):
        measure_missing(path, runs, fail_at_last)
    assert len(path.read_text().splitlines()) == 2
    records = measure_missing(path, runs, lambda run: {"score": 7})
    assert calls == [0, 1, 2]
    assert [record["score"] for record in records] == [0, 10, 7]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert written == records


def test_runs_that_cannot_be_measured_are_left_out(tmp_path):
    path = tmp_path / "scores.jsonl"
    assert measure_missing(path, [{"seed": 0}], lambda run: {}) == []
    assert not path.exists()
