"""Products by oneDNN are those of PyTorch's own, with all derivatives."""

import pytest
import torch

from cirm.networks import MLP, products
from cirm.networks.products import add_product, multiply, multiply_by_onednn
from cirm.randomness import Randomness

needs_onednn = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"),
    reason="this PyTorch has no products by oneDNN",
)


def draw(*shape, seed=0):
    return Randomness((seed,)).normal(*shape)[0]


def choose_library(monkeypatch, is_onednn):
    """Let every product be computed by oneDNN, or none."""
    monkeypatch.setattr(products, "has_mkl_without_avx512", lambda: is_onednn)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)


@needs_onednn
@pytest.mark.parametrize("layout", ["dense", "transposed", "every other row"])
def test_a_product_and_its_derivatives_are_those_of_pytorch(layout):
    x, weight = draw(40, 30), draw(30, 20, seed=1)
    if layout == "transposed":
        x, weight = x.mT.contiguous().mT, weight.mT.contiguous().mT
    elif layout == "every other row":
        x, weight = draw(80, 30)[::2], draw(30, 40, seed=1)[:, ::2]
    results = []
    for function in (multiply_by_onednn, torch.mm):
        leaves = x.detach().requires_grad_(), weight.detach().requires_grad_()
        product = function(*leaves)
        first = torch.autograd.grad(product.pow(3).mean(), leaves, create_graph=True)
        loss = sum(gradient.square().sum() for gradient in first)
        second = torch.autograd.grad(loss, leaves)
        results.append((product, *first, *second))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_onednn
def test_only_what_needs_a_derivative_gets_one():
    x, weight = draw(40, 30), draw(30, 20, seed=1).requires_grad_()
    multiply_by_onednn(x, weight).sum().backward()
    assert x.grad is None
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.sum(0)[:, None].expand(30, 20))


@needs_onednn
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_network_computes_the_same_by_both_libraries(monkeypatch, replicas):
    network = MLP((8, 16, 3))
    params = torch.cat([network.init(Randomness((seed,))) for seed in range(replicas)])
    x = draw(replicas, 50, 8)
    outputs = []
    for is_onednn in (True, False):
        choose_library(monkeypatch, is_onednn)
        outputs.append(network(params, x))
    torch.testing.assert_close(*outputs)


@needs_onednn
def test_a_bias_is_added_to_each_row(monkeypatch):
    choose_library(monkeypatch, True)
    x, weight, bias = draw(2, 6, 4), draw(2, 4, 3, seed=1), draw(2, 1, 3, seed=2)
    torch.testing.assert_close(add_product(bias, x, weight), bias + x @ weight)


@pytest.mark.parametrize("case", ["double precision", "one output", "few numbers"])
def test_other_products_are_left_to_pytorch(monkeypatch, case):
    choose_library(monkeypatch, True)

    def fail(*_):
        pytest.fail("computed by oneDNN")

    monkeypatch.setattr(products, "multiply_by_onednn", fail)
    x, weight = draw(40, 30), draw(30, 20, seed=1)
    if case == "double precision":
        x, weight = x.double(), weight.double()
    elif case == "one output":
        weight = weight[:, :1]
    else:
        monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 40 * 30 * 20 + 1)
    torch.testing.assert_close(multiply(x, weight), x @ weight)
