"""IRMv1's penalty is the squared slope of each risk, weighed as the original does."""

import pytest
import torch

from cirm.environments import Environment, Examples, Task
from cirm.learners.base import PointState
from cirm.learners.erm import ERM
from cirm.learners.irmv1 import IRMv1
from cirm.likelihoods import CrossEntropy, SquaredError
from cirm.networks import MLP
from cirm.objectives import compute_irm_penalties
from cirm.randomness import Randomness
from cirm.training import Descent

SEEDS = (3, 5)
NETWORK = MLP((4, 8, 2), dropout=0.25)
DESCENT = Descent(epochs=4, batch=10, rate=0.02)


def classes(name, size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 4, generator=generator)
    noise = torch.randn(size, generator=generator)
    y = (x[:, 0] + 0.5 * noise > 0).long()
    return Environment(name, x, y, Task.classification(2))


def trained(learner, *stages):
    state = learner.init(Randomness(SEEDS))
    for index, stage in enumerate(stages):
        state = learner.observe(state, stage, Randomness(SEEDS).at(index))
    return state.params


def batch_of(*sizes, likelihood=None):
    """A batch of environments of these sizes."""
    count = sum(sizes)
    x = Randomness(SEEDS, ("x",)).normal(count, 4)
    y = (x[..., 0] > 0).long()
    if likelihood == SquaredError():
        y = x[..., 1]
    pairs = zip(x.split(sizes, 1), y.split(sizes, 1), strict=True)
    pieces = [Examples(*pair) for pair in pairs]
    return DESCENT.build_batch(pieces, Randomness(SEEDS).start_draws())


def test_without_a_penalty_it_is_erm_bit_for_bit():
    stages = (classes("a", 25, 0), classes("b", 25, 1)), (classes("c", 20, 2),)
    plain = trained(ERM(NETWORK, CrossEntropy(), DESCENT), *stages)
    free = trained(IRMv1(NETWORK, CrossEntropy(), DESCENT, penalty=0.0), *stages)
    assert torch.equal(plain, free)


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (CrossEntropy(2), 2),
        (CrossEntropy(2), 1),
        (CrossEntropy(3), 3),
        (SquaredError(), 1),
    ],
)
def test_the_penalty_is_the_squared_slope_in_a_factor_on_the_outputs(
    likelihood, outputs
):
    batch = batch_of(7, 4, likelihood=likelihood)
    answers = Randomness(SEEDS, ("outputs",)).normal(11, outputs)
    found = compute_irm_penalties(likelihood, answers, batch)
    factor = torch.ones(2, 1, 1, requires_grad=True)
    losses = likelihood.compute_losses(factor * answers, batch.y)
    for place, part in enumerate(losses.split(batch.sizes, 1)):
        risk = part.mean(1).sum()
        (slope,) = torch.autograd.grad(risk, factor, retain_graph=True)
        torch.testing.assert_close(found[:, place], slope.flatten().square())


def test_two_halves_are_unbiased_for_the_squared_slope():
    seeds, population, drawn = tuple(range(4000)), 30, 6
    x = Randomness((1,), ("outputs",)).normal(population, 1)[0]
    y = Randomness((1,), ("targets",)).normal(population)[0]
    whole = (
        SquaredError().compute_output_scale_gradients(x[None], y[None]).mean().square()
    )
    rows = Randomness(seeds).integers(population, drawn)
    pieces = [Examples(x[rows], y[rows])]
    batch = DESCENT.build_batch(pieces, Randomness(seeds).start_draws())
    halves = compute_irm_penalties(SquaredError(), batch.x, batch, use_halves=True)[
        :, 0
    ]
    square = compute_irm_penalties(SquaredError(), batch.x, batch)[:, 0]
    error = halves.std() / len(seeds) ** 0.5
    assert abs(halves.mean() - whole) < 3 * error
    assert square.mean() - whole > 10 * error  # the plain square is not


def test_each_environment_has_its_own_halves():
    batch = batch_of(5, 4, likelihood=SquaredError())
    answers = Randomness(SEEDS, ("outputs",)).normal(9, 1)
    found = compute_irm_penalties(SquaredError(), answers, batch, use_halves=True)
    slopes = SquaredError().compute_output_scale_gradients(answers, batch.y)
    for place, part in enumerate(slopes.split(batch.sizes, 1)):
        expected = part[:, ::2].mean(1) * part[:, 1::2].mean(1)
        torch.testing.assert_close(found[:, place], expected)


@pytest.mark.parametrize(("penalty", "scale"), [(0.5, 1.0), (8.0, 1 / 8)])
def test_the_loss_is_divided_by_a_weight_above_one(penalty, scale):
    learner = IRMv1(MLP((4, 8, 2)), penalty=penalty, anneal=0.0, l2=0.1)
    params = learner.init(Randomness(SEEDS)).params
    batch = batch_of(6, 6)
    outputs = learner.network(params, batch.x)
    losses = learner.likelihood.compute_losses(outputs, batch.y)
    terms = learner.compute_loss(params, PointState(params), batch)
    slopes = compute_irm_penalties(learner.likelihood, outputs, batch).mean(-1)
    torch.testing.assert_close(terms["risk"], scale * losses.mean(-1))
    torch.testing.assert_close(terms["penalty"], scale * penalty * slopes)
    torch.testing.assert_close(terms["l2"], scale * 0.1 * params.square().sum(-1))


@pytest.mark.parametrize("batch", [0, 10])
def test_the_penalty_counts_in_full_from_the_anneal_point_on(batch):
    # With a rate of next to nothing, the weight alone moves the l2 term.
    descent = Descent(epochs=10, batch=batch, rate=1e-12)
    learner = IRMv1(NETWORK, descent=descent, penalty=100.0, anneal=0.3, l2=1.0)
    scales = []

    def scaled(step, steps, numbers):
        scales.append(float(numbers["l2"][0]))

    state = learner.init(Randomness(SEEDS))
    learner.observe(state, (classes("a", 20, 0),), Randomness(SEEDS), scaled)
    ratios = [round(scale / scales[0], 4) for scale in scales]
    assert ratios == [1.0] * 3 + [0.01] * 7


def test_an_anneal_of_one_never_comes():
    assert IRMv1(NETWORK, penalty=50.0, anneal=1.0).get_penalty_weight(0.999) == 1.0
    assert IRMv1(NETWORK, penalty=0.5, anneal=1.0).get_penalty_weight(0.0) == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "penalty must not be negative, but is -1"),
        ({"anneal": 1.5}, r"anneal must be from 0 to 1, but is 1.5"),
        ({"l2": -1.0}, "l2 must not be negative, but is -1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"^irmv1: the setting {message}"):
        IRMv1(NETWORK, **settings)


@pytest.mark.parametrize("likelihood", [CrossEntropy(2), SquaredError()])
def test_the_slope_in_the_head_is_the_gradient_in_each_of_its_coordinates(likelihood):
    batch = batch_of(7, 12, likelihood=likelihood)
    network = MLP((4, 5, 2 if likelihood == CrossEntropy(2) else 1), "linear")
    params = Randomness(SEEDS).normal(network.size).requires_grad_()
    outputs, penalties = IRMv1(
        network, likelihood, slope="head"
    ).compute_outputs_and_penalties(params, batch)
    torch.testing.assert_close(outputs, network(params, batch.x))
    losses = likelihood.compute_losses(outputs, batch.y)
    for index, piece in enumerate(losses.split(batch.sizes, 1)):
        (slope,) = torch.autograd.grad(piece.mean(1).sum(), params, retain_graph=True)
        expected = slope[:, network.head].square().mean(-1)
        torch.testing.assert_close(penalties[:, index], expected)


def test_in_one_environment_the_head_of_least_risk_has_no_slope():
    source = Randomness((4,))
    x = source.at("x").normal(50, 3)[0]
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + source.at("y").normal(50)[0]
    place = Environment("a", x, y, Task.regression())
    descent = Descent(epochs=400, batch=0, rate=0.05)
    learner = IRMv1(MLP((3, 1)), SquaredError(), descent, slope="head", penalty=5.0)
    found = learner.observe(learner.init(Randomness((0,))), (place,), Randomness((0,)))
    wide = torch.cat([x, torch.ones(50, 1)], 1)
    exact = torch.linalg.lstsq(wide, y).solution
    torch.testing.assert_close(found.params[0], exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            {"slope": "tail"},
            "^irmv1: the setting slope must be factor or head, but is 'tail'",
        ),
        (
            {"slope": "head", "halves": True},
            "halves must be False if slope is head, but is True",
        ),
    ],
)
def test_slopes_that_make_no_sense_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        IRMv1(NETWORK, **settings)
