"""Coloured images: a colour that predicts the label, until the unseen place.

Francesco Alesiani, Shujian Yu, Mathias Niepert, "Continual Invariant Risk
Minimization", 2023, section 4.1, after Martin Arjovsky et al., "Invariant Risk
Minimization", 2019. The class of an image gives a clean label 0 or 1; the label y is
the clean one, flipped with probability `label_flip`; the colour z is y, flipped with
the probability of the environment. Inputs are [2, side, side] in [0, 1]: channel 0 is
the paper's green, for z = 0, and channel 1 its red, for z = 1.

- `b01`, the figure is coloured: channel z holds the image, the other channel nothing.
- `b11`, the background is coloured. The paper does not say how the figure is drawn;
  here it is laid, as bright as in the source and in both channels, over a background
  of full colour. So channel z is one everywhere and the other one holds the image.
- `gray`, the colour is removed: both channels hold half of the image, the mean of the
  two colourings of `b01`. Labels and colours are drawn as for the other schemes.

A seed has its own images, label flips and colour flips. The images of the training
environments are disjoint parts of a random order of the training images. Every unseen
environment holds the test images with the same labels, those of the sweep every few of
them, and an example whose colour is flipped at one place of the sweep stays flipped at
every later place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import Tensor

from cirm.data import downloads, idx
from cirm.data.base import Dataset
from cirm.data.image_catalog import SOURCES
from cirm.environments import Environment, Problem, Task
from cirm.randomness import Randomness

RULES = ("paper", "parity", "below-five")
TAIL = 10000  # the original IRM code tests on so many of the training file's last
FRESH, LEAST = 1000, 50  # most and fewest spare examples of an environment to offer
_USUAL = 1000  # examples of an environment in the paper
_PAPER_LETTERS = "bdfhjlnprtwxz"  # those that count as 1
_FIGURE = {
    "b01": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
    "b11": torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
    "gray": torch.tensor([[0.5, 0.5], [0.5, 0.5]]),
}  # part of the image in each channel, [colour, channel]


@dataclass(frozen=True, eq=False)
class ColoredImages:
    """Inputs [replica, n, 2, side, side] out of shared grey bytes, made when asked for.

    `grey` is [images, side, side]; `rows` says which image an example shows and
    `colors` its colour, 0 or 1, both [replica, n].
    """

    grey: Tensor
    rows: Tensor
    colors: Tensor
    scheme: str

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, 2, side, side]."""
        return (*self.rows.shape, 2, *self.grey.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [replica, m, 2, side, side] of the rows [replica, m]."""
        images = self.rows.gather(1, rows)
        colors = self.colors.gather(1, rows).long()
        grey = self.grey.index_select(0, images.flatten()).float()
        grey = grey.view(*rows.shape, 1, *self.grey.shape[1:])
        figure = _FIGURE[self.scheme] / 255
        inputs = grey * figure[colors][..., None, None]
        if self.scheme == "b11":
            inputs += torch.eye(2)[colors][..., None, None]
        return inputs


@dataclass(frozen=True)
class Colored(Dataset):
    """Environments that differ in how often the colour contradicts the label.

    `source`: digits (in scikit-learn), mnist, fashion-mnist, kmnist, emnist-letters,
    or a folder with four IDX files. `examples` of each environment: a number, `all`
    for an even share of the source, or none for 1,000 or, if the source has fewer, an
    even share. `flips` of the colour, one per environment: if empty, evenly from 0.2
    down to 0.1, and 0.1 for a single environment, as in the paper's table 4. `labels`:
    the paper's rule for the source (its list for EMNIST's letters, else parity), parity
    (odd classes are 1), below-five (classes 0 to 4 are 1), or the classes that are 1,
    such as 1,3,7. `side` of the images: 0 for all pixels, or the full or half number;
    half takes every second pixel. `sweep`: colour flips of further unseen places, and
    about how many test images, evenly taken, each holds (0: all). `test_from`: the
    test file, or train-tail, the last 10,000 training images, which are then not
    trained on.
    """

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

    def __post_init__(self) -> None:
        self._check_choices()
        if self.environments < 1:
            self._refuse("environments must be one or more", self.environments)
        if self.sweep_examples < 0:
            self._refuse("sweep_examples must not be negative", self.sweep_examples)
        if isinstance(self.examples, int) and self.examples < 1:
            self._refuse("examples must be one or more", self.examples)
        if self.flips and len(self.flips) != self.environments:
            self._refuse(
                f"flips must be one per environment, {self.environments}, or none",
                len(self.flips),
            )
        for name in ("label_flip", "test_flip", "flips", "sweep"):
            value = getattr(self, name)
            for flip in value if isinstance(value, tuple) else (value,):
                if not 0 <= flip <= 1:
                    self._refuse(f"{name} must be from 0 to 1", flip)
        if len(set(self.sweep)) < len(self.sweep):
            self._refuse("sweep must not repeat a flip", list(self.sweep))

    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """Environments of [replica, n, 2, side, side], drawn anew for each seed."""
        images = self._images()
        randomness = Randomness(tuple(seeds)).at("colored")
        test, *sweep = self._unseen(images, randomness.at("test"))
        share = self._share(len(images.train_labels))
        spare = len(images.train_labels) // self.environments - share
        at = randomness.at("train")
        return Problem(
            train=self._train(images, at, share),
            test=(test,),
            sweep=tuple(zip(self.sweep, sweep, strict=True)),
            fresh=self._train(images, at, min(spare, FRESH), share, "fresh")
            if spare >= LEAST
            else (),
        )

    def files(self) -> tuple[Path, ...]:
        """Return the IDX files, if `source` is a folder of the user's."""
        if self.source == "digits" or self.source in SOURCES:
            return ()
        return idx.list_files(Path(self.source).expanduser())

    def color_flips(self) -> tuple[float, ...]:
        """The colour flip of each training environment, in order of arrival."""
        if self.flips:
            return self.flips
        if self.environments == 1:
            return (0.1,)
        step = 0.1 / (self.environments - 1)
        return tuple(round(0.2 - step * i, 10) for i in range(self.environments))

    def _train(
        self,
        images: downloads.Images,
        at: Randomness,
        share: int,
        past: int = 0,
        *part: str,
    ) -> tuple[Environment, ...]:
        """Environments of `share` images each, beyond those of `past` each."""
        order = at.at("images").permutation(len(images.train_labels))
        clean = self._clean(images.train_labels)
        environments = []
        for i, flip in enumerate(self.color_flips()):
            first = self.environments * past + i * share
            rows = order[:, first : first + share].clone()
            targets = self._noisy(clean[rows], at.at(i, "label", *part))
            chances = at.at(i, "colour", *part).uniform(share)
            environments.append(
                self._environment(
                    f"train-{i + 1}", images.train_images, rows, targets, chances < flip
                )
            )
        return tuple(environments)

    def _unseen(self, images: downloads.Images, at: Randomness) -> list[Environment]:
        """The test environment, then those of the sweep."""
        count = len(images.test_labels)
        rows = torch.arange(count).expand(len(at.seeds), -1)
        targets = self._noisy(self._clean(images.test_labels)[rows], at.at("label"))
        chances = at.at("colour").uniform(count)
        every = max(1, count // self.sweep_examples) if self.sweep_examples else 1
        places = [("test", self.test_flip, 1)]
        places += [(f"sweep-{flip:g}", flip, every) for flip in self.sweep]
        return [
            self._environment(
                name,
                images.test_images,
                rows[:, ::step],
                targets[:, ::step],
                chances[:, ::step] < flip,
            )
            for name, flip, step in places
        ]

    def _environment(
        self, name: str, grey: Tensor, rows: Tensor, targets: Tensor, flipped: Tensor
    ) -> Environment:
        colors = (targets ^ flipped.long()).to(torch.uint8)
        inputs = ColoredImages(grey, rows, colors, self.scheme)
        return Environment(
            name, inputs, targets, Task.classification(2), replicated=True
        )

    def _noisy(self, clean: Tensor, at: Randomness) -> Tensor:
        """Labels [replica, n], flipped with the promised probability."""
        return clean ^ (at.uniform(clean.shape[1]) < self.label_flip).long()

    def _images(self) -> downloads.Images:
        """The source's images at the wanted size, split into training and test."""
        train, train_labels, test, test_labels = downloads.load(self.source)
        if self.test_from == "train-tail":
            if len(train) <= TAIL:
                self._refuse(
                    f"test_from=train-tail needs over {TAIL} training images",
                    f"{len(train)} in {self.source}",
                )
            train, test = train[:-TAIL], train[-TAIL:]
            train_labels, test_labels = train_labels[:-TAIL], train_labels[-TAIL:]
        full = train.shape[1]
        half = (full + 1) // 2
        if self.side not in (0, full, half):
            self._refuse(f"side must be 0, {full} or {half} here", self.side)
        if self.side == half:
            train, test = (x[:, ::2, ::2].contiguous() for x in (train, test))
        return downloads.Images(train, train_labels, test, test_labels)

    def _share(self, available: int) -> int:
        """Number of examples of each training environment."""
        most = available // self.environments
        if self.examples == "all":
            wanted = most
        elif self.examples is None:
            wanted = min(_USUAL, most)
        else:
            wanted = self.examples
        if not 1 <= wanted <= most:
            self._refuse(
                f"{self.environments} environments must fit into the {available} "
                f"training images of {self.source}, {most} examples each at most",
                max(wanted, 1),
            )
        return wanted

    def _clean(self, labels: Tensor) -> Tensor:
        """The label 0 or 1 that the rule gives each class, [n]."""
        if self.labels == "below-five":
            return (labels < 5).long()
        letters = self.labels == "paper" and downloads.holds_letters(self.source)
        if self.labels in RULES and not letters:
            return labels % 2
        if letters:
            ones = [ord(letter) - ord("a") for letter in _PAPER_LETTERS]
        else:
            ones = _listed(self.labels)
            known = set(labels.unique().tolist())
            if not known > set(ones):
                self._refuse(
                    f"labels must name some classes of {self.source}, not all, out of "
                    f"{sorted(known)}",
                    self.labels,
                )
        return torch.isin(labels, torch.tensor(ones)).long()

    def _check_choices(self) -> None:
        for name, choices in (
            ("scheme", tuple(_FIGURE)),
            ("test_from", ("test", "train-tail")),
        ):
            if getattr(self, name) not in choices:
                self._refuse(
                    f"{name} must be one of {', '.join(choices)}", getattr(self, name)
                )
        if isinstance(self.examples, str) and self.examples != "all":
            self._refuse("examples must be a number or all", self.examples)
        if self.labels not in RULES and not _listed(self.labels):
            self._refuse(
                f"labels must be one of {', '.join(RULES)}, or classes such as 1,3,7",
                self.labels,
            )

    def _refuse(self, must: str, got: object) -> NoReturn:
        raise ValueError(f"colored: {must}; got {got}")


def _listed(text: str) -> list[int]:
    """The classes of a list such as 1,3,7; none if it is not such a list."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return []
    return [int(part) for part in parts]
