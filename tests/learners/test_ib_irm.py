"""IB-IRM is IRMv1 with the variance of the features."""

import pytest
import torch

from cirm.learners.ib_irm import IBIRM, compute_feature_variance
from cirm.learners.irmv1 import IRMv1
from cirm.training import build_averaging_weights
from tests.learners.places import (
    DESCENT,
    NETWORK,
    STAGES,
    make_batch,
    make_classes,
    train,
)


def test_without_bottleneck_and_memory_it_is_irmv1():
    settings = {"penalty": 30.0, "anneal": 0.5, "l2": 0.01}
    learner = IBIRM(NETWORK, descent=DESCENT, bottleneck=0.0, memory=0, **settings)
    plain = train(IRMv1(NETWORK, descent=DESCENT, **settings), *STAGES)
    torch.testing.assert_close(train(learner, *STAGES).params, plain.params)


def test_the_bottleneck_is_the_mean_variance_of_the_features():
    features = torch.tensor([[[1.0, 5.0], [3.0, 5.0], [0.0, 0.0], [0.0, 4.0]]])
    share = build_averaging_weights((2, 2), torch.device("cpu"))[None]
    # Variances 1 and 0 in the first environment, 0 and 4 in the second.
    assert compute_feature_variance(features, share).item() == pytest.approx(5 / 4)


def test_the_bottleneck_shrinks_the_features():
    spreads = []
    for bottleneck in (0.0, 10.0):
        learner = IBIRM(
            NETWORK, descent=DESCENT, penalty=0.0, bottleneck=bottleneck, anneal=0.0
        )
        state = train(learner, *[STAGES[0]] * 3)
        batch = make_batch(*STAGES[0])
        features = NETWORK.compute_features(state.params, batch.x)
        spreads.append(compute_feature_variance(features, batch.share))
    assert (spreads[1] < spreads[0] / 4).all()


def test_both_penalties_are_annealed_and_divided_by_the_larger_weight():
    learner = IBIRM(NETWORK, penalty=20.0, bottleneck=3.0, anneal=0.5)
    state, place = train(learner), make_classes("a")
    early, late = (
        learner.compute_loss(state.params, state, make_batch(place, progress=p))
        for p in (0.0, 0.5)
    )
    torch.testing.assert_close(late["risk"], early["risk"] / 20)
    torch.testing.assert_close(late["penalty"], early["penalty"])
    torch.testing.assert_close(late["bottleneck"], early["bottleneck"] * 3 / 20)


def test_impossible_settings_are_refused():
    with pytest.raises(
        ValueError, match="ibirm: the setting bottleneck must be 0 or more"
    ):
        IBIRM(bottleneck=-1.0)
