"""How coloured images are painted: the channels of each scheme, and their scale."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cirm.environments import Environment, Problem

FIGURE = {
    "b01": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    "b11": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
    "gray": torch.tensor([[0.5, 0.5], [0.5, 0.5]]),
}  # factor of the image in each channel, [colour, channel]


@dataclass(frozen=True, eq=False)
class ColoredImages:
    """Inputs [replica, n, 2, side, side], coloured on request from shared grey bytes.

    `grey` is [images, side, side]; `rows` is the image of each example and `colors`
    its colour, 0 or 1, both [replica, n]. `mean` is subtracted from all inputs, which
    are then divided by `std`.
    """

    grey: Tensor
    rows: Tensor
    colors: Tensor
    scheme: str
    mean: float = 0.0
    std: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, 2, side, side]."""
        return (*self.rows.shape, 2, *self.grey.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [replica, m, 2, side, side] of the rows [replica, m]."""
        images = self.rows.gather(1, rows)
        colors = self.colors.gather(1, rows).long()
        grey = self.grey.index_select(0, images.flatten()).float()
        grey = grey.view(*rows.shape, 1, *self.grey.shape[1:])
        figure = FIGURE[self.scheme] / 255
        inputs = grey * figure[colors][..., None, None]
        if self.scheme == "b11":
            inputs += torch.eye(2)[colors][..., None, None]
        if (self.mean, self.std) != (0.0, 1.0):
            inputs.sub_(self.mean).div_(self.std)
        return inputs


def compute_input_mean_and_std(grey_images: Tensor, scheme: str) -> tuple[float, float]:
    """Return mean and standard deviation of inputs, if both colours are as frequent.

    They are over all pixels and both channels of the images [n, side, side].
    """
    counts = torch.bincount(grey_images.flatten(), minlength=256).double()
    levels = torch.arange(256) / 255
    values = levels[:, None] * FIGURE[scheme][0]  # [level, channel]
    if scheme == "b11":
        values = values + torch.eye(2)[0]
    weights = (counts / counts.sum())[:, None] / 2
    mean = float((weights * values).sum())
    return mean, float((weights * (values - mean).square()).sum().sqrt())


def standardise_inputs_of_problem(problem: Problem, mean: float, std: float) -> Problem:
    """Return the problem with inputs that are shifted and scaled."""

    def standardise_environment(environment: Environment) -> Environment:
        assert isinstance(environment.inputs, ColoredImages)
        inputs = replace(environment.inputs, mean=mean, std=std)
        return replace(environment, inputs=inputs)

    return replace(
        problem,
        train=tuple(map(standardise_environment, problem.train)),
        test=tuple(map(standardise_environment, problem.test)),
        sweep=tuple((flip, standardise_environment(e)) for flip, e in problem.sweep),
        fresh=tuple(map(standardise_environment, problem.fresh)),
    )
