"""Environments of a sweep share the predictions of the images in each colour."""

from dataclasses import replace

import torch

from cirm import Randomness
from cirm.data.colored import Colored
from cirm.evaluation.predictions import (
    are_colorings_of_the_same_images,
    predict_environment,
    predict_sweep,
)
from cirm.learners import create

SEEDS = (0, 1)
PROBLEM = Colored(examples=40).draw_problem(SEEDS)
SWEEP = [environment for _, environment in PROBLEM.sweep]


def test_the_predictions_of_a_sweep_are_those_of_each_environment():
    learner = create("erm", PROBLEM.train[0], {"hidden": (5,)})
    state = learner.init(Randomness(SEEDS))
    found = list(predict_sweep(learner, state, SWEEP, 2))
    for environment, pair in zip(SWEEP, found, strict=True):
        alone = predict_environment(learner, state, environment, 2, chunk_size=50)
        torch.testing.assert_close(pair, alone)
    assert not found[0][0].allclose(found[-1][0])


def test_only_colourings_of_the_same_images_share_predictions():
    assert are_colorings_of_the_same_images(SWEEP)
    assert not are_colorings_of_the_same_images(SWEEP[:2])
    inputs = replace(SWEEP[1].inputs, rows=SWEEP[1].inputs.rows.flip(1))
    other = replace(SWEEP[1], inputs=inputs)
    assert not are_colorings_of_the_same_images([SWEEP[0], other, SWEEP[2]])
    plain = replace(SWEEP[1], inputs=SWEEP[1].take_all(2).x)
    assert not are_colorings_of_the_same_images([SWEEP[0], plain, SWEEP[2]])
    assert not are_colorings_of_the_same_images([])
