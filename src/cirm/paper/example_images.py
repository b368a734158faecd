"""The figure of coloured examples: training environments above, unseen ones below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cirm.data.colored import Colored
from cirm.data.downloads import GreyImagesWithClasses
from cirm.environments import Environment
from cirm.records import write_bytes_atomically
from cirm.report.page import PngPicture

Pixels = NDArray[np.float32]

EXAMPLES = 200  # of each environment, out of which a row per label is filled
TITLES = {
    "b01": "the figure is coloured",
    "b11": "the background is coloured",
    "gray": "the colour is removed",
}
ORIGINAL_LABELS: dict[str, tuple[tuple[int, ...], str, tuple[int, ...]]] = {
    "mnist": ((5, 6, 7, 8, 9), "the digits 5 to 9", ()),
    "digits": ((5, 6, 7, 8, 9), "the digits 5 to 9", ()),
    "fashion-mnist": ((5, 7, 9), "sandals, sneakers and ankle boots", (8,)),
}
"""Classes with the label 1, what they are, and classes left out, as in IRMG's data."""

GREEN, RED = (0.27, 0.76, 0.40), (0.86, 0.20, 0.20)
# The metadata that make files of the same figure differ, by format.
FORMATS = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
_CELL, _GAP = 0.44, 0.05  # inches: an example, and the white between two
_CELL_PIXELS = _CELL + _GAP
_LEFT, _TOP, _APART, _EDGE = 1.85, 0.7, 0.24, 0.18  # inches around the blocks
_FAINT_GREY = "0.35"


@dataclass(frozen=True)
class ColoredWithoutClasses(Colored):
    """Coloured images without those of some classes.

    Args:
        left_out: The classes.
    """

    left_out: tuple[int, ...] = ()

    def _load_images_of_source(self) -> GreyImagesWithClasses:
        train, train_labels, test, test_labels = super()._load_images_of_source()
        left_out = torch.tensor(self.left_out, dtype=torch.int64)
        kept, kept_test = (
            ~torch.isin(labels, left_out) for labels in (train_labels, test_labels)
        )
        return GreyImagesWithClasses(
            train[kept], train_labels[kept], test[kept_test], test_labels[kept_test]
        )


class EnvironmentExampleImages(NamedTuple):
    """Examples of one environment: inputs [n, 2, height, width] and labels [n]."""

    name: str
    note: str
    inputs: Pixels
    labels: NDArray[np.int64]


class ColoringExampleImages(NamedTuple):
    """One colouring of the environments, from the top of the figure down."""

    title: str
    note: str
    blocks: Sequence[EnvironmentExampleImages]


def render_example_images(dataset: Colored, seed: int = 0) -> PngPicture:
    """Draw the examples of one colouring, with a caption."""
    caption = "Examples of each environment; the unseen one comes last."
    return PngPicture(
        render_example_figure([collect_example_images(dataset, seed)]), caption
    )


def collect_example_images(dataset: Colored, seed: int) -> ColoringExampleImages:
    """Collect examples of the training environments, then of the unseen one."""
    problem = dataset.draw_problem((seed,))
    flips = (*dataset.list_flip_probabilities(), dataset.test_flip)
    environments = (*problem.train, *problem.test)
    blocks = list(map(_collect_environment_examples, environments, flips))
    title = f"{Path(dataset.source).name}, {dataset.scheme}"
    return ColoringExampleImages(title, TITLES[dataset.scheme], blocks)


def convert_inputs_to_rgb(inputs: Pixels) -> Pixels:
    """Turn inputs [..., 2, height, width] into colours [..., height, width, 3].

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


def write_example_figure(panels: Sequence[ColoringExampleImages], path: Path) -> None:
    """Write the figure of `render_example_figure` in the format that the name says."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise ValueError(
            f"{path}: a figure cannot be written as {path.suffix!r}. "
            f"Choose a name that ends with one of {names}."
        )
    write_bytes_atomically(path, render_example_figure(panels, kind))


def render_example_figure(
    panels: Sequence[ColoringExampleImages], kind: str = "png", n_columns: int = 10
) -> bytes:
    """Draw panels side by side, in each block a row of examples per label."""
    import matplotlib
    from matplotlib.figure import Figure

    labels = sorted({int(y) for p in panels for b in p.blocks for y in b.labels})
    block_width = n_columns * _CELL_PIXELS - _GAP
    block_height = len(labels) * _CELL_PIXELS - _GAP
    count = len(panels[0].blocks)
    width = _LEFT + len(panels) * (block_width + _APART) - _APART + _EDGE
    height = _TOP + count * (block_height + _APART) - _APART + _EDGE
    tops = [height - _TOP - n * (block_height + _APART) for n in range(count)]
    file = BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cirm"}):
        figure = Figure(figsize=(width, height), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
        axes.set_axis_off()
        small: dict[str, Any] = {"color": _FAINT_GREY, "fontsize": 8}
        for column, panel in enumerate(panels):
            left = _LEFT + column * (block_width + _APART)
            axes.text(left, height - 0.33, panel.title, fontsize=12, weight="bold")
            axes.text(left, height - 0.55, panel.note, fontsize=9, color=_FAINT_GREY)
            for block, top in zip(panel.blocks, tops, strict=True):
                for row, label in enumerate(labels):
                    images = convert_inputs_to_rgb(
                        block.inputs[block.labels == label][:n_columns]
                    )
                    for n, image in enumerate(images.clip(0, 1)):
                        x, y = left + n * _CELL_PIXELS, top - row * _CELL_PIXELS
                        place = (x, x + _CELL, y - _CELL, y)
                        axes.imshow(
                            image, extent=place, interpolation="nearest", aspect="auto"
                        )
        for block, top in zip(panels[0].blocks, tops, strict=True):
            middle = top - block_height / 2
            axes.text(_EDGE, middle + 0.04, block.name, fontsize=10.5, weight="bold")
            axes.text(_EDGE, middle - 0.15, block.note, **small)
            for row, label in enumerate(labels):
                y = top - row * _CELL_PIXELS - _CELL / 2
                text = f"label {label}"
                axes.text(_LEFT - 0.1, y, text, ha="right", va="center", **small)
        figure.savefig(file, format=kind, dpi=160, metadata=FORMATS[kind])
    return file.getvalue()


def _collect_environment_examples(
    environment: Environment, flip_probability: float
) -> EnvironmentExampleImages:
    rows = torch.arange(min(len(environment), EXAMPLES))[None]
    x, y = environment.take(rows)
    note = f"colour flips {flip_probability:.0%}"
    return EnvironmentExampleImages(environment.name, note, x[0].numpy(), y[0].numpy())
