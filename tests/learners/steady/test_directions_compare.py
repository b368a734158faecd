"""How environments are compared, and what is taken for the cause of a change."""

import pytest
import torch
from scipy import stats

from cirm.learners.steady import directions_search as search
from cirm.learners.steady.directions_compare import (
    LabelledStageRows,
    Trend,
    find_most_changed_environment,
    observe_environments,
    pool_moments_of_environments,
)
from cirm.learners.steady.directions_features import (
    build_first_feature_guesses,
    list_clearest_changed_features,
)
from cirm.learners.steady.directions_hiding import FeatureHider
from cirm.learners.steady.directions_stage import (
    _does_feature_explain_change,
    compute_significance_level,
    remove_directions_from_rows,
)
from cirm.learners.steady.directions_statistics import (
    append_image_statistics,
    count_image_statistics,
    fit_image_statistics_scale,
)
from cirm.p_values import combine_p_values


def draw_environment(generator, n=600, classes=6, d=30, mark=None):
    """Classes with three times the standard deviation along their own entry.

    A mark in the last four entries agrees with the first half of the classes in a share
    `mark` of the rows.
    """
    targets = torch.randint(classes, (n,), generator=generator)
    rows = torch.randn(n, d, generator=generator).double()
    own = torch.nn.functional.one_hot(targets, d).double()
    rows = torch.where(own == 1, 3 + 3 * rows, rows)
    if mark is not None:
        agrees = torch.rand(n, generator=generator) < mark
        rows[:, -4:] += 4.0 * ((targets < classes / 2) == agrees)[:, None]
    return rows, targets


def compare(one, other, classes):
    moments = [search.compute_class_moments(*part, classes) for part in (one, other)]
    axes = search.find_principal_axes_within_classes(
        search.pool_class_moments_of_environments(*moments)
    )
    return moments, axes, search.RowsWithClasses(*other)


def test_classes_that_vary_along_their_own_means_give_no_false_alarms():
    generator = torch.Generator().manual_seed(0)
    known, unknown = [], []
    for _ in range(120):
        pair = [draw_environment(generator) for _ in range(2)]
        moments, axes, rows = compare(*pair, classes=6)
        for of_classes, p_values in ((rows, known), (None, unknown)):
            z = search.compute_z_along_discriminant(*moments, axes, 1.0, of_classes)
            p_values.append(search.convert_z_to_p_value(z))
    assert stats.kstest(known, "uniform").pvalue > 0.01
    assert sum(p < 0.05 for p in known) <= 13  # 6 are expected
    assert sum(p < 0.05 for p in unknown) > 20  # as if all classes varied alike


def test_entries_that_tell_most_keep_their_level_and_show_a_mark_better():
    generator = torch.Generator().manual_seed(1)
    noise = 2 * torch.randn(20, 200, generator=generator).double()
    noise[:, -4:] = 0  # as at the border of a picture

    def draw(mark):
        rows, targets = draw_environment(generator, classes=2, d=200, mark=mark)
        factors = torch.randn(len(rows), 20, generator=generator).double()
        return rows + factors @ noise, targets

    same, entries, discriminant = [], [], []
    for _ in range(30):
        first = draw(0.8)
        for mark, p_values in ((0.8, same), (0.88, entries)):
            other = draw(mark)
            moments, axes, rows = compare(first, other, classes=2)
            z = search.compute_z_of_telling_entries(*moments, rows)
            p_values.append(search.convert_z_to_p_value(z))
        z = search.compute_z_along_discriminant(*moments, axes, 30.0, rows)
        discriminant.append(search.convert_z_to_p_value(z))
    assert stats.kstest(same, "uniform").pvalue > 0.01
    assert sum(p < 0.05 for p in same) <= 5  # 1.5 are expected
    assert sum(p < 0.05 for p in entries) > sum(p < 0.05 for p in discriminant) + 3


def test_entries_keep_their_level_where_moments_have_a_lower_rank_than_the_inputs():
    generator = torch.Generator().manual_seed(4)
    squares = []
    for _ in range(60):
        moments, rows = [], None
        for _ in range(2):
            rows = search.RowsWithClasses(
                torch.randn(400, 40, generator=generator).double(),
                torch.arange(400) % 2,
            )
            own = search.compute_class_moments(*rows, 2)
            factor = search.compress_scatter_matrix_factor(own.factor, max_rank=8)
            moments.append(own._replace(factor=factor))
        squares.append(search.compute_z_of_telling_entries(*moments, rows) ** 2)
    # 1 is expected, with an error of 0.18, and 4 if what is missing does not count.
    assert sum(squares) / len(squares) < 1.6


def test_a_class_without_rows_and_constant_entries_change_no_test():
    generator = torch.Generator().manual_seed(5)
    drawn = [draw_environment(generator, n=300, classes=3, d=8) for _ in range(2)]
    z = []
    for classes, constant in ((3, 0), (4, 0), (3, 2)):
        same = [
            (torch.cat([rows, torch.ones(300, constant).double()], 1), targets)
            for rows, targets in drawn
        ]
        moments, axes, rows = compare(*same, classes=classes)
        z.append(
            [
                search.compute_z_along_discriminant(*moments, axes, 1.0, rows),
                search.compute_z_of_telling_entries(*moments, rows),
            ]
        )
    z = torch.tensor(z)
    # The ridge is in mean variances, which constant entries change a little.
    torch.testing.assert_close(z, z[:1].expand_as(z), atol=0.1, rtol=0)


def test_entries_are_chosen_by_what_they_tell_in_units_of_their_noise():
    means = torch.tensor([[0.0, 0, 3, 0, 1, 0, 0], [0.0, 1, 0, 2, 1, 0, 1]]).double()
    variances = torch.tensor([1.0, 1, 100, 1, 1, 1, 0.25]).double()
    counts = torch.tensor([10, 30])
    entries = search.find_telling_entries(means, variances, counts).tolist()
    assert len(entries) == search.TELLING_ENTRIES
    assert entries[:3] == [3, 6, 1]  # 2 is noisy, and 4 tells nothing


def paint_two(n, right, seed):
    """Pictures with a colour and a white square, each agreeing with the class apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (n,), generator=generator)
    colour, square = (
        torch.where(torch.rand(n, generator=generator) < right, y, 1 - y)
        for _ in range(2)
    )
    grey = torch.rand(n, 8, 8, generator=generator) ** 2
    grey[:, 3:5] += 0.5 * y[:, None, None]
    grey[:, :2, :2] = 0
    x = torch.zeros(n, 2, 8, 8)
    x[torch.arange(n), colour] = grey
    x[square == 1, :, :2, :2] = 1
    return x.flatten(1).double(), y, {"colour": colour, "square": square}


SHAPE = (2, 8, 8)


def observe_two(n, rights):
    """The second of two environments with both shortcuts, and its comparison."""
    first = paint_two(n, rights[0], seed=0)
    rows, y, cues = paint_two(n, rights[1], seed=1)
    scale = fit_image_statistics_scale(first[0], first[1], SHAPE)
    both = [append_image_statistics(part, SHAPE, scale) for part in (first[0], rows)]
    past = search.compute_class_moments(both[0], first[1], 2)
    stage = LabelledStageRows(rows, y, torch.zeros(n).long())
    environments = observe_environments(both[1], stage, past, 2)
    comparison = find_most_changed_environment(environments, [])
    change = search.measure_change_of_class_means(*comparison[1:5])
    guesses = build_first_feature_guesses(
        both[1], count_image_statistics(SHAPE), y, change, comparison.axes
    )
    candidates = list_clearest_changed_features(both[1], y, guesses, *comparison[1:5])
    return rows, y, cues, scale, comparison, candidates


def compute_agreement(values, cue):
    share = float((values == cue).double().mean())
    return max(share, 1 - share)


@pytest.mark.parametrize("n", [600, 3000])
def test_of_two_shortcuts_that_change_alike_one_is_found_and_no_mixture(n):
    rows, y, cues, scale, comparison, candidates = observe_two(n, (0.8, 0.9))
    assert comparison.p_value < 0.01
    finding = FeatureHider(y, 2, SHAPE, scale).choose_feature_that_views_hide(
        rows, candidates
    )
    assert max(compute_agreement(finding.values, cue) for cue in cues.values()) > 0.98


def test_of_features_that_are_equally_clear_the_one_that_a_view_hides_is_taken():
    rows, y, cues, scale, _, candidates = observe_two(4500, (0.8, 0.9))
    hider = FeatureHider(y, 2, SHAPE, scale)
    either = (cues["colour"] + cues["square"] > 0).long()
    mixture = candidates[0]._replace(values=either)
    colour = candidates[0]._replace(values=cues["colour"])
    for order in ([mixture, colour], [colour, mixture]):
        chosen = hider.choose_feature_that_views_hide(rows, order)
        assert torch.equal(chosen.values, cues["colour"])
    assert hider.choose_feature_that_views_hide(rows, [mixture]) is mixture
    # Rows of a folder may be sorted by class.
    order = y.argsort(stable=True)
    by_class = FeatureHider(y[order], 2, SHAPE, scale)
    sorted_ones = [f._replace(values=f.values[order]) for f in (mixture, colour)]
    chosen = by_class.choose_feature_that_views_hide(rows[order], sorted_ones)
    assert torch.equal(chosen.values, cues["colour"][order])
    assert hider.choose_feature_that_views_hide(rows, []) is None


def test_the_environment_that_changed_is_told_and_its_p_value_counts_them_all():
    generator = torch.Generator().manual_seed(6)
    drawn = [
        draw_environment(generator, n=500, classes=2, d=12, mark=mark)
        for mark in (0.8, 0.8, 0.95)
    ]
    rows, targets = (torch.cat(part) for part in zip(*drawn, strict=True))
    stage = LabelledStageRows(rows, targets, torch.arange(1500) // 500)
    environments = observe_environments(rows, stage, None, 2)
    best = find_most_changed_environment(environments, [])
    assert best.here is environments[2].moments
    pooled = pool_moments_of_environments(environments[:2])
    alone = find_most_changed_environment(
        [environments[0]._replace(moments=pooled), environments[2]], []
    )
    assert best.p_value == pytest.approx(2 * alone.p_value, rel=1e-3)
    with_trend = find_most_changed_environment(environments, [], trend=Trend())
    assert with_trend.trend.n_changes == 2


def test_a_change_in_small_steps_counts_as_a_whole_and_one_back_and_forth_does_not():
    steady = back = Trend()
    for step in range(4):
        steady = steady.add(0.05, 1.0)
        back = back.add(0.05, (-1.0) ** step)
        assert steady.n_changes == step + 1
    z = -float(torch.special.ndtri(torch.tensor(0.025)))
    assert steady.total == pytest.approx((2 + 3 + 4 + 5) * z, rel=1e-5)
    assert back.total == pytest.approx((2 - 3 + 4 - 5) * z, rel=1e-5)
    assert steady.combine_with_last_p_value(0.05) < 0.001
    whole = search.convert_z_to_p_value(14 * z / (4 + 9 + 16 + 25) ** 0.5)
    both = combine_p_values((0.05, whole), (0.5, 0.5))
    assert steady.combine_with_last_p_value(0.05) == pytest.approx(both, rel=1e-4)
    assert back.combine_with_last_p_value(0.05) > 0.05
    assert Trend().add(0.03, -1.0).combine_with_last_p_value(0.03) == 0.03


def test_any_false_alarm_of_a_long_sequence_has_at_most_the_level():
    generator = torch.Generator().manual_seed(3)
    alarms = 0
    for _ in range(1500):
        trend = Trend()
        for look in range(20):
            z = float(torch.randn((), generator=generator))
            p_value = search.convert_z_to_p_value(z)
            trend = trend.add(p_value, z)
            level = compute_significance_level(0.05, look, 1)
            if trend.combine_with_last_p_value(p_value) < level:
                alarms += 1
                break
    assert 30 < alarms < 100  # 71 are expected, as a longer simulation says


def test_moments_of_environments_are_those_of_all_rows_about_their_own_means():
    generator = torch.Generator().manual_seed(2)
    rows, targets = draw_environment(generator, n=400, classes=3, d=5)
    places = torch.arange(400) % 2
    environments = observe_environments(
        rows, LabelledStageRows(rows, targets, places), None, 3
    )
    assert [int(e.moments.counts.sum()) for e in environments] == [200, 200]
    pooled = pool_moments_of_environments(environments)
    whole = search.compute_class_moments(rows, targets, 3)
    torch.testing.assert_close(pooled.means, whole.means)
    scatter = torch.zeros(5, 5).double()
    for place in (0, 1):
        here = places == place
        means = search.compute_means_by_group(rows[here], targets[here], 3)
        centred = rows[here] - means[targets[here]]
        scatter += centred.T @ centred
    torch.testing.assert_close(pooled.factor.T @ pooled.factor, scatter)
    first = environments[0]
    assert torch.equal(first.rows.rows, rows[places == 0])


@pytest.mark.parametrize(
    ("explained", "is_explained"),
    [(0.8, True), (0.7, True), (0.6, False), (0.3, False)],
)
def test_what_is_read_unclearly_must_explain_most_of_a_change(explained, is_explained):
    generator = torch.Generator().manual_seed(1)
    targets = torch.arange(2000) % 2
    rows = torch.randn(2, 2000, 30, generator=generator).double()
    shift = torch.zeros(30).double()
    shift[:2] = torch.tensor([explained, 1 - explained]).sqrt()  # of length 1
    rows[1] += targets[:, None] * shift
    places = torch.arange(2).repeat_interleave(2000)
    stage = LabelledStageRows(rows.flatten(0, 1), targets.repeat(2), places)
    first = torch.eye(30)[:1].double()
    without = remove_directions_from_rows(stage.rows, first)
    before, after = (
        find_most_changed_environment(observe_environments(x, stage, None, 2), [])
        for x in (stage.rows, without)
    )
    assert max(before.p_value, after.p_value) < 1e-6
    assert _does_feature_explain_change(before, after, 0.05) == is_explained
    assert _does_feature_explain_change(before, after._replace(p_value=0.2), 0.05)
