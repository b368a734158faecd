"""The best score that any predictor could reach at the unseen place: the Bayes limit.

It is known where the truth is: the shape of an image tells its clean label, and the
shortcut tells the label as often as it was drawn to. Both are channels through which
the label is seen, independent given the label. The best predictor takes the most
probable label given what it sees, so that its accuracy is the sum, over all that it can
see, of the largest joint probability of a label and that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.data.planted import LOGIT_SPREAD, SHIFT, PlantedShortcutTable
from cirm.data.shortcuts import CUES, Shortcuts
from cirm.stress.cells import StressTestCell

GRID = 2001  # points of an integral over 16 standard deviations


def compute_bayes_optimal_score(cell: StressTestCell) -> float | None:
    """Return the best possible accuracy or explained variance of a cell, in percent."""
    data = cell.data
    if cell.kind.dataset == "shortcuts":
        return 100 * _compute_bayes_limit_for_images(Shortcuts(**data))
    dataset = PlantedShortcutTable(**data)
    if dataset.path:
        return None
    if dataset.task != "regression":
        return 100 * _compute_bayes_limit_for_tables(dataset)
    if dataset.plant != "numeric":
        return None
    slope = 1 - 2 * dataset.test_flip
    # The target has variance 1, half of it noise: precisions of both sources add up.
    return 100 * (1 - 1 / (2 + slope**2 / (1 - slope**2)))


def compute_bayes_accuracy_of_channels(
    class_frequencies: Tensor, *channels: Tensor
) -> float:
    """Return the accuracy of the best predictor from independent channels.

    Args:
        class_frequencies: Probability of each label, [k].
        channels: For each channel the probability of what it shows given the label,
            [k, values].

    Example:
        >>> prior, shape = torch.tensor([0.5, 0.5]), build_label_noise_matrix(2, 0.25)
        >>> round(compute_bayes_accuracy_of_channels(prior, shape), 4)
        0.75
        >>> color = build_label_noise_matrix(2, 0.9)
        >>> round(compute_bayes_accuracy_of_channels(prior, shape, color), 4)
        0.9
    """
    joint = class_frequencies[:, None]
    for channel in channels:
        joint = (joint[:, :, None] * channel[:, None, :]).flatten(1)
    return float(joint.amax(0).sum())


def build_label_noise_matrix(n_classes: int, flip_probability: float) -> Tensor:
    """Return a channel [k, k] that shows another label with a probability."""
    chance = flip_probability / (n_classes - 1)
    other = torch.full((n_classes, n_classes), chance, dtype=torch.double)
    return other.fill_diagonal_(1 - flip_probability)


def _compute_bayes_limit_for_images(dataset: Shortcuts) -> float:
    classes = 10 if dataset.are_source_classes_predicted else 2
    prior = torch.full((classes,), 1 / classes, dtype=torch.double)
    shape = build_label_noise_matrix(classes, dataset.label_flip)
    if dataset.kind == "classes-random":
        return compute_bayes_accuracy_of_channels(prior, shape)
    if dataset.kind == "classes-opposite":
        own = torch.eye(classes, dtype=torch.double)
        opposite = own.roll(classes // 2, 1)
        hue = dataset.test_flip * opposite + (1 - dataset.test_flip) * own
        return compute_bayes_accuracy_of_channels(prior, shape, hue)
    cues = CUES[dataset.kind][: dataset.environments if dataset.kind == "new" else None]
    cue = build_label_noise_matrix(2, dataset.test_flip)
    return compute_bayes_accuracy_of_channels(prior, shape, *[cue] * len(cues))


def _compute_bayes_limit_for_tables(dataset: PlantedShortcutTable) -> float:
    """Integrate over the log odds, whose mean differs from place to place."""
    grid = torch.linspace(-8, 8, GRID, dtype=torch.double)
    density = torch.exp(-(grid**2) / 2)
    density /= density.sum()
    logit = grid * LOGIT_SPREAD * (1 + SHIFT**2) ** 0.5
    # [label, log odds]: probability of a label and of such other columns
    joint = torch.stack([torch.sigmoid(-logit), torch.sigmoid(logit)]) * density
    if dataset.plant == "binary":
        shown = build_label_noise_matrix(2, dataset.test_flip)
    else:
        distance = torch.special.ndtri(torch.tensor(1 - dataset.test_flip))
        means = torch.stack([-distance, distance]).double()
        values = torch.linspace(-8, 8, GRID, dtype=torch.double)
        shown = torch.exp(-((values - means[:, None]) ** 2) / 2)
        shown /= shown.sum(1, keepdim=True)
    return float((joint[:, :, None] * shown[:, None, :]).amax(0).sum())
