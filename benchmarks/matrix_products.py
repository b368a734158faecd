"""The floor of a training step: its matrix products alone, with the same shapes.

Each is computed by the library that the learners use for it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from cirm.networks.products import multiply

Product = tuple[Tensor, Tensor]
"""Two factors."""


def list_plain_products(sizes: tuple[int, ...], rows: int) -> Callable[[], None]:
    """Return the forward and backward products, without the inputs' gradients."""
    return _multiply_all(_list_layer_products(sizes, [rows] * (len(sizes) - 1), 1))


def list_local_reparametrisation_products(
    sizes: tuple[int, ...], rows: int, samples: int
) -> Callable[[], None]:
    """Return the products of local reparametrisation, two for each plain one.

    The samples share the products of the first layer; the other layers have their own.
    """
    counts = [rows] + [rows * samples] * (len(sizes) - 2)
    return _multiply_all(_list_layer_products(sizes, counts, 2))


def list_sampled_weight_products(
    sizes: tuple[int, ...], rows: int, samples: int
) -> Callable[[], None]:
    """Return the products of networks with sampled weights, one set per sample."""
    return _multiply_all(
        _list_layer_products(sizes, [rows] * (len(sizes) - 1), samples)
    )


def list_gradient_norm_products(
    sizes: tuple[int, ...], rows: int, samples: int
) -> Callable[[], None]:
    """Return the products of a loss that contains the norm of its own gradient.

    A forward product has two backward products, and differentiating these three again
    gives six more: nine in total. The first layer, whose inputs need no gradient, has
    four. Local reparametrisation doubles both.
    """
    counts = [rows] + [rows * samples] * (len(sizes) - 2)
    return _multiply_all(_list_layer_products(sizes, counts, 6, 4))


def _list_layer_products(
    sizes: tuple[int, ...], counts: list[int], times: int, first: int = 0
) -> list[Product]:
    """List the products of all layers, each `times` times (the first `first` times)."""
    products = []
    for place, ((a, b), rows) in enumerate(zip(pairwise(sizes), counts, strict=True)):
        x, w, back = torch.rand(rows, a), torch.rand(a, b), torch.rand(rows, b)
        some = [(x, w), (x.T, back)]
        if place:
            some.append((back, w.T))
        products += some * (times if place else first or times)
    return products


def _multiply_all(products: list[Product]) -> Callable[[], None]:
    def work() -> None:
        for a, b in products:
            multiply(a, b)

    return work
