"""Run learners over streams, score them, and choose their settings."""

from cirm.evaluation.run import run, score

__all__ = ["run", "score"]
