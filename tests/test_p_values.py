"""Several tests have one p-value together."""

import pytest
import torch

from cirm.p_values import combine_p_values

WEIGHTS = (0.5, 0.1, 0.4)


def test_combined_p_values_are_uniform():
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(20_000, 3, generator=generator).tolist()
    combined = torch.tensor([combine_p_values(p, WEIGHTS) for p in draws])
    for level in (0.01, 0.05, 0.2):
        assert float((combined < level).float().mean()) == pytest.approx(level, rel=0.1)


def test_tests_that_agree_count_for_more():
    assert combine_p_values((0.02, 0.02, 0.02), WEIGHTS) == pytest.approx(0.02)
    alone = combine_p_values((0.03, 0.5, 0.5), WEIGHTS)
    assert combine_p_values((0.03, 0.5, 0.03), WEIGHTS) < 0.6 * alone


def test_weights_decide_by_their_ratios():
    few = combine_p_values((0.01, 0.5), (3.0, 1.0))
    assert combine_p_values((0.01, 0.5), (6.0, 2.0)) == pytest.approx(few)
    assert few < combine_p_values((0.01, 0.5), (1.0, 3.0))


def test_a_test_without_any_difference_hides_no_other():
    one = combine_p_values((0.01, 1.0), (1.0, 1.0), largest=0.95)
    assert one == combine_p_values((0.01, 0.95), (1.0, 1.0), largest=0.95)
    assert one < 0.03 < combine_p_values((0.01, 1.0), (1.0, 1.0), largest=0.999)


def test_a_p_value_of_zero_is_a_number():
    assert 0 <= combine_p_values((0.0, 0.5), (1.0, 1.0)) < 1e-12
