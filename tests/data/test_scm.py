"""The structural causal model: moments, truth, and the errors published for it."""

import math

import pytest
import torch

from cirm.data.scm import SCM, compute_squared_errors_of_coefficients

KINDS = ["homoskedastic", "heteroskedastic", "target"]


def pooled(environments):
    """All examples of the environments, in double precision."""
    parts = [
        environment.take_all(len(environment.targets)) for environment in environments
    ]
    x = torch.cat([part.x for part in parts], dim=1).double()
    return x, torch.cat([part.y for part in parts], dim=1).double()


def least_squares(x, y):
    return torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)


def errors_of_least_squares(dataset, seeds):
    problem = dataset.draw_problem(tuple(range(seeds)))
    weights = least_squares(*pooled(problem.train))
    return compute_squared_errors_of_coefficients(weights.float(), problem.truth).mean(
        dim=0
    )


def test_environments_are_replicated_regressions_named_by_their_scale():
    problem = SCM(examples=5).draw_problem((3, 4))
    assert [e.name for e in problem.train] == ["scale 0.2", "scale 2", "scale 5"]
    assert [e.name for e in problem.test] == ["scale 10"]
    for environment in problem.train + problem.test:
        assert environment.inputs.shape == (2, 5, 8)
        assert environment.targets.shape == (2, 5)
        assert environment.task.kind == "regression"


@pytest.mark.parametrize(
    ("noise", "deviations"),
    [
        ("homoskedastic", (3.0, 1.0, 3.0)),
        ("heteroskedastic", (3.0, 3.0, 1.0)),
        ("target", (1.0, 3.0, 1.0)),
    ],
)
def test_moments_are_those_of_the_equations(noise, deviations):
    count = 40_000
    dataset = SCM(dimension=2, examples=count, scales=(3.0,), noise=noise, sweep=())
    x, y = pooled(dataset.draw_problem((0,)).train)
    x1, x2, y = x[0, :, 0], x[0, :, 1], y[0]
    for noise_values, deviation in zip((x1, y - x1, x2 - y), deviations, strict=True):
        tolerance = 5 / math.sqrt(count)
        assert abs(noise_values.mean()) < tolerance * deviation
        assert noise_values.std().item() == pytest.approx(deviation, rel=tolerance)
    parts = torch.stack([x1, y - x1, x2 - y])
    assert (torch.corrcoef(parts) - torch.eye(3)).abs().max() < 5 / math.sqrt(count)


@pytest.mark.parametrize("noise", KINDS)
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("weights", ["identity", "random"])
def test_regression_on_the_causes_gives_the_truth_in_every_environment(
    noise, hidden, weights
):
    problem = SCM(
        dimension=6, examples=20_000, noise=noise, hidden=hidden, weights=weights
    ).draw_problem((0, 1))
    for environment in problem.train:
        x, y = pooled([environment])
        causes, truth = x[..., :3], problem.truth[:, 0, :3].double()
        residual = y - (causes @ truth.unsqueeze(-1)).squeeze(-1)
        slack = 6 * residual.std() / (causes.std() * math.sqrt(20_000))
        assert (least_squares(causes, y) - truth).abs().max() < slack


def test_the_truth_is_ones_and_zeros_for_identity_weights():
    truth = SCM(dimension=4, examples=1).draw_problem((0,)).truth
    assert truth.tolist() == [[[1, 1, 0, 0], [1, 1, 0, 0]]]


@pytest.mark.parametrize(
    ("settings", "causal", "other", "tolerance"),
    [
        ({}, 0.827, 0.824, 0.02),
        ({"dimension": 10, "noise": "heteroskedastic"}, 0.821, 0.821, 0.01),
        ({"dimension": 10, "noise": "homoskedastic"}, 0.0091, 0.0090, 0.001),
    ],
)
def test_pooled_least_squares_errs_as_published(settings, causal, other, tolerance):
    found = errors_of_least_squares(SCM(**settings, sweep=()), seeds=40)
    assert found[0].item() == pytest.approx(causal, abs=tolerance)
    assert found[1].item() == pytest.approx(other, abs=tolerance)


@pytest.mark.parametrize(
    ("noise", "published", "tolerance"),
    [("heteroskedastic", 0.774, 0.03), ("homoskedastic", 0.0185, 0.004)],
)
def test_hidden_confounding_errs_as_published(noise, published, tolerance):
    dataset = SCM(dimension=10, noise=noise, hidden=True, sweep=())
    found = errors_of_least_squares(dataset, seeds=60)
    assert found.tolist() == pytest.approx([published, published], abs=tolerance)


def test_scrambling_does_not_change_the_errors_of_least_squares():
    plain = SCM(examples=200, scales=(1.0, 3.0))
    mixed = SCM(examples=200, scales=(1.0, 3.0), scramble=True)
    expected = errors_of_least_squares(plain, seeds=3)
    assert torch.allclose(errors_of_least_squares(mixed, seeds=3), expected, atol=1e-4)


def test_scrambling_is_orthogonal_and_can_be_undone():
    plain = SCM(examples=50).draw_problem((0, 1))
    mixed = SCM(examples=50, scramble=True).draw_problem((0, 1))
    mixing = mixed.truth[:, 2:]
    identity = torch.eye(8).expand(2, 8, 8)
    assert torch.allclose(mixing @ mixing.mT, identity, atol=1e-5)
    assert not torch.allclose(mixing[0], mixing[1], atol=0.1)
    for before, after in zip(plain.train, mixed.train, strict=True):
        assert torch.allclose(after.inputs @ mixing.mT, before.inputs, atol=1e-4)
        assert torch.equal(after.targets, before.targets)


def test_errors_of_the_true_coefficients_are_zero_also_when_scrambled():
    truth = SCM(examples=1, scramble=True, weights="random").draw_problem((0, 1)).truth
    observed = (truth[:, 2:].mT @ truth[:, 0, :, None]).squeeze(-1)
    assert compute_squared_errors_of_coefficients(observed, truth).abs().max() < 1e-10


def test_errors_are_means_of_squares_over_causes_and_over_the_others():
    truth = SCM(dimension=4, examples=1).draw_problem((0,)).truth
    found = compute_squared_errors_of_coefficients(
        torch.tensor([[1.0, 3.0, 0.5, 0.5]]), truth
    )
    assert found.tolist() == [[2.0, 0.25]]


@pytest.mark.parametrize("settings", [{}, {"hidden": True, "scramble": True}])
def test_a_seed_is_drawn_alike_whoever_is_beside_it(settings):
    dataset = SCM(examples=40, weights="random", **settings)
    together, alone = dataset.draw_problem((7, 8, 9)), dataset.draw_problem((8,))
    for a, b in zip(
        together.train + together.test, alone.train + alone.test, strict=True
    ):
        assert torch.equal(a.inputs[1], b.inputs[0])
        assert torch.equal(a.targets[1], b.targets[0])
    assert torch.equal(together.truth[1], alone.truth[0])
    assert not torch.equal(together.train[0].inputs[0], together.train[0].inputs[1])


def test_a_further_scale_leaves_the_other_environments_as_they_were():
    few = SCM(examples=10, scales=(0.2,)).draw_problem((0,)).train[0]
    more = SCM(examples=10, scales=(3.0, 0.2)).draw_problem((0,)).train[1]
    assert torch.equal(few.inputs, more.inputs)


def test_along_the_sweep_only_the_true_coefficients_keep_their_risk():
    problem = SCM(examples=4000).draw_problem((0,))
    other = least_squares(*pooled(problem.train))
    risks = []
    for _, environment in problem.sweep:
        x, y = pooled([environment])
        weights = torch.stack([problem.truth[0, 0].double(), other[0]], dim=1)
        risks.append(((y[0, :, None] - x[0] @ weights) ** 2).mean(dim=0))
    truth, least = torch.stack(risks).T
    assert [position for position, _ in problem.sweep] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert truth.max() / truth.min() < 1.2
    assert least.max() / least.min() > 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dimension": 3}, "scm: the setting dimension is 3. Use an even number"),
        ({"examples": 0}, "scm: the setting examples is 0. Use 1 or more."),
        (
            {"scales": ()},
            r"scm: the setting scales is \[\]. Use one or more positive numbers",
        ),
        ({"scales": (1.0, -1.0)}, r"scales is \[1.0, -1.0\]. Use one or more positive"),
        (
            {"unseen": 5.0},
            "scm: the setting unseen is 5.0. Use a positive scale that is not in",
        ),
        (
            {"sweep": (math.nan,)},
            r"scm: the setting sweep is \[nan\]. Use finite numbers",
        ),
    ],
)
def test_settings_without_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SCM(**settings)


def test_it_says_what_it_is():
    text = SCM(hidden=True, scramble=True).describe()
    assert text == (
        "A regression on 4 causes and 4 effects of the target with a hidden common "
        "cause (noise: target). The features are mixed by a random rotation. Each "
        "training environment has 1000 examples; their scales are 0.2, 2, 5. The test "
        "environment has the scale 10."
    )
