"""What is found of a shortcut, in closed form, and what is taken away with it."""

import pytest
import torch
from torch.nn import functional as F

from cirm.environments import Environment, Task
from cirm.learners.cirm.shortcuts import (
    FAINT,
    assign_rows,
    balance_weights,
    compute_contrasts,
    fit_correction,
    list_row_chunks,
    merge_directions,
    remove_directions,
    replace_targets,
    select_member_rows,
    truncate_environment,
)
from cirm.randomness import Randomness

SEEDS = (0, 1, 2)
TASK = Task.classification(2)


def cells_of(*counts):
    """Cells [1, n] of so many examples in cell 0, cell 1, ..."""
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))[None]


def totals(cells, classes, cap):
    """Weights [2 * classes] of cells, and the total weight of each group of a class."""
    weights = balance_weights(cells, classes, cap)
    counts = torch.zeros_like(weights).scatter_add_(1, cells, torch.ones(cells.shape))
    return weights[0], (weights * counts).view(classes, 2)


@pytest.mark.parametrize("counts", [(7, 3, 2, 8), (1, 9, 5, 5, 30, 2)])
def test_the_reference_is_right_by_chance_and_a_class_keeps_its_part(counts):
    cells, classes = cells_of(*counts), len(counts) // 2
    weights, total = totals(cells, classes, cap=100.0)
    torch.testing.assert_close(total[:, 0], (classes - 1) * total[:, 1])
    wanted = torch.tensor(counts).view(classes, 2).sum(1).float()
    torch.testing.assert_close(total.sum(1), wanted)
    torch.testing.assert_close(weights[cells[0]].mean(), torch.tensor(1.0))


def test_no_weight_is_above_the_cap_and_the_rest_stays_in_the_class():
    weights, total = totals(cells_of(2, 98, 40, 60), 2, cap=5.0)
    torch.testing.assert_close(weights[:2], torch.tensor([5.0, 90 / 98]))
    torch.testing.assert_close(weights[2:], torch.tensor([50 / 40, 50 / 60]))
    torch.testing.assert_close(total.sum(1), torch.tensor([100.0, 100.0]))


def test_a_cap_of_one_leaves_every_example_its_weight():
    weights, _ = totals(cells_of(2, 98, 70, 30), 2, cap=1.0)
    torch.testing.assert_close(weights, torch.ones(4))


def test_a_class_without_a_second_group_is_left_as_it_is():
    weights, _ = totals(cells_of(0, 20, 4, 16), 2, cap=10.0)
    torch.testing.assert_close(weights, torch.tensor([0.0, 1.0, 2.5, 0.625]))


def test_replicas_are_balanced_on_their_own():
    cells = torch.cat([cells_of(1, 3, 2, 2), cells_of(2, 2, 3, 1)])
    wanted = [balance_weights(row[None], 2, 10.0) for row in cells]
    torch.testing.assert_close(balance_weights(cells, 2, 10.0), torch.cat(wanted))


def summed(inputs, targets, answers, classes):
    """Sums [1, class, answer, d] and counts [1, class, answer] of inputs [n, d]."""
    hot = F.one_hot(classes * targets + answers, classes**2).float()
    shape = 1, classes, classes
    return (hot.T @ inputs).view(*shape, -1), hot.sum(0).view(shape)


def crossed(classes, times):
    """Every label with every answer, unevenly often."""
    pairs = torch.cartesian_prod(torch.arange(classes), torch.arange(classes))
    often = times * (1 + (pairs[:, 0] + 2 * pairs[:, 1]) % 3)
    return pairs.repeat_interleave(often, 0).unbind(1)


def test_a_contrast_is_the_shift_that_goes_with_the_answer():
    targets, answers = crossed(2, 500)
    shift = torch.tensor([1.0, -2.0, 0.0, 0.5])
    noise = Randomness((0,)).normal(len(targets), 4)[0]
    inputs = noise + answers[:, None] * shift
    found = compute_contrasts(*summed(inputs, targets, answers, 2))
    torch.testing.assert_close(found, shift[None, None], atol=0.15, rtol=0)
    exact = compute_contrasts(*summed(inputs - noise, targets, answers, 2))
    torch.testing.assert_close(exact, shift[None, None])


@pytest.mark.parametrize("classes", [2, 3])
def test_a_contrast_does_not_depend_on_what_the_label_adds(classes):
    targets, answers = crossed(classes, 20)
    source = Randomness((0,))
    noise = source.at("noise").normal(len(targets), 5)[0]
    added = 10 * source.at("label").normal(classes, 5)[0]
    plain, moved = (
        compute_contrasts(*summed(x, targets, answers, classes))
        for x in (noise, noise + added[targets])
    )
    assert plain.shape == (1, classes - 1, 5)
    torch.testing.assert_close(moved, plain, atol=1e-4, rtol=0)


def test_classes_where_the_answer_never_varies_do_not_count():
    targets = torch.tensor([0, 0, 1, 1, 1])
    answers = torch.tensor([0, 1, 1, 1, 1])
    inputs = torch.tensor([[1.0], [3.0], [50.0], [60.0], [70.0]])
    found = compute_contrasts(*summed(inputs, targets, answers, 2))
    assert found.tolist() == [[[2.0]]]


def test_an_answer_that_is_always_the_same_has_no_direction():
    targets, answers = torch.tensor([0, 1, 1]), torch.tensor([1, 1, 1])
    found = compute_contrasts(*summed(torch.ones(3, 2), targets, answers, 2))
    assert found.tolist() == [[[0.0, 0.0]]]


def test_a_direction_that_returns_is_kept_and_one_by_chance_is_left_behind():
    planted, kept = F.one_hot(torch.tensor(0), 40).float(), torch.zeros(1, 0, 40)
    for turn in range(8):
        noise = Randomness((0,)).at(turn).normal(40) / 40**0.5
        kept = merge_directions(kept, torch.stack([planted[None], 0.5 * noise], 1), 3)
    assert kept.shape == (1, 3, 40)
    lengths = kept[0].norm(dim=-1)
    torch.testing.assert_close(lengths[0], torch.tensor(8.0**0.5), atol=0.2, rtol=0)
    inputs = torch.cat([planted[None], noise])[None]
    seen = remove_directions(inputs, kept)
    assert seen[0, 0].norm() < 0.15
    assert seen[0, 1].norm() > 0.9 * noise[0, 1:].norm()


def test_merged_directions_are_orthogonal_and_their_lengths_are_singular_values():
    old, new = (Randomness((0, 1)).at(n).normal(3, 6) for n in ("old", "new"))
    kept = merge_directions(old, new, 4)
    squares = kept @ kept.mT
    wanted = torch.linalg.svdvals(torch.cat([old, new], 1))[:, :4].square()
    torch.testing.assert_close(squares, wanted.diag_embed(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("rank", "width"), [(1, 6), (4, 6), (5, 2)])
def test_so_many_directions_are_carried_however_many_there_are(rank, width):
    kept = merge_directions(
        torch.zeros(2, 0, width), Randomness((0, 1)).normal(3, width), rank
    )
    assert kept.shape == (2, rank, width)
    assert (kept.norm(dim=-1) > 1e-6).sum(1).tolist() == [min(rank, 3, width)] * 2
    nothing = merge_directions(torch.zeros(2, 0, width), torch.zeros(2, 0, width), rank)
    assert torch.equal(nothing, torch.zeros(2, rank, width))


def test_inputs_without_directions_are_a_projection():
    inputs = Randomness(SEEDS).at("x").normal(20, 6)
    found = Randomness(SEEDS).at("d").normal(2, 6)
    directions = merge_directions(torch.zeros(3, 0, 6), found, 4)
    once = remove_directions(inputs, directions)
    torch.testing.assert_close(remove_directions(once, directions), once)
    torch.testing.assert_close(
        once @ directions.mT, torch.zeros(3, 20, 4), atol=1e-5, rtol=0
    )
    gone = inputs - once
    torch.testing.assert_close(
        (gone * once).sum(-1), torch.zeros(3, 20), atol=1e-4, rtol=0
    )


def test_only_parts_along_the_stronger_directions_are_taken():
    directions = torch.diag(torch.tensor([2.0, 2 * FAINT * 1.01, 2 * FAINT * 0.99]))
    seen = remove_directions(torch.ones(1, 1, 3), directions[None])
    torch.testing.assert_close(seen, torch.tensor([[[0.0, 0.0, 1.0]]]))


def test_without_any_direction_inputs_are_as_they_were():
    inputs = Randomness((0,)).normal(5, 3)
    assert torch.equal(remove_directions(inputs, torch.zeros(1, 4, 3)), inputs)


def calibrated(classes, leak):
    """Logits, answers, targets and weights for which the logits are the truth.

    Every target comes with its probability as the weight, and every answer with each
    of them; `leak` times the answer is then added to the logits.
    """
    base = Randomness((0, 1)).normal(30, classes)
    grid = torch.cartesian_prod(
        torch.arange(30), torch.arange(classes), torch.arange(classes)
    )
    target, answer = (part.expand(2, -1) for part in grid[:, 1:].unbind(1))
    logits = base[:, grid[:, 0]]
    weights = logits.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return logits + leak * F.one_hot(answer, classes), answer, target, weights


@pytest.mark.parametrize("classes", [2, 4])
def test_where_nothing_leaks_nothing_is_corrected(classes):
    factors = fit_correction(*calibrated(classes, 0.0))
    torch.testing.assert_close(
        factors, torch.tensor([[1.0, 0.0]] * 2), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("leak", [0.5, 2.0])
def test_an_answer_that_was_added_is_taken_off(classes, leak):
    scale, back = fit_correction(*calibrated(classes, leak)).unbind(1)
    assert (scale > 0.8).all()
    assert (back < -0.7 * leak).all() and (back > -leak).all()


@pytest.mark.parametrize("size", [0.1, 1.0, 5.0, 30.0, 300.0])
def test_a_correction_is_where_the_weighted_risk_has_no_slope(size):
    source = Randomness(SEEDS)
    targets, answers = (source.at(n).integers(3, 200) for n in ("y", "answer"))
    known = source.at("known").uniform(200) < 0.7
    seen = torch.where(known, targets, source.at("seen").integers(3, 200))
    noise = 0.2 * source.at("noise").normal(200, 3)
    logits = size * (F.one_hot(seen, 3) + F.one_hot(answers, 3) / 2 + noise)
    weights = 0.1 + source.at("weight").uniform(200)
    factors = (
        fit_correction(logits, answers, targets, weights).double().requires_grad_()
    )
    added = F.one_hot(answers, 3) - 1 / 3
    scale, back = factors[..., None, None].unbind(1)
    chances = (scale * logits.double() + back * added).log_softmax(-1)
    losses = -chances.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    risk = ((weights * losses).sum(1) / weights.sum(1)).sum()
    risk = risk + 0.005 * (factors - torch.tensor([1.0, 0.0])).square().sum()
    (slope,) = torch.autograd.grad(risk, factors)
    assert slope.abs().max() < 1e-5 * max(1.0, size)
    assert (factors[:, 1] < 0).all()


@pytest.mark.parametrize(("count", "members"), [(12, 4), (14, 4), (4, 4), (7, 2)])
def test_members_are_judged_on_disjoint_parts_that_they_do_not_learn_from(
    count, members
):
    learned, judged = assign_rows(count, members, Randomness(SEEDS))
    size = count // members
    assert judged.shape == (3 * members, size)
    assert learned.shape == (3 * members, count - size)
    for outside, inside in zip(learned.tolist(), judged.tolist(), strict=True):
        assert sorted(outside + inside) == list(range(count))
    for parts in judged.unflatten(0, (3, members)).flatten(1).tolist():
        assert len(set(parts)) == size * members


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_examples_are_learned_and_judged_by_every_member(count):
    for rows in assign_rows(count, 4, Randomness(SEEDS)):
        assert rows.sort(1).values.tolist() == [list(range(count))] * 12


def test_shares_of_a_replica_do_not_depend_on_its_neighbours():
    beside, alone = (assign_rows(9, 2, Randomness(seeds)) for seeds in (SEEDS, (1,)))
    for many, one in zip(beside, alone, strict=True):
        assert torch.equal(many[2:4], one)


def numbered(replicated):
    """Images [5, 2, 3] whose values, and labels, tell the replica and the example."""
    number = torch.arange(5.0)
    if replicated:
        number = number + 10 * torch.arange(3.0)[:, None]
    targets = (number % 3 == 0).long()
    inputs = number[..., None, None].expand(*number.shape, 2, 3).contiguous()
    return Environment("a", inputs, targets, TASK, replicated)


@pytest.mark.parametrize("replicated", [False, True])
def test_a_member_gets_the_examples_of_its_rows_in_its_replica(replicated):
    rows = Randomness(range(6)).integers(5, 4)  # three replicas of two members
    some = select_member_rows(numbered(replicated), rows, 2)
    assert some.inputs.shape == (6, 4, 2, 3)
    replica = torch.arange(3).repeat_interleave(2)[:, None]
    wanted = (rows + 10 * replica * replicated).float()
    for x, y, number in (
        (*some.take_all(6), wanted),
        (*some.take(torch.tensor([[3, 0]] * 6)), wanted[:, [3, 0]]),
    ):
        assert torch.equal(x, number[..., None, None].expand(*x.shape))
        assert torch.equal(y, (number % 3 == 0).long())


def test_other_targets_leave_the_inputs_as_they_were():
    some = select_member_rows(numbered(True), torch.tensor([[0, 4]] * 3), 1)
    other = replace_targets(some, torch.full((3, 2), 5), 6)
    assert torch.equal(other.take_all(3).x, some.take_all(3).x)
    assert other.take_all(3).y.tolist() == [[5, 5]] * 3
    assert len(other.task.classes) == 6


def test_strides_are_all_rows_in_order():
    rows = torch.zeros(2, 9000, dtype=torch.int64)
    pieces = list_row_chunks(select_member_rows(numbered(False), rows, 1))
    assert [piece.shape[1] for piece in pieces] == [4096, 4096, 808]
    assert torch.equal(torch.cat(pieces, 1), torch.arange(9000).expand(2, -1))


def test_a_shortened_environment_holds_each_members_first_examples():
    inputs = torch.arange(40.0).view(20, 2)
    environment = Environment("a", inputs, torch.arange(20) % 2, TASK)
    rows, _ = assign_rows(20, 2, Randomness(SEEDS))
    whole = select_member_rows(environment, rows, 2)
    short = truncate_environment(whole, 4)
    assert short.inputs.shape == (6, 4, 2)
    x, y = short.take_all(6)
    torch.testing.assert_close(x, whole.take_all(6).x[:, :4])
    torch.testing.assert_close(y, whole.targets[:, :4])
    assert truncate_environment(whole, 0) is whole
    assert truncate_environment(whole, 10) is whole
