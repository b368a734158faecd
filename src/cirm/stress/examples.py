"""A picture of each kind of shortcut in images, at a training and the unseen place."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import torch
from torch import Tensor

from cirm.data.shortcuts import Shortcuts
from cirm.environments import Environment
from cirm.report.page import PngPicture
from cirm.stress.cells import ShortcutKind

SHOWN = 6  # examples of each place: three of a low label, three of a high one
SIZE = 0.5  # inches of an example
MARGIN = 2.1  # inches for the names


def render_shortcut_examples(
    kinds: Sequence[ShortcutKind], seed: int = 0
) -> PngPicture | None:
    """Draw examples of the kinds of shortcut in images; None without such kinds."""
    from matplotlib.figure import Figure

    images = [kind for kind in kinds if kind.dataset == "shortcuts"]
    if not images:
        return None
    width, height = MARGIN + (2 * SHOWN + 1) * SIZE, (len(images) + 0.6) * SIZE
    figure = Figure((width, height), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    lefts = (MARGIN, MARGIN + (SHOWN + 1) * SIZE)
    for left, name in zip(lefts, ("first training place", "unseen place"), strict=True):
        axes.text(left, height - 0.3 * SIZE, name, va="center", size=9)
    for row, kind in enumerate(images):
        bottom = (len(images) - row - 1) * SIZE
        middle = bottom + SIZE / 2
        axes.text(MARGIN - 0.15, middle, kind.title, ha="right", va="center", size=9)
        problem = Shortcuts(**kind.data).draw_problem((seed,))
        for left, place in zip(lefts, (problem.train[0], problem.test[0]), strict=True):
            for column, pixels in enumerate(_take_examples_in_colour(place)):
                x = left + column * SIZE
                extent = (x, x + 0.94 * SIZE, bottom, bottom + 0.94 * SIZE)
                axes.imshow(
                    pixels.permute(1, 2, 0).numpy(),
                    extent=extent,
                    interpolation="nearest",
                    aspect="auto",
                )
    axes.set(xlim=(0, width), ylim=(0, height))
    file = BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    half = SHOWN // 2
    caption = (
        f"Examples of each kind of shortcut. For each place: first {half} images with "
        f"a low label, then {half} with a high label."
    )
    return PngPicture(file.getvalue(), caption)


def _take_examples_in_colour(environment: Environment) -> list[Tensor]:
    """Return examples in colour [3, side, side], of low and then of high labels."""
    classes = len(environment.task.classes)
    is_high = environment.targets[0] >= classes / 2
    half = SHOWN // 2
    rows = torch.cat([(is_high == high).nonzero()[:half, 0] for high in (False, True)])
    inputs = environment.take(rows[None]).x[0].clamp(0, 1)
    if inputs.shape[1] == 1:
        inputs = inputs.expand(-1, 3, -1, -1)
    elif inputs.shape[1] == 2:  # green and red, as channels 0 and 1
        none = torch.zeros_like(inputs[:, :1])
        inputs = torch.cat([inputs[:, 1:], inputs[:, :1], none], 1)
    return list(inputs)
