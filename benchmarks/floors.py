"""The least that a step can take: its bare matrix products, at the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

Product = tuple[Tensor, Tensor, Tensor]
"""Two factors, and where their product goes."""


def plain(sizes: tuple[int, ...], rows: int) -> Callable[[], None]:
    """Forward and backward products of so many examples; none for inputs' gradients."""
    return _run(_layers(sizes, [rows] * (len(sizes) - 1), 1))


def sums(sizes: tuple[int, ...], rows: int, samples: int) -> Callable[[], None]:
    """Products of local reparametrisation: two for each of the plain ones.

    The samples share the first layer's, and have their own in the others.
    """
    counts = [rows] + [rows * samples] * (len(sizes) - 2)
    return _run(_layers(sizes, counts, 2))


def weights(sizes: tuple[int, ...], rows: int, samples: int) -> Callable[[], None]:
    """Products of networks that are drawn as a whole: the plain ones for each."""
    return _run(_layers(sizes, [rows] * (len(sizes) - 1), samples))


def constrained(sizes: tuple[int, ...], rows: int, samples: int) -> Callable[[], None]:
    """Products of sums where the gradient's own size is descended.

    A backward pass has two products for one of the forward pass; differentiated once
    more, each of the three has two again: nine in all. The first layer, whose inputs
    need no gradient, has four.
    """
    counts = [rows] + [rows * samples] * (len(sizes) - 2)
    return _run(_layers(sizes, counts, 6, 4))


def _layers(
    sizes: tuple[int, ...], counts: list[int], times: int, first: int = 0
) -> list[Product]:
    """Each layer's products so many times, those of the first as often as it says."""
    products = []
    for place, ((a, b), rows) in enumerate(zip(pairwise(sizes), counts, strict=True)):
        x, w, back = torch.rand(rows, a), torch.rand(a, b), torch.rand(rows, b)
        found = [(x, w, torch.empty(rows, b)), (x.T, back, torch.empty(a, b))]
        if place:
            found.append((back, w.T, torch.empty(rows, a)))
        products += found * (times if place else first or times)
    return products


def _run(products: list[Product]) -> Callable[[], None]:
    def work() -> None:
        for a, b, out in products:
            torch.mm(a, b, out=out)

    return work
