"""Spaces of settings, written as text, and random draws from them.

`rate=1e-4..1e-2:log` is a range, on a logarithmic scale; `dropout=0.5|0.75|0.9` are
alternatives. A comma, or another option, parts the settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cirm.learners import check_setting_names, list_settings
from cirm.randomness import Randomness
from cirm.settings import parse_value

USUAL = {
    "rate": "1e-4..1e-2:log",
    "dropout": "0|0.5|0.75|0.9",
    "decay": "1e-5..1e-2:log",
    "penalty": "1..1e5:log",
    "anneal": "0.1..0.9",
    "strength": "1e-2..1e3:log",
    "beta": "1e-4..1:log",
}
"""What is searched of the settings that a learner has under these names."""

SPACES = {
    "cirm": "rate=3e-4..3e-3:log,dropout=0.5|0.75|0.9,epochs=10|20|40,"
    "beta=0.1|1|10,cap=5|10|20,members=3|4|6",
    "erm": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,decay=1e-5..1e-2:log,"
    "epochs=20..200:log",
    "irmv1": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,penalty=1..1e5:log,"
    "anneal=0.1..0.9,epochs=20..200:log",
    "vrex": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,penalty=1..1e5:log,"
    "anneal=0.1..0.9,epochs=20..200:log",
    "virmv1": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75,penalty=1..1e5:log,"
    "anneal=0.1..0.9,beta=1e-4..1:log",
    "icp": "level=0.01|0.05|0.1",
}
"""Spaces of some learners, in place of the usual one."""

SEPARATOR = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=)")  # a value may hold commas too


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, evenly or, if `log`, in their logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, place: float) -> float | int:
        """The number at a place from 0 to 1, to three digits."""
        low, high = self.low, self.high
        if self.log:
            low, high = math.log(low), math.log(high)
        found = low + place * (high - low)
        found = float(f"{math.exp(found) if self.log else found:.3g}")
        return round(found) if self.whole else min(max(found, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


@dataclass(frozen=True)
class Choice:
    """Alternatives, all as likely, and the text that each was read from."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]

    def at(self, place: float) -> Any:  # noqa: ANN401  any setting
        """The alternative at a place from 0 to 1."""
        return self.values[min(int(place * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return "|".join(self.texts)


Space = Mapping[str, Range | Choice]


def parse_space(learner: str, texts: Iterable[str] = ()) -> Space:
    """The space that texts spell; without any, the learner's own or the usual one."""
    given = [part for text in texts for part in SEPARATOR.split(text)]
    kinds = {name: kind for name, kind, _ in list_settings(learner)}
    if not given:
        key = learner.removeprefix("c-")
        usual = ",".join(f"{n}={t}" for n, t in USUAL.items() if n in kinds)
        given = SEPARATOR.split(SPACES.get(key, usual))
    space: dict[str, Range | Choice] = {}
    for part in given:
        name, equals, text = (word.strip() for word in part.partition("="))
        if not (name and equals and text):
            raise ValueError(
                "--space: it must be name=low..high, name=low..high:log or "
                f"name=a|b|c; got {part!r}"
            )
        check_setting_names(learner, [name])
        space[name] = _read(kinds[name], text, f"--space: {name}")
    return space


def drawn(space: Space, trial: int, seed: int = 0) -> dict[str, Any]:
    """The settings of a trial; none for the first, which tries those that there are.

    A draw depends on the trial and the setting alone: more trials, or another setting
    beside it, leave it as it is.
    """
    if trial == 0:
        return {}
    source = Randomness((seed,)).at("search", trial)
    return {n: s.at(float(source.at(n).uniform(1)[0, 0])) for n, s in space.items()}


def spelled_space(space: Space) -> dict[str, str]:
    """The texts that spell a space, by setting."""
    return {name: str(part) for name, part in space.items()}


def _read(kind: Any, text: str, where: str) -> Range | Choice:  # noqa: ANN401
    if ".." not in text:
        parts = tuple(part.strip() for part in text.split("|"))
        return Choice(tuple(parse_value(kind, part, where) for part in parts), parts)
    if kind not in (int, float):
        raise ValueError(f"{where} must be alternatives such as a|b; got {text!r}")
    ends, _, scale = text.partition(":")
    low, _, high = ends.partition("..")
    first, last = (parse_value(float, end.strip(), where) for end in (low, high))
    log = scale.strip() == "log"
    if (scale and not log) or not -math.inf < first < last < math.inf:
        raise ValueError(
            f"{where} must be low..high or low..high:log with low below high; "
            f"got {text!r}"
        )
    if log and first <= 0:
        raise ValueError(f"{where} must be positive for a log scale; got {text!r}")
    return Range(first, last, log, kind is int)
