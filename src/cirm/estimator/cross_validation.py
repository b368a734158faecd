"""Notice groups that cross-validation uses for its folds but `fit` does not receive."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any

MOST_FRAMES = 60  # between a clone and the function that validates it
ADVICE = (
    "groups were given to cross-validation, but no environments reach fit, so all "
    "training rows count as one environment. Pass them on with "
    "sklearn.set_config(enable_metadata_routing=True), "
    'estimator.set_fit_request(environments="groups") and params={"groups": groups}.'
)


def warn_of_unused_groups(requests: Mapping[str, Any]) -> None:
    """Warn if scikit-learn validates by groups that do not reach `fit`.

    Cross-validation clones an estimator before each fit. Only there, in the same
    process, can be seen what it was called with.
    """
    called = _find_cross_validation_arguments()
    if called is None:
        return
    names = set(called)
    wanted = requests.get("environments")
    reaching = {wanted} if isinstance(wanted, str) else {"environments"}
    # The steps of a pipeline receive them as `step__environments`.
    if any(name.rpartition("__")[2] in reaching for name in names):
        return
    if "groups" in names:
        warnings.warn(ADVICE, UserWarning, stacklevel=3)


def _find_cross_validation_arguments() -> dict[str, Any] | None:
    """Return what a function of `sklearn.model_selection` above was called with."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("sklearn.model_selection"):
            local = frame.f_locals
            given = {**(local.get("params") or {}), **(local.get("fit_params") or {})}
            if local.get("groups") is not None:
                given["groups"] = local["groups"]
            if given:
                return given
        frame = frame.f_back
    return None
