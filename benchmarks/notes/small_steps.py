"""How often the search for directions notices a shortcut that changes in small steps.

`python -m benchmarks.notes.small_steps` simulates sequences of places with two classes.
A shortcut that is read without error contradicts 20 to 10 % of the rows, in even steps
or at random one of the two, or nothing changes. Each place is compared with all before
it. The sum of changes with their sign is used or left out.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from cirm.learners.steady.directions_compare import Trend
from cirm.learners.steady.directions_search import convert_z_to_p_value
from cirm.learners.steady.directions_stage import compute_significance_level

LEVEL = 0.05
MOST, LEAST = 0.2, 0.1  # of the rows that contradict the shortcut
PLACES = ((3, 240), (3, 479), (6, 150), (6, 240), (10, 150), (10, 300))


def draw_changes(rates: Tensor, n_rows: int, generator: torch.Generator) -> Tensor:
    """Return z [sequence, k] of each place, compared with all before it."""
    probabilities = rates.double()
    shares = torch.binomial(
        torch.full_like(probabilities, n_rows), probabilities, generator=generator
    )
    shares = shares / n_rows
    columns = []
    for k in range(1, rates.shape[1]):
        before, here = shares[:, :k].mean(1), shares[:, k]
        variance = (here * (1 - here) + before * (1 - before) / k) / n_rows
        columns.append((before - here) / variance.clamp(min=1e-12).sqrt())
    return torch.stack(columns, 1)


def is_noticed(changes: list[float], uses_trend: bool) -> bool:
    """Whether a sequence of changes is noticed at any place."""
    trend = Trend()
    for look, z in enumerate(changes):
        p_value = convert_z_to_p_value(z)
        trend = trend.add(p_value, z)
        if uses_trend:
            p_value = trend.combine_with_last_p_value(p_value)
        if p_value < compute_significance_level(LEVEL, look, 1):
            return True
    return False


def measure_rates(changes: Tensor) -> tuple[float, float]:
    """Return how often sequences are noticed, with the sum of changes and without."""
    sequences = changes.tolist()
    with_trend, without = (
        sum(is_noticed(sequence, uses_trend) for sequence in sequences)
        for uses_trend in (True, False)
    )
    return with_trend / len(sequences), without / len(sequences)


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=20_000)
    options = parser.parse_args()
    n, generator = options.sequences, torch.Generator().manual_seed(0)
    print("any false alarm, as a part of the level (with the sum, without)")
    for places in (2, 3, 4, 6, 11, 41):
        null = torch.randn(n, places - 1, generator=generator)
        rates = [rate / LEVEL for rate in measure_rates(null)]
        print(f"{places} places: {rates[0]:.2f}, {rates[1]:.2f}")
    print("noticed: even steps (with the sum, without); at random")
    for places, rows in PLACES:
        steps = torch.linspace(MOST, LEAST, places).expand(n, -1)
        chosen = torch.rand(n, places, generator=generator) < 0.5
        results = [
            measure_rates(draw_changes(rates, rows, generator))
            for rates in (steps, torch.where(chosen, MOST, LEAST))
        ]
        words = "; ".join(f"{first:.2f}, {second:.2f}" for first, second in results)
        print(f"{places} places of {rows} rows: {words}")


if __name__ == "__main__":
    main()
