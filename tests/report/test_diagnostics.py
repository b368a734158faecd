import json
import re

import pytest

from cirm.records import ScoreRecord
from cirm.report import build_run_page
from cirm.report.diagnostics import (
    build_learner_diagnostics_section,
    collect_diagnostics_by_learner,
    describe_examples_of_diagnostics,
    describe_failed_diagnostics,
    summarise_diagnostics_by_learner,
)


def rows(learner, constant=(0, 0), split="diagnostic", stage=1):
    """Diagnostics of two seeds after a stage."""
    made = []
    for seed in range(2):
        numbers = {
            "worst group": 40.0 + 10 * seed,
            "agreement": 60.0,
            "calibration": 5.0,
            "calibration spread": 9.0,
            "slope penalty": 0.01,
            "constant": float(constant[seed]),
        }
        made += [
            ScoreRecord(learner, "sequential", seed, stage, "all", split, metric, value)
            for metric, value in numbers.items()
        ]
        for place, metric in (
            ("a", "worst group"),
            ("a: 0, reference wrong", "group score"),
        ):
            made.append(
                ScoreRecord(
                    learner, "sequential", seed, stage, place, split, metric, 33.0
                )
            )
    return made


def test_numbers_are_those_after_the_last_stage_over_seeds():
    early = [
        ScoreRecord("erm", "sequential", s, 0, "all", "diagnostic", "worst group", 0.0)
        for s in range(2)
    ]
    found = collect_diagnostics_by_learner([*early, *rows("erm")])["erm"]
    assert found.numbers["worst group"]["mean"] == 45.0
    assert found.numbers["worst group"]["std"] == pytest.approx(50**0.5)
    assert "constant" not in found.numbers
    json.dumps(summarise_diagnostics_by_learner(rows("erm")))


def test_a_seed_succeeds_if_no_failure_happened_to_it():
    found = collect_diagnostics_by_learner(
        rows("a", (1, 0)) + rows("b", (1, 1)) + rows("c")
    )
    assert [one.succeeded for one in found.values()] == [1, 0, 2]
    assert found["b"].failed == {"constant": 2}
    assert all(one.seeds == 2 for one in found.values())


def test_failures_are_named_with_whom_they_befell():
    found = collect_diagnostics_by_learner(
        rows("a", (1, 1)) + rows("b", (0, 1)) + rows("c")
    )
    (constant,) = describe_failed_diagnostics(found)
    expected = "Collapse to a constant (a in 2 of 2 seeds, b in 1 of 2 seeds): "
    assert constant.startswith(expected)
    assert describe_failed_diagnostics(collect_diagnostics_by_learner(rows("c"))) == []


def test_it_is_said_where_training_examples_had_to_serve():
    fresh, trained = rows("a"), rows("b", split="diagnostic on training data")
    assert "new examples" in describe_examples_of_diagnostics(
        collect_diagnostics_by_learner(fresh)
    )
    assert "training examples" in describe_examples_of_diagnostics(
        collect_diagnostics_by_learner(trained)
    )
    assert collect_diagnostics_by_learner(trained)["b"].trained


def test_a_page_without_diagnostics_has_no_such_section(records):
    assert build_learner_diagnostics_section(records, "accuracy") is None
    assert "Can the models be trusted?" not in build_run_page(records, "A run")


@pytest.mark.integration
def test_a_page_shows_them_beside_the_results_and_leaves_those_alone(records):
    text = build_run_page([*records, *rows("erm", (1, 1))], "A run", chance=50.0)
    plain = build_run_page(records, "A run", chance=50.0)
    assert "Can the models be trusted?" in re.findall("<h2>(.*?)</h2>", text)
    assert "Collapse to a constant (erm in 2 of 2 seeds)" in text
    assert "a: 0, reference wrong" in text
    results = re.search("<h2>Results</h2>.*?</section>", plain, re.DOTALL).group()
    assert results in text
