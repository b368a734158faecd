"""Settings are read from text, and refused in one sentence."""

import re
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm import settings

Side = Literal[28, 14]
Scheme = Literal["b01", "b11"]


@dataclass(frozen=True)
class Example:
    """A setting of every type."""

    kind: ClassVar[str] = "example"
    rate: float
    steps: int = 10
    name: str = "plain"
    warm: bool = False
    scheme: Scheme = "b01"
    side: Side = 28
    hidden: tuple[int, ...] = (100, 100)
    penalty: float | None = None
    examples: int | Literal["all"] = 1000
    flips: tuple[float, ...] = field(default_factory=lambda: (0.2, 0.1))
    table: dict[str, int] = field(default_factory=dict)
    derived: int = field(init=False, default=0)

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"example: steps must be positive; got {self.steps}")


def test_fields_have_their_types_and_defaults():
    known = settings.list_setting_fields(Example)
    assert known["rate"] == (float, None)
    assert known["steps"] == (int, 10)
    assert known["hidden"] == (tuple[int, ...], (100, 100))
    assert known["flips"] == (tuple[float, ...], (0.2, 0.1))


def test_only_what_can_be_set_is_a_setting():
    assert not {"kind", "derived"} & set(settings.list_setting_fields(Example))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rate", "1e-3", 0.001),
        ("rate", "2", 2.0),
        ("rate", "inf", float("inf")),
        ("steps", "-7", -7),
        ("name", "a=b, c", "a=b, c"),
        ("name", "", ""),
        ("warm", "Yes", True),
        ("warm", "0", False),
        ("scheme", "b11", "b11"),
        ("side", "14", 14),
        ("hidden", "390, 390", (390, 390)),
        ("hidden", "5", (5,)),
        ("hidden", "", ()),
        ("flips", "0.2,0.1,", (0.2, 0.1)),
        ("penalty", "None", None),
        ("penalty", "3", 3.0),
        ("examples", "all", "all"),
        ("examples", "50", 50),
    ],
)
def test_a_text_is_read_as_its_type(name, text, value):
    read = settings.parse_settings_by_type(Example, {name: text}, "example")
    assert read == {name: value}
    assert type(read[name]) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rate", "fast", "rate is 'fast'. Use a number."),
        ("rate", "nan", "rate is 'nan'. Use a number."),
        ("rate", "", "rate is ''. Use a number."),
        ("steps", "1.5", "steps is '1.5'. Use a whole number."),
        ("warm", "maybe", "warm is 'maybe'. Use true or false."),
        ("scheme", "b12", "scheme is 'b12'. Use one of b01, b11."),
        ("side", "15", "side is '15'. Use one of 28, 14."),
        ("hidden", "5,x", "hidden is 'x'. Use a whole number."),
        ("penalty", "much", "penalty is 'much'. Use a number."),
        ("examples", "few", "examples is 'few'. Use a whole number or all."),
        (
            "table",
            "{}",
            "table cannot be given as text, such as '{}'. Set it in Python instead.",
        ),
    ],
)
def test_a_text_of_another_type_is_refused(name, text, complaint):
    with pytest.raises(
        ValueError, match=f"^example: the setting {re.escape(complaint)}$"
    ):
        settings.parse_settings_by_type(Example, {name: text}, "example")


@pytest.mark.parametrize("name", ["stepz", "kind", "derived"])
def test_an_unknown_name_lists_the_known_ones(name):
    complaint = (
        f"^example: there is no setting '{name}'. Choose one of rate, .*, table.$"
    )
    with pytest.raises(ValueError, match=complaint):
        settings.parse_settings_by_type(Example, {name: "1"}, "example")


def test_a_class_without_settings_says_so():
    @dataclass(frozen=True)
    class Bare:
        pass

    with pytest.raises(
        ValueError, match=r"^bare: there is no setting 'a'\. No settings can be"
    ):
        settings.parse_settings_by_type(Bare, {"a": "1"}, "bare")


def test_settings_vary_a_copy():
    plain = Example(rate=1.0)
    varied = settings.replace_settings_from_text(
        plain, {"steps": "5", "hidden": "3"}, "example"
    )
    assert varied == Example(rate=1.0, steps=5, hidden=(3,))
    assert plain == Example(rate=1.0)


def test_a_copy_is_checked_like_the_original():
    with pytest.raises(ValueError, match=r"^example: steps must be positive; got 0$"):
        settings.replace_settings_from_text(
            Example(rate=1.0), {"steps": "0"}, "example"
        )


def test_assignments_are_split_at_the_first_equals_sign():
    texts = settings.parse_name_value_assignments(
        ["rate = 0.1", "name=a=b", "name=c", "empty="], "--set"
    )
    assert texts == {"rate": "0.1", "name": "c", "empty": ""}


@pytest.mark.parametrize("assignment", ["rate", "=1", "  =1", ""])
def test_an_assignment_needs_a_name_and_an_equals_sign(assignment):
    complaint = (
        rf"^--set: {re.escape(repr(assignment))} has no value\. Write name=value"
    )
    with pytest.raises(ValueError, match=complaint):
        settings.parse_name_value_assignments([assignment], "--set")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (int, "whole number"),
        (float, "number"),
        (str, "text"),
        (bool, "true|false"),
        (float | None, "number or none"),
        (int | Literal["all"], "whole number or all"),
        (Scheme, "b01|b11"),
        (tuple[float, ...], "number,..."),
        (dict, "dict"),
    ],
)
def test_a_type_is_named_as_a_user_reads_it(kind, name):
    assert settings.describe_setting_type(kind) == name


words = st.text(st.characters(exclude_characters=","), min_size=1).filter(
    lambda text: text == text.strip()
)
numbers = st.floats(allow_nan=False)
SPELT = [
    (int, st.integers()),
    (float, numbers),
    (bool, st.booleans()),
    (str, st.text()),
    (float | None, numbers | st.none()),
    (int | Literal["all"], st.integers() | st.just("all")),
    (Side, st.sampled_from([28, 14])),
]
SPELT_IN_TUPLES = [(int, st.integers()), (float, numbers), (str, words)]


@pytest.mark.parametrize(("kind", "values"), SPELT)
@given(st.data())
def test_what_is_written_is_read_back(kind, values, data):
    value = data.draw(values)
    assert settings.parse_setting_value(kind, str(value), "here") == value


@pytest.mark.parametrize(("kind", "values"), SPELT_IN_TUPLES)
@given(st.data())
def test_tuples_that_are_written_are_read_back(kind, values, data):
    several = tuple(data.draw(st.lists(values)))
    text = ", ".join(map(str, several))
    assert settings.parse_setting_value(tuple[kind, ...], text, "here") == several


@pytest.mark.parametrize("kind", [kind for kind, _ in SPELT] + [Scheme])
@given(text=st.text())
def test_any_text_is_read_or_refused_in_one_sentence(kind, text):
    try:
        settings.parse_setting_value(kind, text, "here")
    except ValueError as refusal:
        assert str(refusal).startswith(f"here is {text!r}. Use ")
