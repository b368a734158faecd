"""Coloured images: a colour that predicts the label in training but not in the test.

Francesco Alesiani, Shujian Yu, Mathias Niepert, "Continual Invariant Risk
Minimization", 2023, section 4.1, after Martin Arjovsky et al., "Invariant Risk
Minimization", 2019. The class of an image gives a clean label 0 or 1. The label y is
the clean one, flipped with probability `label_flip`; the colour z is y, flipped with
the probability of the environment. Inputs are [2, side, side] in [0, 1]: channel 0 is
the paper's green, for z = 0, and channel 1 its red, for z = 1.

- `b01`: the figure is coloured. Channel z holds the image, the other channel is zero.
- `b11`: the background is coloured. The paper does not say how the figure is drawn;
  here it keeps its brightness in both channels, over a background of full colour. So
  channel z is one everywhere and the other one holds the image.
- `gray`: the colour is removed. Both channels hold half of the image, the mean of the
  two colourings of `b01`. Labels and colours are drawn as for the other schemes.

Each seed has its own images, label flips and colour flips. The images of the training
environments are disjoint parts of a random order of the training images. Every test
environment holds the test images with the same labels, those of the sweep every few of
them; an example whose colour is flipped at one position of the sweep stays flipped at
every later one.
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
from cirm.data.coloring import (
    FIGURE,
    ColoredImages,
    compute_input_mean_and_std,
    standardise_inputs_of_problem,
)
from cirm.data.downloads import (
    GreyImagesWithClasses,
    are_classes_of_source_letters,
    list_local_files_of_source,
    load_images_of_source,
)
from cirm.environments import Environment, Problem, Task
from cirm.randomness import Randomness

LABEL_RULES = ("paper", "parity", "below-five")
TAIL = 10000  # the original IRM code tests on the last 10,000 training images
MOST_FRESH, FEWEST_FRESH = 1000, 50  # spare examples of an environment to offer
_PAPER_EXAMPLES = 1000  # of an environment
_PAPER_LETTERS = "bdfhjlnprtwxz"  # those with the label 1


@dataclass(frozen=True)
class Colored(Dataset):
    """Coloured images whose colour contradicts the label more or less often.

    Args:
        source: "digits" (in scikit-learn), "mnist", "fashion-mnist", "kmnist",
            "emnist-letters", a part of the last two ("kmnist-part" and
            "emnist-letters-part"), or a folder with four IDX files.
        scheme: What is coloured: the figure ("b01"), the background ("b11"), or
            nothing ("gray").
        environments: The number of training environments.
        examples: Examples of each training environment: a number, "all" for an even
            share of the source, or None for 1,000, or an even share if there are fewer.
        flips: The probability that a colour is flipped, for each training environment;
            empty for evenly spaced values from 0.2 to 0.1, as in the paper's table 4.
        label_flip: The probability that a label is flipped.
        labels: Which classes have the label 1: "parity" (odd ones), "below-five" (0 to
            4), classes such as "1,3,7", or "paper" (its list for EMNIST's letters,
            otherwise parity).
        side: The width of the images: 0 for all pixels, or the full or half number;
            half takes every second pixel.
        test_flip: The probability that a colour is flipped in the test environment.
        sweep: The same for further test environments, which give curves.
        sweep_examples: About how many test images each of them holds; 0 for all.
        groups: Whether each training environment comes as two, "train-1 agree" and
            "train-1 contradict": the images whose colour agrees with the label, and
            those whose colour contradicts it. A learner is then told the true groups,
            which it cannot know otherwise. The number of flipped colours is exactly the
            probability times the examples.
        test_from: "test" for the test file, or "train-tail" for the last 10,000
            training images, which are then not trained on.
        standardise: Whether all inputs are shifted and scaled by the same two numbers,
            so that those of the training images have mean 0 and standard deviation 1.

    Example:
        >>> problem = Colored(examples=100).draw_problem(seeds=(0, 1))
        >>> [environment.name for environment in problem.train]
        ['train-1', 'train-2']
        >>> problem.train[0].inputs.shape
        (2, 100, 2, 8, 8)
    """

    has_images: ClassVar[bool] = True

    source: str = "digits"
    scheme: Literal["b01", "b11", "gray"] = "b01"
    environments: int = 2
    examples: int | Literal["all"] | None = None
    flips: tuple[float, ...] = ()
    label_flip: float = 0.25
    labels: str = "paper"
    side: int = 0
    test_flip: float = 0.9
    sweep: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    sweep_examples: int = 2000
    test_from: Literal["test", "train-tail"] = "test"
    standardise: bool = False
    groups: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in FIGURE:
            self._raise_invalid_setting_error(
                "scheme", f"Use one of {', '.join(FIGURE)}"
            )
        if self.test_from not in ("test", "train-tail"):
            self._raise_invalid_setting_error("test_from", "Use test or train-tail")
        if self.labels not in LABEL_RULES and not _parse_comma_separated_classes(
            self.labels
        ):
            rules = ", ".join(LABEL_RULES)
            self._raise_invalid_setting_error(
                "labels", f"Use one of {rules}, or classes such as 1,3,7"
            )
        if self.environments < 1:
            self._raise_invalid_setting_error("environments", "Use 1 or more")
        if self.sweep_examples < 0:
            self._raise_invalid_setting_error("sweep_examples", "Use 0 or more")
        if self.examples not in ("all", None) and (
            isinstance(self.examples, str) or self.examples < 1
        ):
            self._raise_invalid_setting_error("examples", "Use 1 or more, or all")
        self._check_number_of_flip_probabilities(self.flips, self.environments)
        self._check_probabilities("label_flip", "test_flip", "flips", "sweep")
        if len(set(self.sweep)) < len(self.sweep):
            self._raise_invalid_setting_error("sweep", "Use each value once")

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return environments [replica, n, 2, side, side], drawn anew for each seed."""
        images = self._load_images_of_source()
        randomness = Randomness(tuple(seeds)).at("colored")
        test, *sweep = self._draw_colored_test_environments(
            images, randomness.at("test")
        )
        share = self._count_examples_per_environment(len(images.train_labels))
        spare = len(images.train_labels) // self.environments - share
        at = randomness.at("train")
        problem = Problem(
            train=self._draw_colored_training_environments(images, at, share),
            test=(test,),
            sweep=tuple(zip(self.sweep, sweep, strict=True)),
            fresh=self._draw_colored_training_environments(
                images, at, min(spare, MOST_FRESH), share, "fresh"
            )
            if spare >= FEWEST_FRESH
            else (),
        )
        if not self.standardise:
            return problem
        moments = compute_input_mean_and_std(images.train_images, self.scheme)
        return standardise_inputs_of_problem(problem, *moments)

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the IDX files if `source` is a folder."""
        return list_local_files_of_source(self.source)

    def list_flip_probabilities(self) -> tuple[float, ...]:
        """Return the colour flip of each training environment, in order of arrival."""
        if self.flips:
            return self.flips
        if self.environments == 1:
            return (0.1,)
        return list_evenly_spaced_numbers(0.2, 0.1, self.environments)

    def _draw_colored_training_environments(
        self,
        images: GreyImagesWithClasses,
        randomness: Randomness,
        n_examples: int,
        n_examples_drawn_before: int = 0,
        *part: str,
    ) -> tuple[Environment, ...]:
        """Return environments of so many images each, after those drawn before."""
        order = randomness.at("images").permutation(len(images.train_labels))
        clean = self._assign_binary_labels_to_classes(images.train_labels)
        environments = []
        for i, flip in enumerate(self.list_flip_probabilities()):
            first = self.environments * n_examples_drawn_before + i * n_examples
            rows = order[:, first : first + n_examples].clone()
            targets = self._flip_labels_at_random(
                clean[rows], randomness.at(i, "label", *part)
            )
            chances = randomness.at(i, "colour", *part).uniform(n_examples)
            name, grey = f"train-{i + 1}", images.train_images
            if self.groups:
                environments += self._split_by_agreement_of_colour_and_label(
                    name, grey, rows, targets, chances, flip
                )
                continue
            flipped = chances < flip
            environments.append(
                self._build_colored_environment(name, grey, rows, targets, flipped)
            )
        return tuple(environments)

    def _split_by_agreement_of_colour_and_label(
        self,
        name: str,
        grey_images: Tensor,
        rows: Tensor,
        targets: Tensor,
        color_draws: Tensor,
        flip_probability: float,
    ) -> list[Environment]:
        """Return the images whose colour agrees with the label, and the others."""
        count = round(flip_probability * rows.shape[1])
        order = color_draws.argsort(1)
        parts = {"agree": order[:, count:], "contradict": order[:, :count]}
        return [
            self._build_colored_environment(
                f"{name} {part}",
                grey_images,
                rows.gather(1, places),
                targets.gather(1, places),
                torch.full(places.shape, part == "contradict"),
            )
            for part, places in parts.items()
            if places.shape[1]
        ]

    def _draw_colored_test_environments(
        self, images: GreyImagesWithClasses, randomness: Randomness
    ) -> list[Environment]:
        """Return the test environment, then those of the sweep."""
        count = len(images.test_labels)
        rows = torch.arange(count).expand(len(randomness.seeds), -1)
        clean = self._assign_binary_labels_to_classes(images.test_labels)
        targets = self._flip_labels_at_random(clean[rows], randomness.at("label"))
        chances = randomness.at("colour").uniform(count)
        every = max(1, count // self.sweep_examples) if self.sweep_examples else 1
        places = [("test", self.test_flip, 1)]
        places += [(f"sweep-{flip:g}", flip, every) for flip in self.sweep]
        return [
            self._build_colored_environment(
                name,
                images.test_images,
                rows[:, ::step],
                targets[:, ::step],
                chances[:, ::step] < flip,
            )
            for name, flip, step in places
        ]

    def _build_colored_environment(
        self,
        name: str,
        grey_images: Tensor,
        rows: Tensor,
        targets: Tensor,
        is_color_flipped: Tensor,
    ) -> Environment:
        colors = (targets ^ is_color_flipped.long()).to(torch.uint8)
        inputs = ColoredImages(grey_images, rows, colors, self.scheme)
        return Environment(
            name, inputs, targets, Task.classification(2), replicated=True
        )

    def _flip_labels_at_random(
        self, clean_labels: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return labels [replica, n], flipped with probability `label_flip`."""
        return (
            clean_labels
            ^ (randomness.uniform(clean_labels.shape[1]) < self.label_flip).long()
        )

    def _load_images_of_source(self) -> GreyImagesWithClasses:
        """Return the source's images at the chosen size."""
        train, train_labels, test, test_labels = load_images_of_source(self.source)
        if self.test_from == "train-tail":
            if len(train) <= TAIL:
                self._raise_invalid_setting_error(
                    "test_from",
                    f"{self.source} has only {len(train)} training images; use test",
                )
            train, test = train[:-TAIL], train[-TAIL:]
            train_labels, test_labels = train_labels[:-TAIL], train_labels[-TAIL:]
        full = train.shape[1]
        half = (full + 1) // 2
        if self.side not in (0, full, half):
            self._raise_invalid_setting_error(
                "side",
                f"The images of {self.source} have {full} pixels a side, or {half} if "
                f"halved. Use 0, {full} or {half}",
            )
        if self.side == half:
            train, test = (x[:, ::2, ::2].contiguous() for x in (train, test))
        return GreyImagesWithClasses(train, train_labels, test, test_labels)

    def _count_examples_per_environment(self, n_available: int) -> int:
        """Return the number of examples of each training environment."""
        most = n_available // self.environments
        if self.examples == "all":
            wanted = most
        elif self.examples is None:
            wanted = min(_PAPER_EXAMPLES, most)
        else:
            wanted = self.examples
        return check_examples_per_environment(
            "colored", self.source, self.environments, wanted, n_available
        )

    def _assign_binary_labels_to_classes(self, labels: Tensor) -> Tensor:
        """Return the label 0 or 1 that the rule gives each class, [n]."""
        if self.labels == "below-five":
            return (labels < 5).long()
        letters = self.labels == "paper" and are_classes_of_source_letters(self.source)
        if self.labels in LABEL_RULES and not letters:
            return labels % 2
        if letters:
            ones = [ord(letter) - ord("a") for letter in _PAPER_LETTERS]
        else:
            ones = _parse_comma_separated_classes(self.labels)
            known = set(labels.unique().tolist())
            if not known > set(ones):
                self._raise_invalid_setting_error(
                    "labels",
                    f"Name some, but not all, of the classes of {self.source}: "
                    f"{', '.join(map(str, sorted(known)))}",
                )
        return torch.isin(labels, torch.tensor(ones)).long()


def _parse_comma_separated_classes(text: str) -> list[int]:
    """Return the classes of a list such as 1,3,7; none if it is not such a list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return []
    return [int(part) for part in parts]
