import dataclasses

import pytest
import torch
from scipy import stats

from cirm.data.scm import SCM
from cirm.environments import Environment, Stream, Task
from cirm.learners import create
from cirm.learners.icp import ICP, compute_second_moments_of_environments
from cirm.likelihoods import SquaredError
from cirm.networks import MLP
from cirm.randomness import Randomness


def learner(**settings):
    return ICP(MLP((1, 1)), SquaredError(), **settings)


def trained(icp, stages, seeds):
    state = icp.init(Randomness(seeds))
    for stage in stages:
        state = icp.observe(state, stage, Randomness(seeds))
    return state


def chain(replicas, size=300, scales=(1.0, 2.0)):
    """x1 -> y -> x2, with noise on x1 and x2 that differs between environments."""
    made = []
    for index, scale in enumerate(scales):
        draws = Randomness(tuple(range(replicas)), ("chain", index)).start_draws()
        x1, noise, effect = draws.normal(3, size).unbind(1)
        x1 = scale * x1
        y = 1.5 * x1 + noise
        x2 = y + scale * effect
        inputs = torch.stack([x1, x2], -1)
        made.append(Environment(f"e{index}", inputs, y, Task.regression(), True))
    return tuple(made)


def test_the_true_parents_are_found_in_the_structural_causal_model():
    seeds = tuple(range(5))
    scm = SCM(dimension=6, noise="homoskedastic", scales=(0.5, 1.0, 2.0), examples=300)
    problem = scm.draw_problem(seeds)
    icp = learner()
    state = trained(icp, [problem.train], seeds)
    findings = icp.compute_invariance_tests(state)
    assert torch.equal(findings.parents.float(), problem.truth[:, 1])
    torch.testing.assert_close(
        state.coefficients[:, 1:], problem.truth[:, 0], rtol=0, atol=0.2
    )


def test_something_that_is_no_parent_is_named_as_seldom_as_the_level_says():
    seeds = tuple(range(300))
    icp = learner(level=0.1)
    parents = icp.compute_invariance_tests(trained(icp, [chain(300)], seeds)).parents
    assert parents[:, 0].float().mean() > 0.8
    # The bound is 0.1; 0.15 is three standard errors above it.
    assert parents[:, 1].float().mean() < 0.15


def test_the_intervals_cover_the_truth_as_often_as_promised():
    seeds = tuple(range(300))
    icp = learner(level=0.1)
    findings = icp.compute_invariance_tests(trained(icp, [chain(300)], seeds))
    truth = torch.tensor([1.5, 0.0])
    within = (findings.lower <= truth) & (truth <= findings.upper)
    # A set is wrongly rejected at most at the level, and its interval off at another.
    assert within.all(-1).float().mean() > 1 - 2 * 0.1


def test_a_p_value_at_the_level_decides_whether_a_feature_is_a_parent():
    icp = learner()
    findings = icp.compute_invariance_tests(
        trained(icp, [chain(40, size=40)], tuple(range(40)))
    )
    accepted = (findings.p_sets > icp.level).any(1, keepdim=True)
    assert torch.equal(findings.parents, (findings.p_values <= icp.level) & accepted)
    assert 0 < findings.parents[:, 0].sum() < 40


@pytest.mark.parametrize("order", ["sequential", "2+1"])
def test_on_a_sequence_it_is_exactly_the_joint_answer(order):
    seeds = (0, 1, 2)
    environments = chain(3, scales=(0.5, 1.0, 2.0))
    icp = learner()
    joint = trained(icp, Stream.create_joint(environments), seeds)
    later = trained(icp, Stream.from_order(environments, order), seeds)
    assert torch.equal(joint.moments, later.moments)
    assert torch.equal(joint.coefficients, later.coefficients)


def test_no_example_is_kept():
    state = trained(learner(), [chain(2, size=500)], (0, 1))
    assert state.moments.shape == (2, 2, 4, 4)


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 1.0)])
def test_nothing_is_identified_where_environments_do_not_differ(scales):
    environments = chain(2, scales=scales)
    icp = learner(level=0.01)
    state = trained(icp, [environments], (0, 1))
    assert not icp.compute_invariance_tests(state).parents.any()
    values = icp.predict(state, environments[0].inputs)
    everything = torch.cat([e.targets for e in environments], 1).mean(1)
    torch.testing.assert_close(
        values[..., 0], everything[:, None].expand_as(values[..., 0])
    )


def test_a_model_that_holds_nowhere_gives_no_parents_and_no_intervals():
    first, second = chain(2)
    shifted = Environment(
        "shifted", second.inputs, second.targets + 5, second.task, True
    )
    icp = learner()
    findings = icp.compute_invariance_tests(trained(icp, [(first, shifted)], (0, 1)))
    assert (findings.p_sets < icp.level).all()
    assert not findings.parents.any()
    assert (findings.p_values == 1).all()
    assert findings.lower.isnan().all()
    assert findings.upper.isnan().all()


def test_the_test_of_a_set_is_that_of_its_residuals():
    environments = chain(1, size=50, scales=(1.0, 1.3, 0.8))
    icp = learner()
    findings = icp.compute_invariance_tests(trained(icp, [environments], (0,)))
    x = torch.cat([e.inputs[0] for e in environments]).double()
    y = torch.cat([e.targets[0] for e in environments]).double()
    for index, chosen in enumerate(findings.sets[0]):
        whole = torch.cat([torch.ones(150, 1), x[:, chosen]], 1).double()
        off = y - whole @ torch.linalg.lstsq(whole, y[:, None]).solution[:, 0]
        parts, values = off.view(3, 50), []
        for e in range(3):
            own, rest = (
                parts[e].numpy(),
                parts[[i for i in range(3) if i != e]].flatten(),
            )
            values.append(stats.ttest_ind(own, rest.numpy(), equal_var=False).pvalue)
            below = stats.f.cdf(own.var(ddof=1) / rest.var().item(), 49, 99)
            values.append(2 * min(below, 1 - below))
        assert findings.p_sets[0, index].item() == pytest.approx(
            min(1, 6 * min(values))
        )


def test_the_intervals_of_one_set_are_those_of_least_squares():
    environments = chain(1, size=50, scales=(1.0, 1.0))
    icp = learner(level=1e-6)
    # At this level all sets are accepted; without x2 the empty set and x1 remain.
    only = tuple(dataclasses.replace(e, inputs=e.inputs[..., :1]) for e in environments)
    findings = icp.compute_invariance_tests(trained(icp, [only], (0,)))
    x = torch.cat([e.inputs[0, :, 0] for e in only]).double().numpy()
    y = torch.cat([e.targets[0] for e in only]).double().numpy()
    line = stats.linregress(x, y)
    half = stats.t.ppf(1 - 0.5e-6, 98) * line.stderr
    assert findings.upper[0, 0].item() == pytest.approx(line.slope + half)
    assert findings.lower[0, 0].item() == pytest.approx(min(0, line.slope - half))


def test_of_too_many_features_those_that_matter_are_searched():
    environments = chain(2, scales=(0.5, 2.0))
    noise = Randomness((0, 1)).start_draws()
    wide = tuple(
        dataclasses.replace(e, inputs=torch.cat([noise.normal(300, 4), e.inputs], -1))
        for e in environments
    )
    icp = learner(most=2)
    findings = icp.compute_invariance_tests(trained(icp, [wide], (0, 1)))
    assert findings.sets.shape == (2, 4, 6)
    assert not findings.sets[..., :4].any()
    assert torch.equal(findings.parents.nonzero()[:, 1], torch.tensor([4, 4]))


def test_a_feature_twice_is_no_trouble():
    twice = [dataclasses.replace(e, inputs=e.inputs[..., [0, 0, 1]]) for e in chain(2)]
    icp = learner()
    state = trained(icp, [tuple(twice)], (0, 1))
    assert not icp.compute_invariance_tests(state).parents.any()
    assert state.coefficients.isfinite().all()


def test_an_exact_relation_is_invariant():
    x = torch.randn(2, 50, 1, generator=torch.Generator().manual_seed(0))
    task = Task.regression()
    stage = tuple(
        Environment(f"e{i}", (i + 1) * x[i], 3 * (i + 1) * x[i, :, 0] + 1, task)
        for i in range(2)
    )
    icp = learner()
    state = trained(icp, [stage], (0,))
    assert icp.compute_invariance_tests(state).parents.all()
    torch.testing.assert_close(state.coefficients, torch.tensor([[1.0, 3.0]]))


def test_moments_are_sums_of_products():
    x, y = torch.tensor([[[2.0], [3.0]]]), torch.tensor([[5.0, 7.0]])
    expected = [[2.0, 5.0, 12.0], [5.0, 13.0, 31.0], [12.0, 31.0, 74.0]]
    assert compute_second_moments_of_environments(x, y).tolist() == [expected]


def test_classification_is_refused():
    environment = Environment(
        "a", torch.ones(2, 1), torch.tensor([0, 1]), Task.classification(2)
    )
    with pytest.raises(ValueError, match="icp: the data are for classification, but"):
        create("icp", environment)


def test_a_single_example_is_refused():
    lone = Environment("a", torch.ones(1, 1), torch.ones(1), Task.regression())
    with pytest.raises(
        ValueError, match="environment 'a' has a single example, but two or more"
    ):
        trained(learner(), [(lone,)], (0,))


@pytest.mark.parametrize("settings", [{"level": 0.0}, {"level": 1.0}, {"most": 0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(
        ValueError,
        match=r"icp: the setting (level|most) must be (between|from) .*, but is",
    ):
        learner(**settings)


def test_many_features_are_searched_by_their_strongest_ones():
    # 200 features that copy one another leave the search of ten of them well posed.
    draws = Randomness((0,), ("many",)).start_draws()
    made = []
    for name, scale in (("a", 1.0), ("b", 3.0)):
        (x1, *noise), copies = draws.normal(3, 60)[0], draws.normal(200, 60)[0]
        x1 = scale * x1
        y = 2 * x1 + 0.1 * noise[0]
        few = copies[:20].repeat(10, 1) * scale
        inputs = torch.cat([x1.unsqueeze(0), few]).T.unsqueeze(0)
        made.append(Environment(name, inputs, y.unsqueeze(0), Task.regression(), True))
    icp = learner()
    state = trained(icp, [made], (0,))
    findings = icp.compute_invariance_tests(state)
    assert findings.parents[0].nonzero().flatten().tolist() == [0]
    alone = torch.linalg.lstsq(
        torch.cat([torch.stack([torch.ones(60), e.inputs[0, :, 0]], -1) for e in made]),
        torch.cat([e.targets[0] for e in made]).unsqueeze(-1),
    ).solution
    torch.testing.assert_close(state.coefficients[0, :2], alone[:, 0])
