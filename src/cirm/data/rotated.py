"""Rotated digits: each environment shows the images turned by another angle.

Muhammad Ghifary et al., "Domain Generalization for Object Recognition with Multi-task
Autoencoders", 2015. There the angles are 0 to 75 degrees in steps of 15, and each is
unseen in turn; here the training angles arrive one after another. Labels are the
classes, without noise. There is no shortcut: what changes is the inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from cirm.data import idx
from cirm.data.base import Dataset, check_examples_per_environment
from cirm.data.downloads import load_images_and_count_classes
from cirm.data.image_sets import IMAGE_SETS
from cirm.data.shortcut_images import ImagesWithShortcut
from cirm.environments import Environment, Problem, Task
from cirm.randomness import Randomness


@dataclass(frozen=True)
class Rotated(Dataset):
    """Images that are turned by a different angle in each environment.

    The images of the training environments are disjoint, drawn for each seed; the
    unseen environments have the test images.

    Args:
        source: "digits" (in scikit-learn), "mnist", "fashion-mnist", "kmnist",
            "emnist-letters", or a folder with four IDX files.
        angles: The angle of each training environment in degrees, counterclockwise,
            in order of arrival.
        test_angle: The angle of the unseen environment.
        examples: Examples of each training environment; None for 1,000, or an even
            share if the source has fewer.
        sweep: Angles of further unseen environments, which give curves.

    Example:
        >>> problem = Rotated(examples=50, angles=(0, 30)).draw_problem(seeds=(0, 1))
        >>> [environment.name for environment in (*problem.train, *problem.test)]
        ['0', '30', '75']
        >>> problem.train[0].inputs.shape
        (2, 50, 1, 8, 8)
    """

    has_images: ClassVar[bool] = True

    source: str = "digits"
    angles: tuple[float, ...] = (0, 15, 30, 45, 60)
    test_angle: float = 75
    examples: int | None = None
    sweep: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.angles or len({*self.angles}) < len(self.angles):
            self._raise_invalid_setting_error(
                "angles", "Use one or more different angles"
            )
        if self.test_angle in self.angles:
            self._raise_invalid_setting_error(
                "test_angle", "Use an angle that is not trained"
            )
        if self.examples is not None and self.examples < 1:
            self._raise_invalid_setting_error("examples", "Use 1 or more")

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return environments [replica, n, 1, side, side] for each seed."""
        images, classes = load_images_and_count_classes(self.source)
        train, test = images.train_labels, images.test_labels
        share = self._count_examples_per_environment(len(train))
        order = Randomness(tuple(seeds)).at("rotated").permutation(len(train))
        every = torch.arange(len(test)).expand(len(seeds), -1)
        trained = [
            build_rotated_environment(
                f"{angle:g}",
                images.train_images,
                train,
                order[:, i * share : (i + 1) * share],
                angle,
                classes,
            )
            for i, angle in enumerate(self.angles)
        ]
        unseen = [
            build_rotated_environment(
                name, images.test_images, test, every, angle, classes
            )
            for name, angle in (
                (f"{self.test_angle:g}", self.test_angle),
                *((f"sweep-{angle:g}", angle) for angle in self.sweep),
            )
        ]
        return Problem(
            tuple(trained),
            test=(unseen[0],),
            sweep=tuple(zip(self.sweep, unseen[1:], strict=True)),
        )

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the IDX files if `source` is a folder."""
        if self.source == "digits" or self.source in IMAGE_SETS:
            return ()
        return idx.list_existing_idx_files(Path(self.source).expanduser())

    def _count_examples_per_environment(self, n_available: int) -> int:
        wanted = self.examples or min(1000, n_available // len(self.angles))
        return check_examples_per_environment(
            "rotated", self.source, len(self.angles), wanted, n_available
        )


def build_rotated_environment(
    name: str,
    grey_images: Tensor,
    labels: Tensor,
    rows: Tensor,
    angle: float,
    n_classes: int,
) -> Environment:
    """Return the images of rows [replica, n], turned by an angle."""
    used, places = rows.unique(return_inverse=True)
    inputs = ImagesWithShortcut(
        rotate_images(grey_images[used], angle),
        places,
        {},
        1,
        n_classes,
        background=False,
    )
    return Environment(
        name, inputs, labels[rows], Task.classification(n_classes), replicated=True
    )


def rotate_images(grey_images: Tensor, angle: float) -> Tensor:
    """Turn images [n, side, side] of bytes counterclockwise, with black corners.

    Example:
        >>> image = torch.tensor([[[9, 0], [0, 0]]], dtype=torch.uint8)
        >>> rotate_images(image, 90).tolist()
        [[[0, 0], [9, 0]]]
    """
    if angle % 360 == 0:
        return grey_images
    turn = torch.deg2rad(torch.tensor(float(angle)))
    cosine, sine = turn.cos(), turn.sin()
    matrix = torch.tensor([[cosine, -sine, 0], [sine, cosine, 0]])
    shape = (1, 1, *grey_images.shape[1:])
    grid = torch.nn.functional.affine_grid(matrix[None], list(shape), False)
    turned = [
        torch.nn.functional.grid_sample(
            part[:, None].float(), grid.expand(len(part), -1, -1, -1),
            align_corners=False,
        )[:, 0]
        for part in grey_images.split(4096)  # bounds the memory of the floats
    ]  # fmt: skip
    return torch.cat(turned).round().clamp(0, 255).to(torch.uint8)
