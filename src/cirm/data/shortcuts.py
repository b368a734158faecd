"""Images with many kinds of shortcut, for `cirm stress`.

The class of an image gives a clean label: its parity, or with the kinds for many
classes the class itself. The label y is the clean one, replaced by another one with
probability `label_flip`. A shortcut shows a label u, which is y, replaced by another
one with the probability of the environment: `flips` in the training environments, and
`test_flip` in the unseen one. The kinds of shortcut:

- `figure`: the figure is green or red, as in the paper's b01 (two channels);
- `background`: the background is green or red, as in b11 (two channels);
- `corner`: a bright square of 3 x 3 pixels in a corner if u is 1 (grey images);
- `stripes`: faint stripes over the whole image if u is 1 (grey images);
- `two`: the colour of the figure and the square at once, each with draws of its own;
- `new`: each training environment has a shortcut that no other one has, of `figure`,
  `corner` and `stripes` in turn; all of them are in the unseen environment;
- `classes-random`: every class has a hue; in the unseen environment hues are random;
- `classes-opposite`: the same, but in the unseen environment u is y with probability
  1 - `test_flip`, and otherwise the class with the opposite hue;
- `none`: grey images without a shortcut.

With `shortcut=False` the same images have the same labels, but nothing depends on u:
the data of an oracle. Neither images nor labels depend on the kind of shortcut.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cirm.data.base import (
    Dataset,
    check_examples_per_environment,
    list_evenly_spaced_numbers,
)
from cirm.data.downloads import (
    list_local_files_of_source,
    load_images_and_count_classes,
)
from cirm.data.shortcut_images import CHANNELS, ImagesWithShortcut
from cirm.environments import Environment, Problem, Task
from cirm.randomness import Randomness

Kind = Literal[
    "figure",
    "background",
    "corner",
    "stripes",
    "two",
    "new",
    "classes-random",
    "classes-opposite",
    "none",
]
CUES: dict[str, tuple[str, ...]] = {
    "figure": ("figure",),
    "background": ("background",),
    "corner": ("corner",),
    "stripes": ("stripes",),
    "two": ("figure", "corner"),
    "new": ("figure", "corner", "stripes"),
    "classes-random": ("hue",),
    "classes-opposite": ("hue",),
    "none": (),
}
"""What depends on the label, by kind."""

USUAL_EXAMPLES = 1000  # of an environment, as in the paper


@dataclass(frozen=True)
class Shortcuts(Dataset):
    """Images with a shortcut of one of nine kinds, or with the shortcut left out.

    Args:
        source: "digits" (in scikit-learn), "mnist", "fashion-mnist", "kmnist",
            "emnist-letters", or a folder with four IDX files.
        kind: The kind of shortcut: "figure", "background", "corner", "stripes", "two",
            "new", "classes-random", "classes-opposite" or "none".
        shortcut: Whether the shortcut is there. Without it the images, labels and
            draws are the same: the data of an oracle.
        environments: The number of training environments.
        examples: Examples of each training environment; None for 1,000, or an even
            share if the source has fewer.
        flips: The probability that the shortcut shows another label, for each
            training environment; empty for evenly spaced values from 0.2 to 0.1.
        test_flip: The same in the unseen environment.
        label_flip: The probability that a label is replaced by another one.
        sweep: Values of `test_flip` for further unseen environments, which give curves.

    Example:
        >>> problem = Shortcuts(kind="corner", examples=100).draw_problem(seeds=(0, 1))
        >>> [environment.name for environment in problem.train]
        ['train-1', 'train-2']
        >>> problem.train[0].inputs.shape
        (2, 100, 1, 8, 8)
    """

    has_images: ClassVar[bool] = True

    source: str = "digits"
    kind: Kind = "figure"
    shortcut: bool = True
    environments: int = 2
    examples: int | None = None
    flips: tuple[float, ...] = ()
    test_flip: float = 0.9
    label_flip: float = 0.25
    sweep: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in CUES:
            self._raise_invalid_setting_error("kind", f"Use one of {', '.join(CUES)}")
        if self.environments < 1:
            self._raise_invalid_setting_error("environments", "Use 1 or more")
        if self.kind == "new" and self.environments > len(CUES["new"]):
            most = len(CUES["new"])
            self._raise_invalid_setting_error(
                "environments",
                (
                    "With kind=new there is one kind of shortcut for "
                    f"each environment, and only {most} kinds exist; use "
                    f"at most {most} environments"
                ),
            )
        if self.examples is not None and self.examples < 1:
            self._raise_invalid_setting_error("examples", "Use 1 or more")
        self._check_number_of_flip_probabilities(self.flips, self.environments)
        self._check_probabilities("flips", "test_flip", "label_flip", "sweep")

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return environments [replica, n, channels, side, side] for each seed."""
        images, found = load_images_and_count_classes(self.source)
        train, test = images.train_labels, images.test_labels
        classes = found if self.are_source_classes_predicted else 2
        randomness = Randomness(tuple(seeds)).at("shortcuts")
        share = self._count_examples_per_environment(len(train))
        order = randomness.at("images").permutation(len(train))
        every = torch.arange(len(test)).expand(len(seeds), -1)
        places = [("test", self.test_flip)]
        places += [(f"sweep-{flip:g}", flip) for flip in self.sweep]
        trained = [
            self._draw_environment_with_shortcut(
                f"train-{i + 1}",
                images.train_images,
                train,
                order[:, i * share : (i + 1) * share].contiguous(),
                flip,
                classes,
                randomness.at("train", i),
                self._list_shortcuts_of_environment(i),
            )
            for i, flip in enumerate(self.list_flip_probabilities())
        ]
        # One address for all: an example flipped at one position stays so later on.
        unseen = [
            self._draw_environment_with_shortcut(
                name,
                images.test_images,
                test,
                every,
                flip,
                classes,
                randomness.at("test"),
                self._list_shortcuts_of_environment(),
            )
            for name, flip in places
        ]
        sweep = tuple(zip(self.sweep, unseen[1:], strict=True))
        return Problem(tuple(trained), test=(unseen[0],), sweep=sweep)

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the IDX files if `source` is a folder."""
        return list_local_files_of_source(self.source)

    def list_flip_probabilities(self) -> tuple[float, ...]:
        """Return the flip of each training environment, in order of arrival."""
        return self.flips or list_evenly_spaced_numbers(0.2, 0.1, self.environments)

    @property
    def are_source_classes_predicted(self) -> bool:
        """Whether the classes of the source are predicted, not their parity."""
        return self.kind.startswith("classes")

    def _list_shortcuts_of_environment(
        self, environment_index: int | None = None
    ) -> tuple[str, ...]:
        """Return the shortcuts at a training environment, or at the unseen one."""
        cues = CUES[self.kind]
        if not self.shortcut:
            return ()
        if self.kind != "new":
            return cues
        return (
            cues[: self.environments]
            if environment_index is None
            else (cues[environment_index],)
        )

    def _draw_environment_with_shortcut(
        self,
        name: str,
        grey_images: Tensor,
        labels: Tensor,
        rows: Tensor,
        flip_probability: float,
        n_classes: int,
        randomness: Randomness,
        shortcuts: tuple[str, ...],
    ) -> Environment:
        clean = labels[rows] % n_classes if n_classes == 2 else labels[rows]
        targets = flip_labels_with_probability(
            clean, self.label_flip, n_classes, randomness.at("label")
        )
        is_unseen = not name.startswith("train")
        shown = {
            cue: self._draw_labels_shown_by_shortcut(
                targets, flip_probability, n_classes, randomness.at(cue), is_unseen
            )
            for cue in shortcuts
        }
        channels = max([CHANNELS.get(cue, 1) for cue in CUES[self.kind]], default=1)
        background = self.kind == "background"
        inputs = ImagesWithShortcut(
            grey_images, rows, shown, channels, n_classes, background
        )
        task = Task.classification(n_classes)
        return Environment(name, inputs, targets, task, replicated=True)

    def _draw_labels_shown_by_shortcut(
        self,
        targets: Tensor,
        flip_probability: float,
        n_classes: int,
        randomness: Randomness,
        is_unseen: bool,
    ) -> Tensor:
        """Return the labels that a shortcut shows, [replica, n] bytes."""
        if is_unseen and self.kind == "classes-random":
            shown = randomness.integers(n_classes, targets.shape[1])
        elif is_unseen and self.kind == "classes-opposite":
            opposite = (targets + n_classes // 2) % n_classes
            chance = randomness.at("flip").uniform(targets.shape[1])
            shown = torch.where(chance < flip_probability, opposite, targets)
        else:
            shown = flip_labels_with_probability(
                targets, flip_probability, n_classes, randomness
            )
        return shown.to(torch.uint8)

    def _count_examples_per_environment(self, n_available: int) -> int:
        most = n_available // self.environments
        wanted = min(USUAL_EXAMPLES, most) if self.examples is None else self.examples
        return check_examples_per_environment(
            "shortcuts", self.source, self.environments, wanted, n_available
        )


def flip_labels_with_probability(
    labels: Tensor, probability: float, n_classes: int, randomness: Randomness
) -> Tensor:
    """Replace each label with a probability by one of the others, at random."""
    count = labels.shape[1]
    steps = 1 + randomness.at("other").integers(n_classes - 1, count)
    return torch.where(
        randomness.at("flip").uniform(count) < probability,
        (labels + steps) % n_classes,
        labels,
    )
