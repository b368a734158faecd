"""Estimators with the interface of scikit-learn: a classifier and a regressor.

An environment is a place that data come from. `fit` starts with the environments it is
given, `partial_fit` continues with one more. See `cirm.fit` for what the first
environment decides.
"""

from cirm.estimator.classifier import InvariantClassifier
from cirm.estimator.regressor import InvariantRegressor

__all__ = ["InvariantClassifier", "InvariantRegressor"]
