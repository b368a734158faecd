"""The rows of the board: learners, some of them with inferred or with true groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cirm.learners import get_learner_class

OURS = "steady"
TRUE_GROUPS = "true groups"
FAMILIES = {
    "ours": (OURS,),
    "plain training": ("erm", "logistic", "ridge", "boosting"),
    "between environments": (
        *("irmv1", "irmg", "vrex", "groupdro", "fishr", "coral", "mmd", "ib-irm"),
        *("eqrm", "icp", "anchor", "drig"),
    ),
    "without group labels": ("jtt", "lff", "afr", "dfr"),
    "continual learning": (
        *("ewc", "si", "gem", "agem", "mer", "der", "replay", "align", "vcl", "vclc"),
    ),
    "continual invariance": ("virmv1", "virmg", "birm", "bvirm"),
    "at a new place": ("sfb", "t3a", "tent", "label-shift"),
}
"""Learners by what they are for, as in docs/learners.md."""

TIERS = (
    (OURS, "erm", "logistic", "ridge", "groupdro", "jtt", "irmv1", "coral"),
    (
        *("boosting", "lff", "dfr", "fishr", "anchor", "drig", "icp"),
        *("label-shift", "t3a", "sfb", "replay", "ewc", "birm"),
    ),
)
"""Learners that are run first, in order: the rows that say most, then quick ones; the
learners that are not named come after these."""

SLOW = ("virmv1", "bvirm", "virmg", "vcl", "vclc")
"""Learners that are run last: their steps take 5 to 10 times as long as those of
`erm`."""

LAST_PLACE = ("logistic", "ridge", "boosting")  # also with the last place only
AFTER_EIIL = ("irmv1", "groupdro", "dfr")  # also after environment inference, which
# changes nothing for learners that use no environments, such as jtt


@dataclass(frozen=True)
class LeaderboardLearner:
    """A learner as the board runs it.

    Attributes:
        name: Its name on the board.
        learner: Its key.
        family: What it is for.
        settings: Settings that make this row another one than the learner's own.
        infer: Key of an environment inference that comes first; none if empty.
        has_true_groups: Whether it is told the true groups, which no method can know.
    """

    name: str
    learner: str
    family: str
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    infer: str = ""
    has_true_groups: bool = False

    @property
    def priority(self) -> tuple[int, int]:
        """The tier in which it is run, and its place there; the lowest is the first."""
        for tier, learners in enumerate(TIERS):
            if self.learner in learners:
                return tier, learners.index(self.learner)
        return len(TIERS) + (self.learner in SLOW), 0

    @property
    def tasks(self) -> tuple[str, ...]:
        """The kinds of task that the row takes."""
        if self.infer or self.has_true_groups:
            return ("classification",)
        return get_learner_class(self.learner).tasks


def list_leaderboard_learners(names: Iterable[str] = ()) -> list[LeaderboardLearner]:
    """List the rows of the board, or those of some names.

    Args:
        names: Names of rows, or keys of learners for all of their rows; import paths of
            learners of your own become rows too. All built-in rows if empty.

    Raises:
        ValueError: If there is no such row or learner.

    Example:
        >>> [row.name for row in list_leaderboard_learners(["erm", "groupdro"])]
        ['erm', 'groupdro', 'groupdro, true groups', 'groupdro after eiil']
    """
    rows = list(_list_all_leaderboard_learners())
    chosen = []
    for name in names:
        own = [row for row in rows if name in (row.name, row.learner)]
        if not own:
            get_learner_class(name)
            own = [LeaderboardLearner(name, name, "your own")]
        chosen += own
    return list(dict.fromkeys(chosen)) if chosen else rows


def _list_all_leaderboard_learners() -> Iterable[LeaderboardLearner]:
    for family, keys in FAMILIES.items():
        for key in keys:
            yield LeaderboardLearner(key, key, family)
            if key in LAST_PLACE:
                settings = {"sequence": "last"}
                yield LeaderboardLearner(f"{key}, last place", key, family, settings)
            if key == "groupdro":
                name = f"{key}, {TRUE_GROUPS}"
                settings = {"groups": "classes"}
                yield LeaderboardLearner(
                    name, key, family, settings, has_true_groups=True
                )
            if key in AFTER_EIIL:
                yield LeaderboardLearner(f"{key} after eiil", key, family, infer="eiil")
