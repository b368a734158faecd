"""Centre and scale the inputs of networks, by the first environment.

A network learns slowly from inputs that are far from zero, such as pictures with a
bright background, and a learning rate suits inputs of one size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SPREAD = 0.3  # of inputs to networks: that of digits in [0, 1], for which the learning
# rate was chosen


class InputScale(NamedTuple):
    """Shift [replica, channel] and factor [replica] of inputs; none before any data."""

    shift: Tensor
    factor: Tensor


def create_identity_input_scale(n_replicas: int) -> InputScale:
    """Return the scale that leaves inputs as they are."""
    return InputScale(torch.zeros(n_replicas, 0), torch.ones(n_replicas))


def fit_input_scale(inputs: Tensor) -> InputScale:
    """Return the scale that centres the channels of inputs [replica, n, ...].

    Inputs [replica, n, channel, height, width] are images; others have one channel.
    """
    channels = _reshape_inputs_to_channels(inputs)
    shift = channels.mean((1, 3))
    spread = (channels - shift[:, None, :, None]).square().mean((1, 2, 3)).sqrt()
    return InputScale(shift, SPREAD / spread.clamp(min=1e-6))


def scale_inputs(inputs: Tensor, scale: InputScale) -> Tensor:
    """Return inputs [replica, n, ...], centred and scaled."""
    if not scale.shift.numel():
        return inputs
    shift, factor = (part.to(inputs) for part in scale)
    channels = _reshape_inputs_to_channels(inputs) - shift[:, None, :, None]
    return (channels * factor[:, None, None, None]).view(inputs.shape)


def _reshape_inputs_to_channels(inputs: Tensor) -> Tensor:
    """Return inputs as [replica, n, channel, entry]."""
    return inputs.flatten(3) if inputs.dim() == 5 else inputs.flatten(2).unsqueeze(2)
