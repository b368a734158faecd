"""Shortcuts in regressions on images and on long vectors.

`python -m benchmarks.image_regressions --seeds 20 21` draws two environments of 1,000
rows in sequence and an unseen one. Images are MNIST at half of its width, and the
target is the slant of the figure plus noise; or inputs are vectors of 600 entries, and
the target is linear in 40 directions. A number u = a y + noise is added, with a = 1 and
0.7, and -1 in the unseen environment: the brightness of a corner ("mark") or of the
image ("brightness"), the share of a colour, or a pattern over all entries ("vectors").
One line for each run tells the explained variance in percent at the unseen environment:
of the learner, of the same one adapted to 100 and 300 rows, and of the same one where u
is zero ("oracle").
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from cirm.data.downloads import load_images_of_source
from cirm.environments import Environment, Task
from cirm.learners import create
from cirm.learners.base import Learner
from cirm.learners.steady import Steady
from cirm.randomness import Randomness

KINDS = ("mark", "colour", "vectors", "brightness")
SLOPES, ROWS = (1.0, 0.7, -1.0), (1000, 1000, 2000)
NOISE = 0.5  # of u; that of the target is 0.6, of which 1.17 is the standard deviation
ENTRIES = 600


def measure_slant(images: Tensor) -> Tensor:
    """Return how far figures [n, side, side] lean, standardised."""
    at = torch.arange(images.shape[-1]).float()
    mass = images.sum((1, 2)).clamp(min=1e-6)
    rows = at - (images.sum(2) @ at / mass)[:, None]
    columns = at - (images.sum(1) @ at / mass)[:, None]
    product = torch.einsum("nij,ni,nj->n", images, rows, columns)
    slant = product / torch.einsum("nij,ni->n", images, rows.square())
    return (slant + 0.2) / 0.26


def add_number_to_images(images: Tensor, numbers: Tensor, kind: str) -> Tensor:
    """Return images [n, channel, side, side] that show a number [n]."""
    u, images = numbers[:, None, None, None], images[:, None].clone()
    if kind == "mark":
        images[:, :, :3, :3] += 0.5 + 0.15 * u
    if kind == "brightness":
        return images * (0.2 * u).exp()
    if kind == "colour":
        share = (0.5 + 0.15 * u).clamp(0.05, 0.95)
        return torch.cat([images * share, images * (1 - share)], 1)
    return images


def draw_environments(kind: str, seed: int, is_oracle: bool) -> list[Environment]:
    """Return two environments to train on, and an unseen one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    known = load_images_of_source("mnist").train_images
    order, first = torch.randperm(len(known), generator=generator), 0
    turn = torch.linalg.qr(draw(ENTRIES, ENTRIES))[0]
    weights, pattern = draw(40) / 40**0.5, 1.5 * draw(ENTRIES) / ENTRIES**0.5
    scale = (1 + torch.arange(ENTRIES).float()).rsqrt()
    environments: list[Environment] = []
    for slope, rows in zip(SLOPES, ROWS, strict=True):
        if kind == "vectors":
            inputs = draw(rows, ENTRIES)
            target = inputs[:, :40] @ weights
        else:
            images = known[order[first : first + rows]].float()
            images = images.unflatten(1, (14, 2)).unflatten(3, (14, 2)).mean((2, 4))
            first, images = first + rows, images / 255
            target = measure_slant(images)
        target = (target + 0.6 * draw(rows)) / 1.17
        number = slope * target + NOISE * draw(rows)
        number = 0 * number if is_oracle else number
        if kind == "vectors":
            inputs = (inputs * scale) @ turn.T + number[:, None] * pattern
        else:
            inputs = add_number_to_images(images, number, kind)
        name = f"place {len(environments)}"
        environments.append(Environment(name, inputs, target, Task.regression()))
    return environments


def measure_explained_variance(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401
    inputs: Tensor,
    targets: Tensor,
) -> float:
    """Return the explained variance in percent."""
    with torch.no_grad():
        predictions = learner.predict(state, inputs[None])[0, :, 0]
    return 100 * float(1 - (predictions - targets).square().mean() / targets.var())


def run_sequence(kind: str, seed: int, is_oracle: bool) -> tuple[int, list[float]]:
    """Return how many numbers were found, and scores at the unseen environment."""
    *places, unseen = draw_environments(kind, seed, is_oracle)
    learner = create(Steady(view="directions"), places[0])
    state = learner.init(Randomness((seed,)))
    for stage, place in enumerate(places):
        state = learner.observe(state, (place,), Randomness((seed,)).at(stage))
    inputs, targets = (part[0] for part in unseen.take_all(1)[:2])
    scores = [measure_explained_variance(learner, state, inputs, targets)]
    for rows in (100, 300):
        adapted = learner.adapt(state, inputs[None, :rows])
        rest = inputs[rows:], targets[rows:]
        scores.append(measure_explained_variance(learner, adapted, *rest))
    return int(state.found), scores


def main() -> None:
    """Print one line for each kind and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options = parser.parse_args()
    for kind in options.kinds:
        for seed in options.seeds:
            found, scores = run_sequence(kind, seed, is_oracle=False)
            _, (oracle, *_) = run_sequence(kind, seed, is_oracle=True)
            told = ", ".join(f"{score:.1f}" for score in [*scores, oracle])
            print(f"{kind} {seed}: found {found}; {told}", flush=True)


if __name__ == "__main__":
    main()
