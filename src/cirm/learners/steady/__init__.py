"""Learn what holds everywhere, and what a changing feature means at each place."""

from cirm.learners.steady.learner import Steady

__all__ = ["Steady"]
