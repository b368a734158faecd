import math

import pytest

from cirm.paper import EXPERIMENTS, get_paper_experiment
from cirm.paper.verdicts import (
    check_claims_of_paper,
    compare_cells_with_paper,
    compare_with_published_value,
    summarise_verdicts_of_experiment,
)

TABLES = [name for name in EXPERIMENTS if name.startswith("table")]


def as_printed(name, shift=0.0):
    """What would be measured if our means were the paper's, moved by a shift."""
    measured = {}
    for row in get_paper_experiment(name).rows:
        for wanted in row.cells:
            if wanted.paper:
                entry = measured.setdefault(row.name, {}).setdefault(
                    wanted.learner, {"selection": "s", "seconds": 2.0}
                )
                mean = wanted.paper.mean + shift
                entry[wanted.split] = {"mean": mean, "std": 0.5, "seeds": 3}
    return measured


def cells(name, shift=0.0):
    return compare_cells_with_paper(
        get_paper_experiment(name), as_printed(name, shift), {}
    )


@pytest.mark.parametrize(
    ("mean", "std", "paper", "expected"),
    [
        (24.0, None, (20.0, 1.0), "match"),  # the floor of 2 points counts twice
        (24.1, None, (20.0, 1.0), "better"),
        (15.9, None, (20.0, 1.0), "differs"),
        (26.0, None, (20.0, 3.0), "match"),  # the paper's spread
        (26.0, 3.0, (20.0, 0.0), "match"),  # our spread
        (13.9, 3.0, (20.0, 0.0), "differs"),
    ],
)
def test_an_accuracy_matches_within_twice_the_largest_spread(
    mean, std, paper, expected
):
    stated = {"mean": paper[0], "std": paper[1]}
    assert (
        compare_with_published_value(mean, std, stated, "accuracy", "test") == expected
    )


def test_a_higher_training_accuracy_is_not_better():
    stated = {"mean": 50.0, "std": 1.0}
    assert (
        compare_with_published_value(90.0, 1.0, stated, "accuracy", "train")
        == "differs"
    )
    assert (
        compare_with_published_value(90.0, 1.0, stated, "accuracy", "test") == "better"
    )


@pytest.mark.parametrize(
    ("mean", "expected"), [(0.22, "match"), (0.23, "differs"), (0.13, "better")]
)
def test_a_smaller_error_is_better_and_its_band_is_its_own(mean, expected):
    stated = {"mean": 0.18, "std": 0.005}
    assert (
        compare_with_published_value(mean, 0.0, stated, "coefficients", "causal")
        == expected
    )


@pytest.mark.parametrize("name", TABLES)
def test_the_papers_own_numbers_match_all(name):
    made = summarise_verdicts_of_experiment(
        get_paper_experiment(name), cells(name), "cirm", ["abc"]
    )
    counts = made["verdicts"]
    assert counts["match"] == sum(counts.values()) > 0


def test_cells_say_what_they_are_made_of():
    cell = next(c for c in cells("table1", 1.5) if c["learner"] == "gem")
    assert cell == {
        "row": "mnist",
        "learner": "gem",
        "split": "train",
        "metric": "accuracy",
        "seeds": 3,
        "mean": 88.9,
        "std": 0.5,
        "paper": {"mean": 87.4, "std": 2.7},
        "verdict": "match",
        "selection": "s",
        "seconds": 2.0,
    }


def test_chance_is_known_and_needs_no_run():
    chance = [c for c in cells("table1") if c["learner"] == "chance"]
    assert [c["mean"] for c in chance] == [50.0, 50.0]
    assert {c["verdict"] for c in chance} == {None}


def test_what_was_asked_for_and_is_missing_has_no_data_and_a_reason():
    notes = {("mnist", "vcl"): "failed: lost"}
    found = compare_cells_with_paper(get_paper_experiment("table1"), {}, notes)
    missing = [c for c in found if c["learner"] != "chance"]
    assert [(c["learner"], c["verdict"], c["note"]) for c in missing] == [
        ("vcl", "no-data", "failed: lost")
    ] * 2


def test_a_number_that_is_not_finite_is_no_data():
    measured = as_printed("table1")
    measured["mnist"]["erm"]["test"] = {"mean": None, "std": None, "seeds": 3}
    found = compare_cells_with_paper(get_paper_experiment("table1"), measured, {})
    (cell,) = (c for c in found if (c["learner"], c["split"]) == ("erm", "test"))
    assert (cell["verdict"], cell["note"]) == (
        "no-data",
        "a seed's number is not finite",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("table1", [True, True, None, None]),
        # In two rows of the paper's own table VCL is above C-VIRMG.
        ("table2", [True, False, None, None]),
        ("table3", [None, None, None, None]),
        ("table4", [None, None, True, None]),
        ("table5", [None, None, None, True]),
    ],
)
def test_claims_on_the_papers_own_numbers(name, expected):
    made = check_claims_of_paper(cells(name))
    assert [claim["holds"] for claim in made] == expected
    assert [claim["in_paper"] for claim in made] == expected
    assert all(bool(c["figures"]) == (c["holds"] is not None) for c in made)


def changed(name, place, value):
    return [
        {**c, "mean": value} if (c["row"], c["learner"], c["split"]) == place else c
        for c in cells(name)
    ]


@pytest.mark.parametrize(
    ("name", "place", "value", "claim"),
    [
        ("table1", ("mnist", "mer", "test"), 30.0, 0),
        ("table1", ("mnist", "c-virmg", "test"), 24.0, 1),
        ("table4", ("20000 eiil", "irmv1 after eiil", "test"), 40.0, 2),
        ("table4", ("50000 no-eiil", "irmv1", "test"), 70.0, 2),
        ("table5", ("table5", "birm", "noncausal"), 0.3, 3),
    ],
)
def test_one_number_can_break_a_claim(name, place, value, claim):
    assert check_claims_of_paper(changed(name, place, value))[claim]["holds"] is False


@pytest.mark.parametrize(("fall", "holds"), [(1.9, True), (2.1, False)])
def test_accuracy_may_fall_by_two_points_between_sizes(fall, holds):
    place = ("20000 eiil", "irmv1 after eiil", "test")
    (before,) = (
        c["mean"]
        for c in cells("table4")
        if (c["row"], c["learner"], c["split"]) == ("10000 eiil", *place[1:])
    )
    assert (
        check_claims_of_paper(changed("table4", place, before - fall))[2]["holds"]
        is holds
    )


def test_rows_that_the_paper_does_not_have_count_for_no_claim():
    ours = [
        {**c, "row": "beyond", "mean": 40.0, "paper": None} for c in cells("table1")
    ]
    assert check_claims_of_paper([*cells("table1"), *ours]) == check_claims_of_paper(
        cells("table1")
    )


def test_references_beside_the_papers_learners_count_for_no_claim():
    found = cells("table4")
    erm = {**found[0], "learner": "erm", "split": "test", "mean": 90.0, "paper": None}
    assert check_claims_of_paper([*found, erm]) == check_claims_of_paper(found)


def test_rows_of_which_nothing_was_measured_are_named():
    some = [{**c, "mean": None} if c["row"] == "n=6" else c for c in cells("table2")]
    first, second, *others = check_claims_of_paper(some)
    assert first["holds"] is True
    assert first["figures"][-1] == second["figures"][-1] == "not measured: n=6"
    assert not any(c["figures"] for c in others)


def test_a_claim_is_not_known_while_a_learner_is_missing():
    some = [c for c in cells("table1") if c["learner"] != "vclc"]
    assert [c["holds"] for c in check_claims_of_paper(some)] == [None, None, None, None]
    low = [c for c in some if c["learner"] != "c-virmg"]
    low += [{**c, "mean": math.pi} for c in some if c["learner"] == "c-virmg"]
    assert check_claims_of_paper(low)[1]["holds"] is False
