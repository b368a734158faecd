"""The benchmarks of warnings and verdicts run, and print a row for each case."""

import sys

import pytest

from benchmarks import verdict_rates, warning_rates
from cirm.records import RunRecord, ScoreRecord
from cirm.runs.archive import FinishedJobArchive, pack_job_records, save_job_archive


@pytest.mark.integration
def test_a_warning_that_states_what_it_counts_is_always_right(capsys, monkeypatch):
    words = ["benchmarks", "--repeats", "10", "--only", "unknown categories"]
    monkeypatch.setattr(sys, "argv", words)
    warning_rates.main()
    heading, _, row = capsys.readouterr().out.splitlines()
    assert "precision, %" in heading
    assert row.startswith("| update | unknown categories | 10 |")
    assert row.endswith("| 100 | 100 |")


def test_an_alarm_is_rare_at_equal_places_and_certain_after_a_large_fall():
    assert verdict_rates.measure_alarm_rate(0.85, 2, 0.0, 0.0, 10) <= 20
    assert verdict_rates.measure_alarm_rate(0.85, 2, 0.0, 0.15, 10) == 100


def pack_stress_job(data, *found):
    """A job of the stress map whose seeds found these features unstable."""
    names = sorted({name for own in found for name in own})
    place = [("steady", "sequential", seed, 1) for seed in range(len(found))]
    rows = [
        ScoreRecord(*place[seed], name, "unstable", "found", value)
        for seed, own in enumerate(found)
        for name, value in [("all", len(own)), *((n, int(n in own)) for n in names)]
    ]
    run = RunRecord("steady", "sequential", tuple(range(len(found))), {}, data, "")
    return pack_job_records([*rows, run])


def test_warnings_over_a_stress_map_are_counted_by_what_was_planted(
    capsys, monkeypatch, tmp_path
):
    jobs = [
        ({"name": "shortcuts", "kind": "corner"}, {"direction 1"}, set()),
        ({"name": "shortcuts", "kind": "corner", "shortcut": False}, set(), set()),
        ({"name": "shortcuts", "kind": "none"}, {"direction 1"}, set()),
        ({"name": "planted", "columns": 3}, {"column 4"}, {"column 4", "column 1"}),
        ({"name": "planted", "columns": 3, "shortcut": False}, {"column 2"}, set()),
    ]
    archive = FinishedJobArchive()
    for key, (data, *found) in enumerate(jobs):
        archive.entries[str(key)] = pack_stress_job(data, *found)
    save_job_archive(archive, tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--stress", str(tmp_path)])
    warning_rates.main()
    images, tables = capsys.readouterr().out.splitlines()[2:]
    assert images.endswith("| 6 | 2 | 2 | 50 | 50 |")
    assert tables.endswith("| 5 | 2 | 4 | 50 | 100 |")
