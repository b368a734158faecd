"""Which search does `steady` follow where all sensors drift and nothing is a shortcut?

    python -m benchmarks.notes.drifting_sensors [--widths 64 128] [--draws 4]

Draws vectors of sensors whose gains and offsets change from place to place. A model
learns from two, then from four places of 600 rows, one after another. Prints for each
view what is called unstable, and the accuracy at the next place; every feature is
stable, and 10 % of the labels are wrong.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.notes.wide_vectors import VIEWS
from cirm import InvariantClassifier

PLACES, ROWS, FACTORS = 5, 600, 6
RATE = 0.3  # standard deviation of a step of a logarithmic gain, and of an offset

Place = tuple[NDArray[np.float32], NDArray[np.int64]]


def draw_places(width: int, rng: np.random.Generator) -> list[Place]:
    """Draw the rows and labels of all places."""
    means = rng.standard_normal((2, width))
    load = rng.standard_normal((FACTORS, width))
    gain = offset = np.zeros(width)
    places = []
    for _ in range(PLACES):
        y = rng.integers(0, 2, ROWS)
        x = 2 + means[y] + rng.standard_normal((ROWS, FACTORS)) @ load
        x = (x + 0.7 * rng.standard_normal(x.shape)) * np.exp(gain) + offset
        label = np.where(rng.random(ROWS) < 0.1, 1 - y, y)
        places.append((x.astype(np.float32), label))
        gain = gain + RATE * rng.standard_normal(width)
        offset = offset + RATE * rng.standard_normal(width)
    return places


def main() -> None:
    """Print one line per width, draw, view and number of places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--draws", type=int, default=4)
    options = parser.parse_args()
    for width in options.widths:
        for draw in range(options.draws):
            places = draw_places(width, np.random.default_rng(draw))
            for view, settings in VIEWS.items():
                model = InvariantClassifier(settings=settings)
                for seen, place in enumerate(places[:-1], 1):
                    model.partial_fit(*place)
                    if seen not in (2, PLACES - 1):
                        continue
                    own = model.model_
                    found = (own.learner.list_unstable_features(own.state) or [[]])[0]
                    x, y = places[seen]
                    score = f"{100 * (model.predict(x) == y).mean():.1f}"
                    words = ", ".join(found) or "nothing"
                    print(width, draw, view, seen, words, score, sep="\t", flush=True)


if __name__ == "__main__":
    main()
