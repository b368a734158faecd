"""Spaces of settings, written as text, and random draws from them.

`rate=1e-4..1e-2:log` is a range on a logarithmic scale, `dropout=0.5|0.75|0.9` lists
alternatives. Settings are separated by commas or given as several texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cirm.learners import (
    check_setting_names,
    get_learner_class,
    get_learner_key,
    list_learner_settings,
)
from cirm.randomness import Randomness
from cirm.settings import parse_setting_value

if TYPE_CHECKING:
    from cirm.learners import LearnerLike

COMMON = {
    "rate": "1e-4..1e-2:log",
    "dropout": "0|0.5|0.75|0.9",
    "decay": "1e-5..1e-2:log",
    "penalty": "1..1e5:log",
    "anneal": "0.1..0.9",
    "strength": "1e-2..1e3:log",
    "beta": "1e-4..1:log",
}
"""Searched for any learner that has settings of these names."""

NETWORK = (
    "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,decay=1e-5..1e-2:log,epochs=20..200:log"
)
"""Searched for learners that train a network, beside what is their own."""

# Ranges of penalties, of GroupDRO's step and of the bottleneck are those of Gulrajani
# and Lopez-Paz, "In Search of Lost Domain Generalization", 2021; those of JTT, AFR, DER
# and T3A span the values that the authors tried or chose.
OWN = {
    "groupdro": "step=1e-3..0.1:log,groups=environments|classes",
    "fishr": "penalty=10..1e5:log,anneal=0.1..0.9",
    "coral": "penalty=0.1..10:log",
    "mmd": "penalty=0.1..10:log",
    "align": "penalty=0.1..10:log",
    "ib-irm": "penalty=1..1e5:log,bottleneck=0.1..1e5:log,anneal=0.1..0.9",
    "eqrm": "tail=0.7..1e3:log,anneal=0.1..0.9",
    "jtt": "first_epochs=1..60:log,upweight=2..100:log",
    "lff": "amplification=0.3..0.9",
    "dfr": "l2=0.01..100:log",
    "afr": "gamma=1..20:log,l2=1e-4..1:log",
    "der": "alpha=0.1..1:log,beta=0.1..1:log",
    "si": "strength=0.01..10:log,damping=1e-3..1:log",
    "sfb": "penalty=1..1e5:log,anneal=0.1..0.9,independence=0.1..100:log",
    "t3a": "support=0|1|5|20|50|100",
    "tent": "steps=1|3|10|30,step_rate=1e-4..1e-2:log",
}
"""What is searched for learners of the field, beside their network."""

SPACES = {
    "steady": "rate=2e-3..1e-2:log,dropout=0.25|0.5|0.75,decay=1e-3..1e-1:log,"
    "members=3|5|8",
    "erm": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,decay=1e-5..1e-2:log,"
    "epochs=20..200:log",
    "irmv1": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,penalty=1..1e5:log,"
    "anneal=0.1..0.9,epochs=20..200:log",
    "vrex": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75|0.9,penalty=1..1e5:log,"
    "anneal=0.1..0.9,epochs=20..200:log",
    "virmv1": "rate=1e-4..1e-2:log,dropout=0|0.5|0.75,penalty=1..1e5:log,"
    "anneal=0.1..0.9,beta=1e-4..1:log",
    "icp": "level=0.01|0.05|0.1",
    "logistic": "l2=1e-3..1e3:log",
    "ridge": "l2=1e-3..1e3:log",
    "boosting": "iterations=50|100|200,shrinkage=0.02..0.3:log,leaves=7|15|31",
    "anchor": "gamma=0.1..100:log",
    "drig": "gamma=0.1..100:log",
    **{key: f"{NETWORK},{own}" for key, own in OWN.items()},
}
"""Spaces of built-in learners; others set `search_space`, or get the common one."""

TABLE_SPACES = {"steady": "trust=invariant|interval|average,level=0.01..0.2:log"}
"""Spaces for tables of few features, where a learner then trains no network."""

MOST_TABLE_FEATURES = 300  # inputs that count as a table; embeddings have more

SEPARATOR = re.compile(r",\s*(?=[A-Za-z_]\w*\s*=)")  # values may contain commas too


@dataclass(frozen=True)
class SettingSearchRange:
    """Numbers from low to high, uniform or, with `log`, log-uniform."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def get_value_at_position(self, fraction: float) -> float | int:
        """Return the number at a place from 0 to 1, rounded to three digits."""
        low, high = self.low, self.high
        if self.log:
            low, high = math.log(low), math.log(high)
        number = low + fraction * (high - low)
        number = float(f"{math.exp(number) if self.log else number:.3g}")
        return round(number) if self.whole else min(max(number, self.low), self.high)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"


@dataclass(frozen=True)
class SettingSearchChoices:
    """Equally likely alternatives, and the text that each was read from."""

    values: tuple[Any, ...]
    texts: tuple[str, ...]

    def get_value_at_position(self, fraction: float) -> Any:  # noqa: ANN401  any setting
        """Return the alternative at a place from 0 to 1."""
        return self.values[min(int(fraction * len(self.values)), len(self.values) - 1)]

    def __str__(self) -> str:
        return "|".join(self.texts)


Space = Mapping[str, SettingSearchRange | SettingSearchChoices]


def parse_search_space(
    learner: LearnerLike,
    ranges_as_text: Iterable[str] = (),
    input_shape: tuple[int, ...] = (),
) -> Space:
    """Parse a space; without texts, return the learner's own or the common one.

    Some learners have another space for the `input_shape` of a table.
    """
    assignments = [part for text in ranges_as_text for part in SEPARATOR.split(text)]
    kinds = {name: kind for name, kind, _ in list_learner_settings(learner)}
    if not assignments:
        key = get_learner_key(learner).removeprefix("c-")
        common = ",".join(f"{n}={t}" for n, t in COMMON.items() if n in kinds)
        own = get_learner_class(learner).search_space
        text = own or SPACES.get(key, common)
        if len(input_shape) == 1 and input_shape[0] <= MOST_TABLE_FEATURES:
            text = TABLE_SPACES.get(key, text)
        assignments = SEPARATOR.split(text)
    space: dict[str, SettingSearchRange | SettingSearchChoices] = {}
    for part in assignments:
        name, equals, text = (word.strip() for word in part.partition("="))
        if not (name and equals and text):
            raise ValueError(
                f"--space: {part!r} cannot be read. Write the name of a setting with "
                "a range, as in rate=0.001..0.1 or (on a logarithmic scale) "
                "rate=0.001..0.1:log, or with values, as in hidden=32|64."
            )
        check_setting_names(learner, [name])
        space[name] = _parse_range_or_alternatives(
            kinds[name], text, f"--space: {name}"
        )
    return space


def draw_settings_of_trial(space: Space, trial: int, seed: int = 0) -> dict[str, Any]:
    """Draw the settings of a trial; none for the first, which tries the defaults.

    A draw depends on the trial and the setting alone: it stays the same with more
    trials or with other settings.
    """
    if trial == 0:
        return {}
    source = Randomness((seed,)).at("search", trial)
    return {
        n: s.get_value_at_position(float(source.at(n).uniform(1)[0, 0]))
        for n, s in space.items()
    }


def format_search_space(space: Space) -> dict[str, str]:
    """Return the text of each setting's values."""
    return {name: str(part) for name, part in space.items()}


def _parse_range_or_alternatives(
    kind: Any,  # noqa: ANN401
    text: str,
    where: str,
) -> SettingSearchRange | SettingSearchChoices:
    if ".." not in text:
        parts = tuple(part.strip() for part in text.split("|"))
        return SettingSearchChoices(
            tuple(parse_setting_value(kind, part, where) for part in parts), parts
        )
    if kind not in (int, float):
        raise ValueError(
            f"{where} is not a number, so it cannot have the range {text!r}. List the "
            "values to try, as in name=a|b."
        )
    ends, _, scale = text.partition(":")
    low, _, high = ends.partition("..")
    first, last = (
        parse_setting_value(float, end.strip(), where) for end in (low, high)
    )
    log = scale.strip() == "log"
    if (scale and not log) or not -math.inf < first < last < math.inf:
        raise ValueError(
            f"{where} has the range {text!r}, which cannot be used. Write low..high "
            "or low..high:log, with two numbers, the lower one first."
        )
    if log and first <= 0:
        raise ValueError(
            f"{where} has the range {text!r}, which must be positive on a logarithmic "
            "scale. Begin the range with a positive number, or leave out :log."
        )
    return SettingSearchRange(first, last, log, kind is int)
