"""What does `steady` make of embeddings with a shortcut, and with labels of two kinds?

    python -m benchmarks.notes.embeddings [--rows 300 1000] [--draws 2]
    python -m benchmarks.notes.embeddings --labels [--rows 300 1000] [--draws 2]
    python -m benchmarks.notes.embeddings --source mnist [--rows 1000] [--draws 2]

Draws vectors of 100 numbers in which the class and a shortcut are random directions; a
quarter of the labels are replaced. The shortcut contradicts 20 and 10 % (or 10 and 30
%) of the labels of two environments, and 90 % at the unseen one. Prints, for each
distance of the class means and of the shortcut's (in standard deviations), what was
found, the accuracy at the unseen environment without and after adapting to its rows,
and the accuracy of the same learner if there is no shortcut.

With --labels there is no shortcut, but 2, then 30 % of the labels are replaced, and 10
% at the unseen environment. Everything found is then what tells the classes. So it is
with --source, for images at half of their width, two classes (whether the label is
above 4) or all; it is also tried with 30, then 2 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from cirm import InvariantClassifier
from cirm.data.downloads import load_images_and_count_classes

WIDTH = 100
DISTANCES = ((2.0, 5.0), (3.5, 6.0), (2.0, 10.0))
CONTRADICTED = ((0.2, 0.1, 0.9), (0.1, 0.3, 0.9))
REPLACED = 0.25
WRONG = (0.02, 0.3, 0.1)
CLASSES = (2, 3, 5, 10)
APART = 9.0  # distance of class means if labels are of different quality

Place = tuple[NDArray[np.float32], NDArray[np.int64]]


class Scores(NamedTuple):
    """What was found, and the accuracies at the unseen place."""

    found: str
    unseen: float
    adapted: float


def draw_means(
    classes: int, distance: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw means [class, d] that are so far apart on average."""
    return distance / (2 * WIDTH) ** 0.5 * rng.standard_normal((classes, WIDTH))


def draw_places_with_shortcut(
    rows: int,
    distances: tuple[float, float],
    contradicted: Sequence[float],
    rng: np.random.Generator,
) -> list[Place]:
    """Draw environments of two classes with a shortcut."""
    means, marks = (draw_means(2, distance, rng) for distance in distances)
    places = []
    for share in contradicted:
        y = rng.integers(0, 2, rows)
        label = np.where(rng.random(rows) < REPLACED, 1 - y, y)
        u = np.where(rng.random(rows) < share, 1 - label, label)
        x = means[y] + marks[u] + rng.standard_normal((rows, WIDTH))
        places.append((x.astype(np.float32), label))
    return places


def draw_places_with_wrong_labels(
    rows: int, classes: int, rng: np.random.Generator
) -> list[Place]:
    """Draw environments whose labels are wrong in different shares of the rows."""
    means = draw_means(classes, APART, rng)
    places = []
    for share in WRONG:
        y = rng.integers(0, classes, rows)
        other = rng.integers(0, classes, rows)
        label = np.where(rng.random(rows) < share, other, y)
        x = means[y] + rng.standard_normal((rows, WIDTH))
        places.append((x.astype(np.float32), label))
    return places


def draw_images_with_wrong_labels(
    source: str, rows: int, classes: int, shares: Sequence[float], draw: int
) -> list[Place]:
    """Draw environments of images, whose labels are wrong in shares of the rows."""
    images, _ = load_images_and_count_classes(source)
    rng = np.random.default_rng(draw)
    order = rng.permutation(len(images.train_images))
    places = []
    for i, share in enumerate(shares):
        own = torch.from_numpy(order[i * rows : (i + 1) * rows])
        x = F.avg_pool2d(images.train_images[own][:, None].float() / 255, 2).numpy()
        y = images.train_labels[own].numpy().astype(np.int64)
        y = (y > 4).astype(np.int64) if classes == 2 else y
        other = rng.integers(0, classes, rows)
        places.append((x, np.where(rng.random(rows) < share, other, y)))
    return places


def measure(places: list[Place], view: str) -> Scores:
    """Learn from all places but the last, and score the last one."""
    model = InvariantClassifier(settings={"view": view})
    for x, y in places[:-1]:
        model.partial_fit(x, y)
    x, y = places[-1]
    learner, state = model.model_.learner, model.model_.state
    found = (learner.list_unstable_features(state) or [[]])[0]
    scores = (100 * (m.predict(x) == y).mean() for m in (model, model.adapt(x)))
    return Scores(", ".join(found) or "nothing", *scores)


def main() -> None:
    """Print one line per number of rows, distances, shares and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--view", default="directions")
    parser.add_argument("--labels", action="store_true")
    parser.add_argument("--source", help="a set of images, for example mnist")
    options = parser.parse_args()
    for rows in options.rows:
        for draw in range(options.draws):
            if options.source:
                for classes in (2, 10):
                    for shares in (WRONG, (WRONG[1], WRONG[0], WRONG[2])):
                        places = draw_images_with_wrong_labels(
                            options.source, rows, classes, shares, draw
                        )
                        words = format_scores(measure(places, "auto"))
                        print(
                            rows, draw, classes, *shares, *words, sep="\t", flush=True
                        )
                continue
            if options.labels:
                for classes in CLASSES:
                    rng = np.random.default_rng(draw)
                    places = draw_places_with_wrong_labels(rows, classes, rng)
                    own = measure(places, options.view)
                    print(
                        rows, draw, classes, *format_scores(own), sep="\t", flush=True
                    )
                continue
            for distances in DISTANCES:
                for shares in CONTRADICTED:
                    rng = np.random.default_rng(draw)
                    places = draw_places_with_shortcut(rows, distances, shares, rng)
                    without = (distances[0], 0.0)
                    rng = np.random.default_rng(draw)
                    plain = draw_places_with_shortcut(rows, without, shares, rng)
                    words = format_scores(measure(places, options.view))
                    oracle = f"{measure(plain, options.view).unseen:.1f}"
                    cells = (*distances, *shares[:2], *words, oracle)
                    print(rows, draw, *cells, sep="\t", flush=True)


def format_scores(scores: Scores) -> list[str]:
    """Return what was found, and accuracies with a digit."""
    return [scores.found, f"{scores.unseen:.1f}", f"{scores.adapted:.1f}"]


if __name__ == "__main__":
    main()
