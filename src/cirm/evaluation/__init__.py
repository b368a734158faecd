"""Run learners over streams, score them, and choose their settings."""

from cirm.evaluation.run import compute_mean_score, run

__all__ = ["compute_mean_score", "run"]
