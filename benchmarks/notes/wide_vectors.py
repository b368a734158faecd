"""How does `steady` search vectors of many numbers: by column, by direction, or both?

    python -m benchmarks.notes.wide_vectors [--widths 64 300] [--draws 2] [--none]

Draws vectors of normal numbers with a shortcut that is either one column or a direction
of all columns. It contradicts 20 and 10 % of the labels of two environments of 1,000
rows, and 90 % at the unseen one. Prints for each view what was found, the accuracy at
the unseen environment without and after adapting to its 4,000 rows, and the seconds of
processor time of training. With --none there is no shortcut, and everything found is a
false alarm.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cirm import InvariantClassifier

CONTRADICTED = (0.2, 0.1, 0.9)
ROWS = (1000, 1000, 4000)
COLUMN = 7
VIEWS: dict[str, dict[str, Any]] = {
    "auto": {},
    "columns": {"view": "columns"},
    "directions": {"view": "directions", "network": "linear"},
}

Numbers = NDArray[np.float32]


class Places(NamedTuple):
    """What the environments of a draw have in common.

    Attributes:
        kind: Whether the shortcut is in one "column", is "spread", or there is "none".
        mixing: Matrix that relates the columns, [d, d].
        stable: Effect of what is stable, [d].
        shortcut: Difference that a spread shortcut makes, [d].
    """

    kind: str
    mixing: NDArray[np.float64]
    stable: NDArray[np.float64]
    shortcut: NDArray[np.float64]

    def draw(
        self, rows: int, contradicted: float, rng: np.random.Generator
    ) -> tuple[Numbers, NDArray[np.int64]]:
        """Draw the rows and labels of an environment."""
        y = rng.integers(0, 2, rows)
        label = np.where(rng.random(rows) < 0.25, 1 - y, y)
        u = np.where(rng.random(rows) < contradicted, 1 - label, label)
        x = rng.standard_normal((rows, len(self.stable))) @ self.mixing
        x += (2 * y - 1)[:, None] * self.stable
        if self.kind == "spread":
            x += (2 * u - 1)[:, None] * self.shortcut
        if self.kind == "column":
            x[:, COLUMN] = 2 * u - 1 + 0.6 * rng.standard_normal(rows)
        return x.astype(np.float32), label


def create_places(kind: str, width: int, rng: np.random.Generator) -> Places:
    """Draw how columns are related, and what is stable."""
    turn = np.linalg.qr(rng.standard_normal((width, width)))[0]
    mixing = turn * np.exp(0.7 * rng.standard_normal(width))[:, None]
    stable, shortcut = rng.standard_normal((2, width)) / width**0.5
    return Places(kind, mixing, 1.6 * stable, 2.5 * shortcut)


def measure_view(
    view: str, places: list[tuple[Numbers, NDArray[np.int64]]]
) -> list[str]:
    """Return what a view found, and how well it predicts the last environment."""
    start = time.process_time()
    model = InvariantClassifier(settings=VIEWS[view])
    for x, y in places[:2]:
        model.partial_fit(x, y)
    seconds = time.process_time() - start
    x, y = places[2]
    learner, state = model.model_.learner, model.model_.state
    found = (learner.list_unstable_features(state) or [[]])[0]
    scores = [100 * (m.predict(x) == y).mean() for m in (model, model.adapt(x))]
    words = ", ".join(found) or "nothing"
    return [view, words, *(f"{score:.1f}" for score in scores), f"{seconds:.1f} s"]


def main() -> None:
    """Print one line per kind of shortcut, width, draw and view."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 300])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--none", action="store_true")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    options = parser.parse_args()
    for kind in ("none",) if options.none else ("column", "spread"):
        for width in options.widths:
            for draw in range(options.draws):
                rng = np.random.default_rng(draw)
                places = create_places(kind, width, rng)
                drawn = [
                    places.draw(n, share, rng)
                    for n, share in zip(ROWS, CONTRADICTED, strict=True)
                ]
                for view in options.views:
                    cells = measure_view(view, drawn)
                    print(kind, width, draw, *cells, sep="\t", flush=True)


if __name__ == "__main__":
    main()
