"""What to expect at a place never seen, from the same quantity at places seen.

The values of places are draws from a normal distribution, each observed with a sampling
error: the random-effects model of meta-analysis. With one to four places the estimate
of its spread is worth little, and a t-distribution with so few degrees of freedom is
either far too wide or, where the estimate is zero, too narrow. So the spread has a
prior, and the prediction is averaged over what the places leave open of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cirm.data.values import Numbers

SPREADS = np.geomspace(0.01, 8.0, 60)  # standard deviations between places to average
USUAL_SPREAD = 0.5  # of logarithms and log odds: a factor of 1.6 between places. It is
# the scale of the prior, which decides with a single place and hardly with five; see
# the table of measured coverages in docs/warnings.md
NODES = 15  # of a Gauss-Hermite rule, exact for polynomials of degree 29


class NewPlacePredictiveDistribution(NamedTuple):
    """The distribution of a quantity at a new place: a mixture of normal ones, [s]."""

    means: Numbers
    deviations: Numbers
    weights: Numbers

    def compute_cumulative_probability(self, values: Numbers) -> Numbers:
        """Return the probability that the quantity is at most each of points [n]."""
        from scipy import special

        scaled = (values[:, None] - self.means) / self.deviations
        below: Numbers = special.ndtr(scaled) @ self.weights
        return below

    def compute_expected_probability(self) -> float:
        """Return the mean of a probability whose log odds have this distribution."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        odds = np.exp(-(self.means[:, None] + self.deviations[:, None] * nodes))
        means = (1 / (1 + odds)) @ (weights / weights.sum())
        return float(means @ self.weights)


def predict_quantity_at_new_place(
    values: Numbers, variances: Numbers
) -> NewPlacePredictiveDistribution:
    """Predict a quantity for a new place.

    Args:
        values: The quantity at each place seen, [k].
        variances: Its sampling variances, [k].

    Returns:
        The predictive distribution, under a flat prior of the mean over places and a
        half-normal prior of the spread between them.

    Example:
        >>> import numpy as np
        >>> means, variances = np.array([1.0, 3.0]), np.array([0.1, 0.1])
        >>> new = predict_quantity_at_new_place(means, variances)
        >>> float(new.compute_cumulative_probability(np.array([2.0]))[0].round(3))
        0.5
    """
    precisions = 1 / (variances[:, None] + SPREADS**2)
    total = precisions.sum(0)
    means = (precisions * values[:, None]).sum(0) / total
    squares = (precisions * (values[:, None] - means) ** 2).sum(0)
    evidence = 0.5 * (np.log(precisions).sum(0) - np.log(total) - squares)
    # The grid is even in the logarithm, hence the last term.
    evidence += np.log(SPREADS) - 0.5 * (SPREADS / USUAL_SPREAD) ** 2
    weights = np.exp(evidence - evidence.max())
    return NewPlacePredictiveDistribution(
        means, np.sqrt(1 / total + SPREADS**2), weights / weights.sum()
    )
