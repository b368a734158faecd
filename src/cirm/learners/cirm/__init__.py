"""Ignore the shortcut of plain training, if other features predict where it fails."""

from cirm.learners.cirm.learner import CIRM

__all__ = ["CIRM"]
