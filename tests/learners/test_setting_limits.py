"""The least and largest values of a setting are what its error message says."""

import math
import re

import pytest

from cirm.learners import LEARNERS, PARTS, get_learner_class
from cirm.settings import list_setting_fields

PROBES = (-1, 0, 2, 1_000_000)
NUMBER = r"(-?[\d.]+)"


def list_numeric_settings():
    for key in LEARNERS:
        for name, (kind, _) in list_setting_fields(get_learner_class(key)).items():
            if kind in (int, float) and name not in PARTS:
                yield key, name, kind


SETTINGS = list(list_numeric_settings())


def find_refusal(key, name, value):
    """The values that a learner allows, as it says where it refuses one; else ""."""
    try:
        get_learner_class(key)(**{name: value})
    except ValueError as error:
        found = re.search(rf"setting {name} must (?:be )?(.*), but is", str(error))
        return found.group(1) if found else ""
    return ""


def step(value, kind, up):
    """The nearest value above or below."""
    return (
        value + (1 if up else -1)
        if kind is int
        else math.nextafter(value, math.inf if up else -math.inf)
    )


def list_limits(words, kind):
    """Values that the words allow, and values that they exclude."""
    if found := re.fullmatch(rf"{NUMBER} or more", words):
        low = kind(found.group(1))
        return [low], [step(low, kind, up=False)]
    if found := re.fullmatch(rf"above {NUMBER}|positive", words):
        low = kind(found.group(1) or 0)
        return [step(low, kind, up=True)], [low]
    if found := re.fullmatch(rf"above {NUMBER} and at most {NUMBER}", words):
        low, high = map(kind, found.groups())
        return [step(low, kind, up=True), high], [low, step(high, kind, up=True)]
    if words == "not be negative":
        return [kind(0)], [step(kind(0), kind, up=False)]
    if found := re.fullmatch(rf"from {NUMBER} to {NUMBER}(?:, or None)?", words):
        low, high = map(kind, found.groups())
        return [low, high], [step(low, kind, up=False), step(high, kind, up=True)]
    if found := re.fullmatch(rf"between {NUMBER} and {NUMBER}", words):
        low, high = map(kind, found.groups())
        return [step(low, kind, up=True), step(high, kind, up=False)], [low, high]
    return [], []


@pytest.mark.parametrize(
    ("key", "name", "kind"), SETTINGS, ids=[f"{k}-{n}" for k, n, _ in SETTINGS]
)
def test_a_setting_is_refused_beyond_its_limits_and_nowhere_before(key, name, kind):
    said = {find_refusal(key, name, kind(probe)) for probe in PROBES} - {""}
    for words in said:
        allowed, excluded = list_limits(words, kind)
        for value in allowed:
            assert find_refusal(key, name, value) == ""
        for value in excluded:
            assert find_refusal(key, name, value) == words


def test_the_limits_of_most_settings_are_understood():
    words = [
        text
        for key, name, kind in SETTINGS
        for probe in PROBES
        if (text := find_refusal(key, name, kind(probe)))
    ]
    unknown = {text for text in words if not list_limits(text, float)[0]}
    assert len(words) > 80
    assert unknown == set()
