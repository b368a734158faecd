"""Tables of the user's own: our learners beside scikit-learn and LightGBM.

Everybody gets the same table of 29 numbers in memory, fits it and predicts rows that
were not fitted. Times are processor times in one process, and contenders take turns.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import pandas as pd

from benchmarks.timing import (
    Report,
    compute_quartiles,
    compute_time_ratios,
    time_functions_in_turn,
)
from cirm import fit, predict
from cirm.model.model import Model

SIZES = (1_000, 10_000, 100_000)
PREDICTED_ROWS = 20_000
COLUMNS = 29
TWO_NETWORKS_ROWS = 1_000  # that `irmg` is fitted to, one network per half
BASELINE = "gradient boosting"
"""The contender whose time the others are multiples of."""


class Fitted(Protocol):
    """What a contender has fitted."""

    def predict(self, table: pd.DataFrame) -> Any:  # noqa: ANN401
        """Return the classes of rows."""


class OurModel:
    """A model of ours behind the interface of scikit-learn."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, table: pd.DataFrame) -> Any:  # noqa: ANN401
        """Return the classes of rows."""
        return predict(self.model, table)["prediction"].to_numpy()


Fit = Callable[[pd.DataFrame, pd.Series], Fitted]


def make_table(rows: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    """Return columns and classes: a linear signal, one bend and one interaction."""
    rng = np.random.default_rng(seed)
    weights = 0.31 * np.random.default_rng(1).normal(size=COLUMNS)
    x = rng.normal(size=(rows, COLUMNS))
    odds = x @ weights + 0.5 * np.abs(x[:, 0]) - 0.4 + 0.35 * x[:, 1] * x[:, 2]
    is_positive = rng.random(rows) < 1 / (1 + np.exp(-odds))
    names = [f"x{number}" for number in range(COLUMNS)]
    classes = pd.Series(np.where(is_positive, "yes", "no"), name="y")
    return pd.DataFrame(x, columns=names), classes


def list_contenders(rows: int) -> dict[str, Fit]:
    """Return how each contender is fitted to so many rows, by name."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    def fit_ours(learner: str) -> Fit:
        return lambda x, y: OurModel(fit(x.assign(y=y), "y", learner=learner))

    contenders: dict[str, Fit] = {
        "logistic regression": LogisticRegression(max_iter=500).fit,
        BASELINE: HistGradientBoostingClassifier().fit,
    }
    if find_spec("lightgbm") is not None:
        from lightgbm import LGBMClassifier  # type: ignore[import-not-found]

        contenders["LightGBM"] = LGBMClassifier(n_jobs=1, verbose=-1).fit
    contenders |= {"erm": fit_ours("erm"), "steady": fit_ours("steady")}
    if rows <= TWO_NETWORKS_ROWS:
        contenders["irmg, two networks"] = fit_two_networks
    return contenders


def fit_two_networks(x: pd.DataFrame, y: pd.Series) -> OurModel:
    """Fit the two players of a game to the halves of a table."""
    place = np.where(np.arange(len(x)) < len(x) // 2, "first", "second")
    table = x.assign(y=y, place=place)
    return OurModel(fit(table, "y", environment="place", learner="irmg"))


def measure_tables(quick: bool, rounds: int, report: Report) -> list[dict[str, Any]]:
    """Measure fitting, accuracy and predicting of each contender at each size."""
    fresh, truth = make_table(1_000 if quick else PREDICTED_ROWS, 1)
    results = []
    for rows in (200, 400) if quick else SIZES:
        report(f"tables, {rows:,} rows")
        own_rounds = 1 if rows > 50_000 else rounds
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times, models = time_fits(*make_table(rows, 0), own_rounds)
            works = {
                name: (lambda model=model: model.predict(fresh))
                for name, model in models.items()
            }
            speeds = time_functions_in_turn(works, rounds)
        results += [
            {
                "contender": name,
                "rows": rows,
                "fit": compute_quartiles(times[name]),
                "ratio": compute_time_ratios(times[name], times[BASELINE]),
                "accuracy": 100 * float(np.mean(model.predict(fresh) == truth)),
                "rows_per_second": len(fresh) / min(speeds[name]),
            }
            for name, model in models.items()
        ]
    return results


def time_fits(
    table: pd.DataFrame, classes: pd.Series, rounds: int
) -> tuple[dict[str, list[float]], dict[str, Fitted]]:
    """Return the seconds of each contender's fits, and what was fitted last."""
    models: dict[str, Fitted] = {}

    def fit_contender(name: str, work: Fit) -> None:
        models[name] = work(table, classes)

    works = {
        name: (lambda name=name, work=work: fit_contender(name, work))
        for name, work in list_contenders(len(table)).items()
    }
    return time_functions_in_turn(works, rounds), models
