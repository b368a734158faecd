"""The figure of coloured samples: training environments above, unseen ones below."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cirm.records import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = NDArray[np.float32]

GREEN, RED = (0.27, 0.76, 0.40), (0.86, 0.20, 0.20)
FORMATS = ("png", "pdf", "svg")
_CELL, _GAP = 0.44, 0.05  # inches: a sample, and the white between two
_PITCH = _CELL + _GAP
_LEFT, _TOP, _APART, _EDGE = 1.85, 0.7, 0.24, 0.18  # inches around the blocks
_FAINT = "0.35"


class Block(NamedTuple):
    """Samples of one environment: inputs [n, 2, height, width] and labels [n]."""

    name: str
    note: str
    inputs: Pixels
    labels: NDArray[np.int64]


class Panel(NamedTuple):
    """One colouring of the environments, from the top of the figure down."""

    title: str
    note: str
    blocks: Sequence[Block]


def rgb(inputs: Pixels) -> Pixels:
    """Colours [..., height, width, 3] of inputs [..., 2, height, width].

    Channel 0 is shown green and channel 1 red; what both share is white.
    """
    green, red = inputs[..., 0, :, :, None], inputs[..., 1, :, :, None]
    shared = np.minimum(green, red)
    colors: Pixels = (
        (green - shared) * np.array(GREEN, np.float32)
        + (red - shared) * np.array(RED, np.float32)
        + shared
    )
    return colors


def figure(panels: Sequence[Panel], columns: int = 10) -> Figure:
    """Panels side by side; in each block a row of samples per label."""
    from matplotlib.figure import Figure

    labels = sorted(
        {int(y) for panel in panels for b in panel.blocks for y in b.labels}
    )
    block_width = columns * _PITCH - _GAP
    block_height = len(labels) * _PITCH - _GAP
    blocks = len(panels[0].blocks)
    width = _LEFT + len(panels) * (block_width + _APART) - _APART + _EDGE
    height = _TOP + blocks * (block_height + _APART) - _APART + _EDGE
    drawing = Figure(figsize=(width, height), facecolor="white")
    axes = drawing.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    tops = [height - _TOP - j * (block_height + _APART) for j in range(blocks)]
    for i, panel in enumerate(panels):
        left = _LEFT + i * (block_width + _APART)
        axes.text(left, height - 0.33, panel.title, fontsize=12, weight="bold")
        axes.text(left, height - 0.55, panel.note, fontsize=9, color=_FAINT)
        for block, top in zip(panel.blocks, tops, strict=True):
            for k, label in enumerate(labels):
                chosen = rgb(block.inputs[block.labels == label][:columns])
                _row(axes, chosen, left, top - k * _PITCH)
    for block, top in zip(panels[0].blocks, tops, strict=True):
        _heading(axes, block, labels, top, block_height)
    return drawing


def save(drawing: Figure, path: Path) -> None:
    """Write a figure at once or not at all, in the format that the name says."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(
            f"{path}: the name must end with one of "
            f"{', '.join('.' + format for format in FORMATS)}; got {path.suffix!r}"
        )
    write_bytes(path, content(drawing, kind))


def content(drawing: Figure, kind: str = "png") -> bytes:
    """A figure as the bytes of a file of this format."""
    file = BytesIO()
    drawing.savefig(file, format=kind, dpi=160)
    return file.getvalue()


def _row(axes: Axes, samples: Pixels, left: float, top: float) -> None:
    for i, sample in enumerate(samples):
        x = left + i * _PITCH
        axes.imshow(
            sample.clip(0, 1),
            extent=(x, x + _CELL, top - _CELL, top),
            interpolation="nearest",
            aspect="auto",
        )


def _heading(
    axes: Axes, block: Block, labels: list[int], top: float, height: float
) -> None:
    middle = top - height / 2
    axes.text(_EDGE, middle + 0.04, block.name, fontsize=10.5, weight="bold")
    axes.text(_EDGE, middle - 0.15, block.note, fontsize=8, color=_FAINT)
    for k, label in enumerate(labels):
        axes.text(
            _LEFT - 0.1,
            top - k * _PITCH - _CELL / 2,
            f"label {label}",
            fontsize=8,
            color=_FAINT,
            ha="right",
            va="center",
        )
