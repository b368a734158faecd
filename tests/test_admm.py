import pytest
import torch

from cirm.admm import (
    ADMM,
    ADMMBatchObjectives,
    ADMMVariables,
    compute_lagrangian_gradient,
    rescale_lagrange_multipliers,
    split_batch_by_environment,
    update_consensus_parameters,
)
from cirm.environments import Environment, Examples, Task
from cirm.randomness import Randomness
from cirm.training import Descent, ignore_training_steps

SEEDS = (4, 9)


def admm(**changes):
    settings = {
        "rho0": 1.0, "rho1": 1.0, "growth": 0.0, "growth_kind": "sum",
        "threshold": 0.5, "rounds": 1, "inner": 10,
    }  # fmt: skip
    return ADMM(**{**settings, **changes})


def stage(*sizes):
    """Environments of so many examples; the tests here do not look at them."""
    return tuple(
        Environment(f"e{i}", torch.ones(n, 1), torch.ones(n), Task.regression())
        for i, n in enumerate(sizes)
    )


def parabolas(curvatures, centres):
    """Objectives a_e/2 |w - c_e|^2, with their gradients, whatever the batch."""
    a = torch.tensor(curvatures)[:, None]
    c = torch.tensor(centres)[:, None]

    def slopes(local):
        values = (a / 2 * (local - c).square()).sum(-1)
        return {"value": values}, a * (local - c)

    return lambda features, batch: ADMMBatchObjectives(
        slopes, lambda shared: shared.sum(-1)
    )


def solved(
    problem, look, epochs=60, past=(), watch=ignore_training_steps, environments=2
):
    descent = Descent(epochs=epochs, batch=0, rate=0.1, optimiser="sgd")
    start = torch.zeros(len(SEEDS), 1)
    earlier = torch.tensor(past).view(1, -1, 1).expand(len(SEEDS), -1, -1)
    _, carry = problem.solve(
        look, start[:, :0], start, earlier, descent, stage(*[3] * environments),
        Randomness(SEEDS), watch,
    )  # fmt: skip
    return carry


def carry_of(*shape, weights=(2.0, 3.0)):
    draws = Randomness(SEEDS).start_draws()
    local, u, v = (draws.normal(*shape) for _ in range(3))
    return ADMMVariables(local.requires_grad_(), draws.normal(shape[-1]), u, v, weights)


def test_without_the_constraint_the_consensus_minimises_the_sum_of_objectives():
    carry = solved(admm(rho1=0.0), parabolas([1.0, 3.0], [0.0, 2.0]))
    torch.testing.assert_close(carry.shared, torch.full((2, 1), 1.5))
    torch.testing.assert_close(carry.local, torch.full((2, 2, 1), 1.5))


def test_where_all_gradients_can_vanish_they_do():
    last = {}
    carry = solved(
        admm(), parabolas([1.0, 3.0], [2.0, 2.0]), watch=lambda a, b, n: last.update(n)
    )
    torch.testing.assert_close(carry.shared, torch.full((2, 1), 2.0))
    assert last["consensus"].max() < 1e-4
    assert last["constraint"].max() < 1e-4


def test_where_they_cannot_a_heavy_constraint_leaves_the_mean_of_the_minima():
    carry = solved(admm(rho0=0.01), parabolas([1.0, 3.0], [0.0, 2.0]))
    assert carry.shared.sub(1.0).abs().max() < 0.03


def test_the_multipliers_of_the_constraint_start_at_zero_and_add_up_after_rounds():
    rounds, rate, rho1 = 3, 0.1, 0.7
    seen = []

    def look(features, batch):
        def slopes(local):
            seen.append(local.detach().clone())
            return {"value": local.square().sum(-1) / 2}, local - 1.0

        return ADMMBatchObjectives(slopes, lambda shared: shared.sum(-1))

    carry = solved(admm(rho1=rho1, inner=2), look, epochs=rounds, environments=1)
    # One environment without a past: u stays zero, w is where the last round ended.
    w = shared = torch.zeros(2, 1, 1)
    v = torch.zeros(2, 1, 1)
    expected = []
    for _ in range(rounds):
        for _ in range(2):
            expected.append(w)
            w = w - rate * ((w - 1) + (w - shared) + rho1 * ((w - 1) + v))
        shared, v = w, v + (w - 1)
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(carry.local, w)
    # The gradient after the last round moves nothing any more and is not computed.
    torch.testing.assert_close(carry.v, v - (w - 1))


def test_one_environment_without_a_past_just_descends():
    carry = solved(admm(), parabolas([2.0], [3.0]), environments=1)
    torch.testing.assert_close(carry.shared, torch.full((2, 1), 3.0))
    torch.testing.assert_close(carry.u, torch.zeros(2, 1, 1))


def test_the_past_ends_up_as_a_quadratic_pull_of_weight_rho0():
    carry = solved(admm(rho0=2.0, rho1=0.0), parabolas([1.0], [3.0]), past=(6.0,),
                   environments=1)  # fmt: skip
    torch.testing.assert_close(carry.shared, torch.full((2, 1), (3.0 + 2 * 6.0) / 3))


def test_with_one_environment_and_a_past_the_meeting_is_the_half_of_algorithm_2():
    carry = carry_of(1, 3)
    past = torch.ones(2, 1, 3)
    after = update_consensus_parameters(carry, past)
    own = carry.local.detach()[:, 0]
    torch.testing.assert_close(after.shared, 0.5 * (own + carry.u[:, 0] + past[:, 0]))
    torch.testing.assert_close(after.u[:, 0], carry.u[:, 0] + own - after.shared)


def test_after_a_meeting_without_a_past_the_multipliers_of_consensus_cancel():
    after = update_consensus_parameters(carry_of(4, 3), torch.empty(2, 0, 3))
    torch.testing.assert_close(after.u.sum(1), torch.zeros(2, 3))


def test_the_slope_is_that_of_the_augmented_lagrangian():
    carry = carry_of(3, 4)
    rho0, rho1 = carry.weights

    def objective(local):
        return (local.exp().sum(-1) + local.prod(-1)).sum()

    own = carry.local
    (gradients,) = torch.autograd.grad(objective(own), own, create_graph=True)
    apart = own - carry.shared.unsqueeze(1) + carry.u
    lagrangian = objective(own) + rho0 / 2 * apart.square().sum()
    lagrangian = lagrangian + rho1 / 2 * (gradients + carry.v).square().sum()
    (expected,) = torch.autograd.grad(lagrangian, own, retain_graph=True)
    torch.testing.assert_close(compute_lagrangian_gradient(carry, gradients), expected)


@pytest.mark.parametrize(
    ("kind", "expected"), [("sum", (110.0, 105.0)), ("factor", (1000.0, 500.0))]
)
def test_the_weights_grow_at_the_threshold(kind, expected):
    problem = admm(rho0=10.0, rho1=5.0, growth=100.0, growth_kind=kind, threshold=0.4)
    assert problem.get_constraint_weights_at_progress(0.39) == (10.0, 5.0)
    assert problem.get_constraint_weights_at_progress(0.4) == expected


def test_growing_weights_leave_the_multipliers_alone():
    carry = carry_of(2, 3, weights=(1.0, 2.0))
    after = rescale_lagrange_multipliers(carry, (10.0, 3.0))
    assert after.weights == (10.0, 3.0)
    torch.testing.assert_close(10 * after.u, 1 * carry.u)
    torch.testing.assert_close(3 * after.v, 2 * carry.v)


@pytest.mark.parametrize(("rounds", "inner", "expected"), [(1, 4, 6), (0, 4, 2)])
def test_a_round_has_so_many_steps_on_a_batch_or_lasts_so_many_epochs(
    rounds, inner, expected
):
    seen = []

    def look(features, batch):
        slopes = parabolas([1.0], [3.0])(features, batch).gradients
        return ADMMBatchObjectives(
            slopes, lambda shared: seen.append(shared.clone()) or features
        )

    descent = Descent(epochs=6, batch=0, rate=0.1, optimiser="sgd")
    start = torch.zeros(1, 1)
    admm(rounds=rounds, inner=inner).solve(
        lambda f, b: look(f.sum(-1), b), torch.ones(1, 1), start, start[:, None][:, :0],
        descent, stage(3), Randomness((0,)), ignore_training_steps,
    )  # fmt: skip
    # What is shared changes only at meetings; the features see it after each batch.
    assert len({shared.item() for shared in seen}) == expected


def test_separated_environments_keep_their_examples_and_averages():
    draws = Randomness(SEEDS).start_draws()
    pieces = [Examples(draws.normal(n, 2, 2), draws.normal(n)) for n in (3, 5)]
    noise = Randomness(SEEDS).start_draws()
    batch = Descent().build_batch(pieces, noise)
    each = split_batch_by_environment(batch)
    assert each.x.shape == (4, 5, 2, 2)
    assert each.sizes == (5,)
    assert len(each.noise.generators) == 4
    means = (each.share @ each.y.unsqueeze(-1)).view(2, 2)
    torch.testing.assert_close(means, torch.stack([p.y.mean(1) for p in pieces], 1))
    torch.testing.assert_close(each.x.view(2, 2, 5, 2, 2)[:, 0, :3], pieces[0].x)
    torch.testing.assert_close(each.x.view(2, 2, 5, 2, 2)[:, 1], pieces[1].x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho0": 0.0}, "rho0 must be positive"),
        ({"rho1": -1.0}, "rho1 must be 0 or more"),
        ({"growth": 0.5, "growth_kind": "factor"}, "growth must be 1 or more"),
        ({"growth_kind": "often"}, "growth_kind must be sum or factor"),
        ({"threshold": 1.5}, r"threshold must be from 0 to 1"),
        ({"inner": 0}, "inner must be 1 or more"),
        ({"rounds": -1}, "rounds must be 0 or more"),
    ],
)
def test_what_cannot_be_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=f"^here: the setting {message}.*, but is "):
        admm(**changes).check_settings("here")
