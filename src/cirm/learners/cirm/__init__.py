"""Drops what a plain model goes by, if something else predicts where that fails."""

from cirm.learners.cirm.learner import CIRM

__all__ = ["CIRM"]
