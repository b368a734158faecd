"""The user's own images: a folder tree environment/class/image.png."""

from __future__ import annotations

import struct
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from cirm.data import supplied
from cirm.data.base import Dataset
from cirm.environments import Environment, Problem, Task

# Formats that pillow decodes by itself; for some others it starts programs.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SUFFIXES |= {".ppm", ".pgm"}
MOST_PIXELS = 50_000_000  # of a file; a small file may unpack to far more
UNREADABLE = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError),
    *(ArithmeticError, MemoryError, struct.error, zlib.error),
    Image.DecompressionBombError,
)  # what pillow's decoders raise for damaged files


@dataclass(frozen=True, eq=False)
class Pictures:
    """Inputs [replica, n, channels, side, side], 0 to 1, out of bytes all share."""

    pixels: Tensor
    replicas: int

    @property
    def shape(self) -> tuple[int, ...]:
        """[replica, n, channels, side, side]."""
        return (self.replicas, *self.pixels.shape)

    def take(self, rows: Tensor) -> Tensor:
        """Inputs [replica, m, channels, side, side] of the rows [replica, m]."""
        return self.pixels[rows].float() / 255


@dataclass(frozen=True)
class ImageFolder(Dataset):
    """Images in a folder per environment, in these a folder per class.

    Images are turned as their camera noted, stretched to `side` x `side`, and made
    grey (`channels` 1) or coloured (3), without transparency; sixteen bits become
    eight. They stay bytes and become floats as they are taken. Environments, classes
    and images come in alphabetical order; hidden files and files that are no images
    are left out, links are followed. `test` names the environments to hold out,
    separated by commas: left empty the last one, "none" for none. Draws are the same
    for every seed.
    """

    path: str = ""
    side: int = 32
    channels: int = 3
    test: str = ""

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f"images: side must be 1 or more; got {self.side}")
        if self.channels not in (1, 3):
            raise ValueError(f"images: channels must be 1 or 3; got {self.channels}")

    def draw(self, seeds: tuple[int, ...]) -> Problem:
        """Environments [replica, n, channels, side, side], alike for all seeds."""
        found = listing(self.path)
        task = _task(found, self.path)
        environments = []
        for name, classes in found.items():
            paths = [path for images in classes.values() for path in images]
            pixels = np.empty(
                (len(paths), self.channels, self.side, self.side), np.uint8
            )
            for row, path in enumerate(paths):
                pixels[row] = decoded(path, self.side, self.channels)
            targets = torch.tensor(
                [task.classes.index(c) for c, images in classes.items() for _ in images]
            ).expand(len(seeds), -1)
            inputs = Pictures(torch.from_numpy(pixels), len(seeds))
            environments.append(Environment(name, inputs, targets, task, True))
        return supplied.problem(environments, self.test, "images")

    def files(self) -> tuple[Path, ...]:
        """Return the images below `path`."""
        classes = [c for e in _folders(Path(self.path)) for c in _folders(e)]
        return tuple(image for folder in classes for image in _images(folder))

    def describe(self) -> str:
        """The classes, and the environments with their numbers of images."""
        found = listing(self.path)
        counts = {name: sum(map(len, found[name].values())) for name in found}
        unseen = supplied.held_out(list(found), self.test, "images")
        features = (self.channels, self.side, self.side)
        return supplied.described(_task(found, self.path), features, counts, unseen)


def listing(path: str) -> dict[str, dict[str, list[Path]]]:
    """The images of each class of each environment, all in alphabetical order."""
    root = Path(path)
    if not path or not root.exists():
        raise FileNotFoundError(f"images: path must be a folder; got {path!r}")
    if not root.is_dir():
        raise ValueError(f"images: path must be a folder; got the file {path!r}")
    found = {
        folder.name: {c.name: _images(c) for c in _folders(folder)}
        for folder in _folders(root)
    }
    for name, classes in found.items():
        for what, images in classes.items():
            if not images:
                raise ValueError(
                    f"folder {str(root / name / what)!r}: it must hold images; got none"
                )
    if not found or not all(found.values()):
        lacking = next((name for name in found if not found[name]), "")
        raise ValueError(
            f"folder {str(root / lacking)!r}: images must be in folders "
            f"environment/class below {path!r}; got no such folder"
        )
    return found


def decoded(path: Path, side: int, channels: int) -> NDArray[np.uint8]:
    """An image's pixels, [channels, side, side]."""
    where = f"image {str(path)!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of notes that cameras leave in files
            with Image.open(path, formats=FORMATS) as image:
                size, mode = image.size, image.mode
                if size[0] * size[1] <= MOST_PIXELS and mode not in ("I", "F"):
                    return _resized(image, side, channels)
    except UNREADABLE as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{where}: it must be readable; got {said}") from None
    raise ValueError(
        f"{where}: it must have at most {MOST_PIXELS:,} pixels of 8 or 16 bits; "
        f"got {size[0]} x {size[1]} of mode {mode}"
    )


def _resized(image: Image.Image, side: int, channels: int) -> NDArray[np.uint8]:
    if image.mode.startswith("I;16"):  # pillow would cut off what is above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))
    return pixels.reshape(side, side, channels).transpose(2, 0, 1)


def _task(found: dict[str, dict[str, list[Path]]], path: str) -> Task:
    classes = sorted({name for classes in found.values() for name in classes})
    if len(classes) < 2:
        raise ValueError(
            f"folder {path!r}: it must hold several classes; got only {classes[0]!r}"
        )
    return Task(tuple(classes))


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and path.name[0] != "." and path.name != "__MACOSX"
    )


def _images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and path.name[0] != "."
    )
