"""Earlier versions of a model, which its file keeps, and the way back to them.

Each update may keep the version before it, as a whole model file inside of the new one.
A version is known by a few digits of a digest of its description. Going back to one
exchanges it with the current version, which is kept in turn: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cirm.model.container import read_version_key_of_model_file
from cirm.model.facts import TrainingHistoryEntry
from cirm.model.file import decode_model_file, encode_model_file
from cirm.model.model import Model
from cirm.wording import format_count

MOST_KEPT_BYTES = 2**26  # of all kept versions; a model of a table has some 50,000


class EarlierModelVersion(NamedTuple):
    """An earlier version of a model: the model, and the content of its file."""

    model: Model
    content: bytes

    @property
    def key(self) -> str:
        """Digits by which the user names the version."""
        return read_version_key_of_model_file(self.content)

    def describe(self) -> str:
        """Return what the version had learned from, in a few words."""
        last = self.model.history[-1]
        adapted = self.model.adaptation
        place = f", adapted to {adapted.name}" if adapted else ""
        return f"{self.key} (after {last.name}, {last.time[:10]}{place})"


def keep_earlier_version_in_model(
    before: Model, after: Model, max_versions: int
) -> Model:
    """Return an updated model that keeps the one before, and some earlier ones.

    At most `max_versions` versions of 64 MiB together are kept; the oldest go first. A
    note in the history says which ones went.
    """
    if not max_versions:
        return replace(after, earlier=())
    versions = [*before.earlier, encode_model_without_earlier_versions(before)]
    kept = versions[-max_versions:]
    while sum(map(len, kept)) > MOST_KEPT_BYTES:
        kept = kept[1:]
    dropped = len(versions) - len(kept)
    after = replace(after, earlier=tuple(kept))
    if not dropped:
        return after
    keys = map(read_version_key_of_model_file, versions[:dropped])
    note = (
        f"The model file keeps {format_count(len(kept), 'earlier version')} for `cirm "
        f"rollback`; older versions were removed ({', '.join(keys)}). Keep more with "
        f"--keep COUNT (at most {MOST_KEPT_BYTES >> 20} MiB in total), or write "
        "updated models to new files with --out."
    )
    *history, last = after.history
    last = replace(last, notes=(*last.notes, note))
    return replace(after, history=(*history, last))


def encode_model_without_earlier_versions(model: Model) -> bytes:
    """Return the file of a model without its earlier versions."""
    return encode_model_file(replace(model, earlier=()))


def list_earlier_model_versions(model: Model) -> list[EarlierModelVersion]:
    """Return the earlier versions that a model keeps, oldest first."""
    versions = []
    for index, content in enumerate(model.earlier):
        where = f"the earlier version {index + 1} in the model file"
        own = decode_model_file(
            content, where, model.learner.network, type(model.learner)
        )
        if own.earlier:
            raise ValueError(
                f"The model file is damaged: {where} must be a single model, but "
                "contains other versions. Restore the file from a backup."
            )
        versions.append(EarlierModelVersion(own, content))
    return versions


def rollback(model: Model, to: str = "") -> Model:
    """Return to an earlier version of a model.

    Nothing is lost: the current version is kept in place of the earlier one, and a
    second `rollback` to it undoes the first.

    Args:
        model: A model that keeps earlier versions, as `cirm update` and
            `update(..., keep=3)` leave them.
        to: The version, or its first digits; `cirm inspect --history` shows them. By
            default the last version that led up to this one.

    Returns:
        The earlier model, which keeps all other versions.

    Raises:
        ValueError: If there is no such version.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit, rollback, update
        >>> table = pd.DataFrame({"age": range(40), "ill": ["no", "yes"] * 20})
        >>> first = fit(table[:20], "ill")
        >>> second = update(first, table[20:], keep=3)
        >>> back = rollback(second)
        >>> len(back.history), len(back.earlier)
        (1, 1)
    """
    versions = list_earlier_model_versions(model)
    if not versions:
        raise ValueError(
            "The model file contains no earlier version, so it cannot be rolled "
            "back. Restore the file from a backup. (`cirm update` keeps three "
            "earlier versions, or as many as --keep says.)"
        )
    chosen = (
        _find_version_by_key(versions, to)
        if to
        else _find_version_before_last_update(versions, model)
    )
    others = [version.content for version in versions if version is not chosen]
    earlier = (*others, encode_model_without_earlier_versions(model))
    device = model.learner.descent.device
    return replace(chosen.model, earlier=earlier).to(device)


def _find_version_by_key(
    versions: Sequence[EarlierModelVersion], key: str
) -> EarlierModelVersion:
    """Return the version whose digits begin with a key."""
    matches = [v for v in versions if v.key.startswith(key.lower())]
    if len(matches) != 1:
        problem = "several earlier versions begin" if matches else "no version begins"
        raise ValueError(
            f"--to: {problem} with {key!r}. Choose one of "
            f"{_join_version_keys(versions)}."
        )
    return matches[0]


def _find_version_before_last_update(
    versions: Sequence[EarlierModelVersion], model: Model
) -> EarlierModelVersion:
    """Return the last version that the model was updated from."""
    lineage = _list_fingerprints_of_history(model.history)
    parents = [
        version
        for version in versions
        if len(version.model.history) < len(lineage)
        and _list_fingerprints_of_history(version.model.history)
        == lineage[: len(version.model.history)]
    ]
    if not parents:
        raise ValueError(
            "The current model was not updated from any of the versions in the file, "
            "so there is no previous version to return to. Choose a version with "
            f"--to: {_join_version_keys(versions)}."
        )
    return max(parents, key=lambda version: len(version.model.history))


def _list_fingerprints_of_history(
    history: Sequence[TrainingHistoryEntry],
) -> list[tuple[str, ...]]:
    return [(entry.name, entry.time, entry.fingerprint) for entry in history]


def _join_version_keys(versions: Sequence[EarlierModelVersion]) -> str:
    return ", ".join(version.describe() for version in versions)
