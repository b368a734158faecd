import math
from dataclasses import dataclass

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.learners import CONTINUAL, LEARNERS, create, get_learner_class
from cirm.learners.base import Learner, PointState
from cirm.runs.search_space import (
    SettingSearchChoices,
    SettingSearchRange,
    draw_settings_of_trial,
    format_search_space,
    parse_search_space,
)


def test_ranges_and_alternatives_are_read_with_the_types_of_the_settings():
    text = "rate=1e-4..1e-2:log,hidden=100,100|390,epochs=10..50,optimiser=adam|sgd"
    space = parse_search_space("erm", [text, "dropout=0.5|0.75"])
    assert space["rate"] == SettingSearchRange(1e-4, 1e-2, log=True)
    assert space["epochs"] == SettingSearchRange(10, 50, whole=True)
    assert space["hidden"].values == ((100, 100), (390,))
    assert space["optimiser"].values == ("adam", "sgd")
    assert space["dropout"].values == (0.5, 0.75)


def test_what_is_written_out_is_read_back():
    space = parse_search_space("irmv1")
    texts = [f"{name}={text}" for name, text in format_search_space(space).items()]
    assert parse_search_space("irmv1", texts) == space


def test_places_from_zero_to_one_cover_a_range():
    assert [
        SettingSearchRange(1, 100, log=True).get_value_at_position(p)
        for p in (0, 0.5, 1)
    ] == [
        1,
        10,
        100,
    ]
    assert [
        SettingSearchRange(0, 4, whole=True).get_value_at_position(p)
        for p in (0, 0.49, 1)
    ] == [
        0,
        2,
        4,
    ]
    assert (
        SettingSearchChoices(("a", "b"), ("a", "b")).get_value_at_position(1.0) == "b"
    )


def test_rounding_does_not_leave_a_range():
    ends = SettingSearchRange(0.12345, 0.98765)
    assert (ends.get_value_at_position(0.0), ends.get_value_at_position(1.0)) == (
        0.12345,
        0.98765,
    )
    assert ends.get_value_at_position(0.5) == 0.556


def test_draws_stay_inside_and_fill_the_space():
    space = parse_search_space("erm", ["rate=1e-4..1e-2:log,dropout=0.5|0.75"])
    found = [draw_settings_of_trial(space, trial) for trial in range(1, 200)]
    logs = torch.tensor([math.log10(s["rate"]) for s in found])
    assert logs.min() >= -4 and logs.max() <= -2
    assert logs.mean().item() == pytest.approx(-3, abs=0.15)
    assert {s["dropout"] for s in found} == {0.5, 0.75}


def test_a_trial_does_not_depend_on_the_other_settings_or_trials():
    few = parse_search_space("erm", ["rate=1e-4..1e-2:log"])
    more = parse_search_space("erm", ["dropout=0|0.5,rate=1e-4..1e-2:log"])
    assert (
        draw_settings_of_trial(few, 7)["rate"]
        == draw_settings_of_trial(more, 7)["rate"]
    )
    assert draw_settings_of_trial(few, 7) != draw_settings_of_trial(few, 8)
    assert draw_settings_of_trial(few, 7, seed=1) != draw_settings_of_trial(few, 7)


def test_the_first_trial_has_the_settings_as_they_are():
    assert draw_settings_of_trial(parse_search_space("erm"), 0) == {}


@pytest.mark.parametrize("key", [*LEARNERS, *CONTINUAL])
def test_every_learner_has_a_space_and_can_be_made_with_what_is_drawn(key):
    task, targets = Task.classification(2), torch.arange(9) % 2
    if "classification" not in get_learner_class(key).tasks:
        task, targets = Task.regression(), torch.zeros(9)
    data = Environment("a", torch.zeros(9, 2), targets, task)
    space = parse_search_space(key)
    assert space
    for trial in range(1, 30):
        create(key, data, draw_settings_of_trial(space, trial))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate", "--space: 'rate' cannot be read. Write the name"),
        ("rate=", "as in rate=0.001..0.1 or"),
        ("rat=1..2", "learner erm has no setting 'rat'. Choose one of epochs"),
        ("rate=2..1", "rate has the range '2..1'.* the lower one first"),
        ("rate=1..2:lin", "rate has the range .* Write low..high or low..high:log"),
        (
            "rate=0..1:log",
            "range '0..1:log', which must be positive on a logarithmic scale",
        ),
        ("rate=a..b", "rate is 'a'. Use a number."),
        ("rate=1e-3|x", "rate is 'x'. Use a number."),
        ("optimiser=a..b", "optimiser is not a number, .* List the values"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused_in_one_sentence(text, message):
    with pytest.raises(ValueError, match=message) as found:
        parse_search_space("erm", [text])
    assert "\n" not in str(found.value)


def test_a_learner_without_a_network_on_tables_has_another_space_there():
    assert set(parse_search_space("steady", (), (12,))) == {"trust", "level"}
    for features in ((2, 28, 28), (1280,), ()):
        assert "dropout" in parse_search_space("steady", (), features)
    assert "dropout" in parse_search_space("erm", (), (12,))


@dataclass(frozen=True)
class Mine(Learner[PointState]):
    """A learner of another package, with ranges of its own."""

    weight: float = 0.5
    search_space = "rate=1e-4..1e-2:log,weight=0.1..0.9"


def test_a_learner_of_your_own_brings_its_ranges():
    assert format_search_space(parse_search_space(Mine)) == {
        "rate": "0.0001..0.01:log",
        "weight": "0.1..0.9",
    }
    assert list(parse_search_space(Mine, ["weight=0|1"])) == ["weight"]
