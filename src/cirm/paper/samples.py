"""Coloured samples of a data set, for figures and pages."""

from __future__ import annotations

from pathlib import Path

import torch

from cirm.data.colored import Colored
from cirm.environments import Environment
from cirm.report.blocks import Picture
from cirm.report.samples import Block, Panel, content, figure

SAMPLES = 200  # of each environment, out of which a row per label is filled
TITLES = {
    "b01": "the figure is coloured",
    "b11": "the background is coloured",
    "gray": "the colour is removed",
}


def draw_colored_examples(dataset: Colored, seed: int = 0) -> Picture:
    """The samples of one colouring, with a caption."""
    caption = "Examples of each environment; the unseen one comes last."
    return Picture(content(figure([draw_panel(dataset, seed)])), caption)


def draw_panel(dataset: Colored, seed: int) -> Panel:
    """Samples of the training environments, then of the unseen one."""
    problem = dataset.draw((seed,))
    flips = (*dataset.color_flips(), dataset.test_flip)
    blocks = [
        _block(environment, flip)
        for environment, flip in zip(
            (*problem.train, *problem.test), flips, strict=True
        )
    ]
    title = f"{Path(dataset.source).name}, {dataset.scheme}"
    return Panel(title, TITLES[dataset.scheme], blocks)


def _block(environment: Environment, flip: float) -> Block:
    rows = torch.arange(min(len(environment), SAMPLES))[None]
    x, y = environment.take(rows)
    note = f"colour flips {flip:.0%}"
    return Block(environment.name, note, x[0].numpy(), y[0].numpy())
