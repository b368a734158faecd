"""Images with shortcuts, drawn on request from shared grey images."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass

import torch
from torch import Tensor

CHANNELS = {"figure": 2, "background": 2, "hue": 3}
SQUARE = 3  # pixels, on images of 8 and of 28 pixels alike
FAINT = 0.15  # of full brightness: much less than a stroke, which has about 0.5 to 1


@dataclass(frozen=True, eq=False)
class ImagesWithShortcut:
    """Inputs [replica, n, channels, side, side], drawn on request from grey bytes.

    Args:
        grey: Images [images, side, side], bytes.
        rows: The image of each example, [replica, n].
        cues: The label that each shortcut shows, [replica, n], by its name. Shortcuts
            that are not named are absent.
        channels: Number of channels; colours need two or three.
        classes: Number of labels.
        background: Whether it is the background that is coloured.
    """

    grey: Tensor
    rows: Tensor
    cues: dict[str, Tensor]
    channels: int
    classes: int
    background: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, channels, side, side]."""
        return (*self.rows.shape, self.channels, *self.grey.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        """Return inputs [replica, m, channels, side, side] of the rows [replica, m]."""
        images = self.rows.gather(1, rows).flatten()
        grey = self.grey.index_select(0, images).float() / 255
        cues = {name: u.gather(1, rows).long() for name, u in self.cues.items()}
        inputs = self._color_images(
            grey.view(*rows.shape, 1, *self.grey.shape[1:]), cues
        )
        if "corner" in cues:
            square = cues["corner"].float()[..., None, None, None]
            part = inputs[..., :SQUARE, :SQUARE]
            inputs[..., :SQUARE, :SQUARE] = torch.maximum(part, square)
        if "stripes" in cues:
            light = FAINT * cues["stripes"].float()[..., None, None, None]
            inputs[..., ::2, :] += light * (1 - inputs[..., ::2, :])
        return inputs

    def _color_images(self, grey_images: Tensor, cues: dict[str, Tensor]) -> Tensor:
        """Return images in colour; without a shortcut, the mean of all colours."""
        if self.channels == 1:
            return grey_images.clone()
        palette = make_color_of_each_label(self.classes)
        color = next((cues[n] for n in CHANNELS if n in cues), None)
        tint = palette.mean(0) if color is None else palette[color]
        tint = tint[..., None, None]
        return (
            tint + grey_images * (1 - tint) if self.background else grey_images * tint
        )


def make_color_of_each_label(n_classes: int) -> Tensor:
    """Return a colour for each label: green and red, or hues around the circle.

    Example:
        >>> make_color_of_each_label(2).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        >>> make_color_of_each_label(10).shape
        torch.Size([10, 3])
    """
    if n_classes == 2:
        return torch.eye(2)
    hues = [colorsys.hsv_to_rgb(c / n_classes, 1.0, 1.0) for c in range(n_classes)]
    return torch.tensor(hues)
