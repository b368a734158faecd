"""Batches show every example, and descent goes where the gradient says."""

import subprocess
import sys

import pytest
import torch

from cirm.environments import Environment, Task
from cirm.likelihoods import CrossEntropy
from cirm.networks import MLP
from cirm.objectives import average_risks_over_examples, compute_environment_risks
from cirm.randomness import Randomness
from cirm.training import (
    Descent,
    DivergenceError,
    check_parameters_are_finite,
    concatenate_environments_of_stage,
    load_lazy_inputs_into_memory,
    split_rows_into_equal_parts,
    take_optimiser_step,
)

SEEDS = (3, 5)
TASK = Task.classification(2)


def environment(name, size, first=0):
    """Examples whose only input is their own number."""
    x = torch.arange(first, first + size).float().unsqueeze(-1)
    return Environment(name, x, torch.zeros(size, dtype=torch.int64), TASK)


class Numbers:
    """The same inputs, made on request, for two replicas."""

    def __init__(self, size):
        self.shape = (2, size, 1)

    def take(self, rows):
        return rows.unsqueeze(-1).float()


def lazy(name, size):
    targets = torch.zeros(2, size, dtype=torch.int64)
    return Environment(name, Numbers(size), targets, TASK, replicated=True)


def quadratic(params, past, batch):
    """Squared distance of the parameters from the past's."""
    return {"distance": (params - past).square().sum(-1)}


@pytest.mark.parametrize("sizes", [(10,), (10, 4), (10, 7, 1), (3, 11)])
@pytest.mark.parametrize("batch", [0, 1, 3, 10, 50])
def test_each_epoch_shows_every_example_equally_often(sizes, batch):
    stage = [environment(f"e{i}", n, 100 * i) for i, n in enumerate(sizes)]
    descent = Descent(epochs=2, batch=batch)
    batches = list(descent.iterate_batches(tuple(stage), Randomness(SEEDS)))
    steps = descent.count_steps(tuple(stage))
    assert len(batches) == 2 * steps
    for start in (0, steps):
        epoch = batches[start : start + steps]
        for replica in range(len(SEEDS)):
            shown = torch.cat([b.x[replica, :, 0] for b in epoch])
            numbers, times = shown.unique(return_counts=True)
            for e, size in enumerate(sizes):
                here = numbers // 100 == e
                assert here.sum() == size
                # An environment smaller than the number of steps comes round again.
                assert times[here].unique().tolist() == [-(-steps // size)]


@pytest.mark.parametrize("batch", [0, 3, 50])
def test_batches_stay_within_their_size_and_name_their_environments(batch):
    stage = (environment("a", 10), environment("b", 4, 100))
    for b in Descent(epochs=2, batch=batch).iterate_batches(stage, Randomness(SEEDS)):
        assert max(b.sizes) <= (batch or 10)
        assert sum(b.sizes) == b.x.shape[1] == b.y.shape[1]
        first, second = b.split_by_environment()
        assert (first.x < 100).all() and (second.x >= 100).all()
        torch.testing.assert_close(b.share.sum(-1), torch.ones(2, 2))
        assert not (b.share[:, 0] * (b.x[..., 0] >= 100)).any()


def test_progress_runs_from_zero_towards_one():
    stage = (environment("a", 10),)
    batches = Descent(epochs=2, batch=5).iterate_batches(stage, Randomness(SEEDS))
    assert [b.progress for b in batches] == [0.0, 0.25, 0.5, 0.75]


def test_the_order_differs_between_epochs_and_replicas():
    stage = (environment("a", 20),)
    batches = Descent(epochs=2, batch=10).iterate_batches(stage, Randomness(SEEDS))
    shown = torch.cat([b.x[..., 0] for b in batches], 1)
    first, second = shown[:, :20], shown[:, 20:]
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])


def test_the_order_of_one_environment_does_not_depend_on_another():
    a, b = environment("a", 8), environment("b", 8, 100)
    descent = Descent(epochs=1, batch=4)
    alone = descent.iterate_batches((b,), Randomness(SEEDS))
    beside = descent.iterate_batches((a, b), Randomness(SEEDS))
    for one, both in zip(alone, beside, strict=True):
        assert torch.equal(one.x, both.split_by_environment()[1].x)


@pytest.mark.parametrize("batch", [0, 4])
def test_inputs_made_on_request_give_the_same_batches(batch):
    descent = Descent(epochs=2, batch=batch)
    ready = descent.iterate_batches((environment("a", 9),), Randomness(SEEDS))
    asked = descent.iterate_batches((lazy("a", 9),), Randomness(SEEDS))
    for one, other in zip(ready, asked, strict=True):
        assert torch.equal(one.x, other.x)


def test_small_inputs_are_made_once_and_large_ones_stay_lazy(monkeypatch):
    small = load_lazy_inputs_into_memory(lazy("a", 9), 2)
    assert torch.equal(small.inputs, environment("a", 9).take_all(2).x)
    monkeypatch.setattr("cirm.training.MAX_CACHED_BYTES", 71)
    assert isinstance(load_lazy_inputs_into_memory(lazy("a", 9), 2).inputs, Numbers)


@pytest.mark.parametrize("replicated", [False, True])
def test_environments_taken_at_once_give_the_batches_of_each(monkeypatch, replicated):
    stage = (environment("a", 9), environment("b", 5, 100))
    if replicated:
        stage = tuple(
            Environment(e.name, *e.take_all(2), TASK, replicated=True) for e in stage
        )
    descent = Descent(epochs=2, batch=4)
    at_once = list(descent.iterate_batches(stage, Randomness(SEEDS)))
    monkeypatch.setattr("cirm.training.MAX_CACHED_BYTES", 0)
    apart = list(descent.iterate_batches(stage, Randomness(SEEDS)))
    assert len(concatenate_environments_of_stage(stage)) == 2
    for one, other in zip(at_once, apart, strict=True):
        assert one.sizes == other.sizes
        for name in ("x", "y", "share"):
            assert torch.equal(getattr(one, name), getattr(other, name))


def test_environments_of_different_kinds_stay_apart():
    stage = (environment("a", 9), environment("b", 5))
    assert len(concatenate_environments_of_stage(stage)) == 1
    assert len(concatenate_environments_of_stage((*stage, lazy("c", 4)))) == 3
    own = Environment("d", *environment("d", 3).take_all(2), TASK, replicated=True)
    assert len(concatenate_environments_of_stage((*stage, own))) == 3
    batch = next(Descent(batch=4).iterate_batches((*stage, own), Randomness(SEEDS)))
    assert batch.sizes == (3, 2, 1)


def test_parts_are_nearly_equal():
    rows = torch.arange(10).expand(2, -1)
    assert [part.shape[1] for part in split_rows_into_equal_parts(rows, 4)] == [
        3,
        3,
        2,
        2,
    ]
    assert [part.shape[1] for part in split_rows_into_equal_parts(rows, 20)] == [1] * 20


@pytest.mark.parametrize(
    "descent",
    [
        Descent(epochs=300, batch=0, rate=0.05),
        Descent(epochs=60, batch=4, rate=0.1, optimiser="sgd"),
    ],
    ids=["adam", "sgd"],
)
def test_descent_reaches_the_minimum_of_a_quadratic(descent):
    goal, start = Randomness(SEEDS).normal(5), torch.zeros(2, 5)
    stage = (environment("a", 8),)
    found = descent.minimise(quadratic, start, goal, stage, Randomness(SEEDS))
    torch.testing.assert_close(found, goal, rtol=0, atol=1e-3)
    assert not start.any() and not found.requires_grad


def test_one_step_of_sgd_moves_by_rate_times_gradient_and_decay():
    start, goal = torch.ones(2, 3), torch.full((2, 3), 3.0)
    descent = Descent(epochs=1, batch=0, rate=0.1, decay=0.5, optimiser="sgd")
    stage = (environment("a", 8),)
    found = descent.minimise(quadratic, start, goal, stage, Randomness(SEEDS))
    torch.testing.assert_close(found, start - 0.1 * (2 * (start - goal) + 0.5 * start))


def test_adam_is_that_of_torch():
    goal, descent = Randomness(SEEDS).normal(5), Descent(epochs=6, batch=0, decay=0.1)
    params = torch.zeros(2, 5, requires_grad=True)
    usual = torch.optim.Adam([params], descent.rate, weight_decay=0.1, fused=True)
    for _ in range(6):
        params.grad = 2 * (params.detach() - goal)
        usual.step()
    stage = (environment("a", 8),)
    found = descent.minimise(
        quadratic, torch.zeros(2, 5), goal, stage, Randomness(SEEDS)
    )
    assert torch.equal(found, params.detach())


def test_finite_parameters_whose_sum_overflows_are_no_divergence():
    check_parameters_are_finite(torch.full((2, 3), 3e38), 1)
    with pytest.raises(DivergenceError, match="diverged at step 1"):
        check_parameters_are_finite(
            torch.tensor([[3e38, float("inf"), -float("inf")]]), 1
        )


def test_a_given_gradient_is_followed():
    def downhill(params, past, batch):
        return torch.ones_like(params), {"height": params.detach().sum(-1)}

    descent = Descent(epochs=4, batch=0, rate=0.25, optimiser="sgd")
    start, stage = torch.zeros(2, 3), (environment("a", 8),)
    found = descent.descend_along_gradient(
        downhill, start, None, stage, Randomness(SEEDS)
    )
    torch.testing.assert_close(found, torch.full((2, 3), -1.0))


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_gradient_may_be_laid_out_in_memory_in_any_way(optimiser):
    wide = Randomness(SEEDS).normal(5)
    descent = Descent(epochs=3, batch=0, rate=0.1, optimiser=optimiser)
    start, stage = torch.zeros(2, 3), (environment("a", 8),)
    found = [
        descent.descend_along_gradient(
            lambda params, slope, batch: (slope, {}),
            start,
            slope,
            stage,
            Randomness(SEEDS),
        )
        for slope in (
            wide[:, :3].contiguous(),
            wide[:, :3],
            wide.T.contiguous().T[:, :3],
        )
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_in_turns_each_goes_down_its_own_loss_from_where_the_others_are():
    def loss(turn, movers, batch):
        return {
            f"gap {turn}": (movers[turn] - movers[1 - turn] - turn).square().sum(-1)
        }

    descent = Descent(epochs=2, batch=4, rate=0.5, optimiser="sgd")
    movers = [torch.ones(2, 1), torch.zeros(2, 1)]
    stage, heard, path = (environment("a", 8),), [], []
    for step, batch, numbers in descent.minimise_in_turn(
        loss, movers, stage, Randomness(SEEDS)
    ):
        assert batch.x.shape == (2, 4, 1)
        heard.append((step, {name: n.tolist() for name, n in numbers.items()}))
        path.append([mover[0].item() for mover in movers])
    # The rate takes the first to where the second is, and the second to one above it.
    assert path == [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert heard == [(s, {"gap 0": [1.0] * 2, "gap 1": [1.0] * 2}) for s in range(1, 5)]


def test_turns_report_divergence():
    def loss(turn, movers, batch):
        return {"height": movers[0].square().sum(-1)}

    descent = Descent(epochs=200, batch=4, rate=1e10, optimiser="sgd")
    movers = [torch.tensor([[0.0], [1.0]])]
    with pytest.raises(DivergenceError) as caught:
        list(
            descent.minimise_in_turn(
                loss, movers, (environment("a", 8),), Randomness(SEEDS)
            )
        )
    assert caught.value.args == (
        "training diverged at step 4: the loss became NaN or infinite",
        [1],
    )


def risk(network):
    def loss(params, past, batch):
        risks = compute_environment_risks(network, CrossEntropy(), params, batch)
        return {"risk": average_risks_over_examples(risks, batch)}

    return loss


def labelled():
    x = Randomness((0,)).normal(40, 4)[0]
    return (Environment("a", x, (x[:, 0] > 0).long(), TASK),)


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_replica_descends_the_same_alone_as_beside_others(optimiser):
    network = MLP((4, 6, 2), dropout=0.3)
    descent = Descent(epochs=5, batch=8, rate=0.02, decay=0.01, optimiser=optimiser)

    def trained(seeds):
        source = Randomness(seeds)
        start = network.init(source)
        return descent.minimise(risk(network), start, None, labelled(), source)

    torch.testing.assert_close(trained((3, 5, 8))[1:2], trained((5,)))
    assert torch.equal(trained(SEEDS), trained(SEEDS))


def test_the_watcher_hears_of_every_epoch():
    heard = []
    descent = Descent(epochs=3, batch=4, rate=0.5, optimiser="sgd")
    descent.minimise(
        quadratic, torch.ones(2, 3), torch.zeros(2, 3), (environment("a", 8),),
        Randomness(SEEDS), lambda *news: heard.append(news),
    )  # fmt: skip
    assert [(step, steps) for step, steps, _ in heard] == [(2, 6), (4, 6), (6, 6)]
    # The rate solves the problem in the first step.
    assert [n["distance"].tolist() for _, _, n in heard] == [[0.0, 0.0]] * 3


def test_divergence_is_reported_with_its_step_and_replica():
    goal = torch.tensor([[0.0], [1.0]])
    descent = Descent(epochs=200, batch=4, rate=1e10, optimiser="sgd")
    stage = (environment("a", 8),)
    with pytest.raises(DivergenceError) as caught:
        descent.minimise(quadratic, torch.zeros(2, 1), goal, stage, Randomness(SEEDS))
    message, lost = caught.value.args
    assert message == "training diverged at step 4: the loss became NaN or infinite"
    assert lost == [1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be positive, but is 0"),
        ({"batch": -1}, "batch must not be negative, but is -1"),
        ({"rate": 0.0}, "rate must be positive, but is 0"),
        ({"rate": float("nan")}, "rate must be positive, but is nan"),
        ({"decay": -1.0}, "decay must not be negative, but is -1"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Descent(**settings)


def test_an_unknown_optimiser_is_refused():
    with pytest.raises(
        ValueError, match="optimiser must be adam or sgd, but is 'lbfgs'"
    ):
        Descent(optimiser="lbfgs")


@pytest.mark.integration
def test_training_does_not_load_the_compiler():
    script = (
        "import sys, torch\n"
        "from cirm.training import Descent, take_optimiser_step\n"
        "params = torch.ones(1, 3, requires_grad=True)\n"
        "optimiser = Descent(rate=0.1).create_optimiser(params)\n"
        "params.grad = torch.tensor([[1.0, -1.0, 0.0]])\n"
        "take_optimiser_step(optimiser, params)\n"
        "assert torch.allclose(params, torch.tensor([[0.9, 1.1, 1.0]]))\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_of_adam_are_those_of_torch(decay):
    gradients = torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(0))
    start = torch.linspace(-1, 1, 10).reshape(2, 5)
    ours, theirs = start.clone(), start.clone()
    mover = Descent(rate=0.1, decay=decay).create_optimiser(ours)
    adam = torch.optim.Adam([theirs], lr=0.1, weight_decay=decay, fused=True)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        take_optimiser_step(mover, ours)
        adam.step()
    assert ours.equal(theirs)


def test_another_optimiser_takes_its_own_steps():
    ours, theirs = torch.ones(2), torch.ones(2)
    for kind in (torch.optim.RMSprop, lambda p: torch.optim.SGD(p, momentum=0.9)):
        mover, other = kind([ours]), kind([theirs])
        for _ in range(3):
            ours.grad, theirs.grad = torch.ones(2), torch.ones(2)
            take_optimiser_step(mover, ours)
            other.step()
        assert ours.equal(theirs)
