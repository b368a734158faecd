"""Products by oneDNN are those of PyTorch's own, with all derivatives."""

from unittest.mock import Mock

import pytest
import torch
from torch.autograd import forward_ad

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


@pytest.mark.parametrize(
    "case", ["double precision", "one output", "few numbers", "new shape"]
)
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
    elif case == "few numbers":
        monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 40 * 30 * 20 + 1)
    product = multiply(x, weight, is_shape_new=case == "new shape")
    torch.testing.assert_close(product, x @ weight)


@needs_onednn
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # used by jvp
@pytest.mark.parametrize("transform", ["grad", "vmap of grad", "jvp", "forward mode"])
def test_the_transforms_of_torch_work_whatever_the_library(monkeypatch, transform):
    network = MLP((8, 16, 3), "relu")
    params, slope = (network.init(Randomness((seed,))) for seed in (0, 1))
    x = draw(1, 50, 8)

    def compute_loss(params):
        return network(params, x).square().mean()

    compute = {
        "grad": lambda: torch.func.grad(compute_loss)(params),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(compute_loss))(
            torch.stack([params, slope])
        ),
        "jvp": lambda: torch.func.jvp(compute_loss, (params,), (slope,))[1],
        "forward mode": lambda: compute_slope_forward(compute_loss, params, slope),
    }[transform]
    results = []
    for is_onednn in (True, False):
        choose_library(monkeypatch, is_onednn)
        results.append(compute())
    torch.testing.assert_close(*results)


def compute_slope_forward(function, params, direction):
    with forward_ad.dual_level():
        result = function(forward_ad.make_dual(params, direction))
        return forward_ad.unpack_dual(result).tangent


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("mode", ["traced", "in lower precision"])
def test_torch_may_change_what_is_computed(monkeypatch, mode):
    choose_library(monkeypatch, True)
    monkeypatch.setattr(products, "multiply_by_onednn", None)
    x, weight = draw(40, 30), draw(30, 20, seed=1)
    if mode == "traced":
        product = torch.jit.trace(multiply, (x, weight), check_trace=False)(x, weight)
        torch.testing.assert_close(product, x @ weight)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            assert multiply(x, weight).dtype == torch.bfloat16


def test_another_version_of_torch_without_such_a_product_is_left_alone(monkeypatch):
    monkeypatch.setattr(products, "_call_onednn", lambda x, weight: x @ weight)
    assert products.can_multiply_by_onednn()
    for error in (AttributeError, RuntimeError, TypeError):
        monkeypatch.setattr(products, "_call_onednn", Mock(side_effect=error))
        assert not products.can_multiply_by_onednn()
