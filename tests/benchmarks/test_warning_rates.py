"""The benchmarks of warnings and verdicts run, and print a row for each case."""

import sys

from benchmarks import verdict_rates, warning_rates


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
