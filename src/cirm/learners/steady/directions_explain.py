"""Put into words which directions are unstable, and what an adaptation changed."""

from __future__ import annotations

from typing import Any

from cirm.learners.steady.directions_state import State


def explain_state(state: State, classification: bool) -> dict[str, Any]:
    """Explain the state of one replica."""
    return {"verdict": "", "evidence": [], "unstable": []}
