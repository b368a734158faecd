"""Learners run over streams, and the records this leaves."""

from cirm.evaluation.run import run, score

__all__ = ["run", "score"]
