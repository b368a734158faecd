"""Image files: listed in a fixed order, decoded to one size."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from cirm.data.base import shorten_error_message

# Formats that pillow decodes by itself; for some others it starts programs.
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
IMAGE_SUFFIXES |= {".ppm", ".pgm"}
MOST_PIXELS = 50_000_000  # of a file; a small file may unpack to far more
UNREADABLE = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError),
    *(ArithmeticError, MemoryError, struct.error, zlib.error),
    Image.DecompressionBombError,
)  # what pillow's decoders raise for damaged files


def list_image_files_in_folder(folder: Path) -> list[Path]:
    """Return the images at most three levels below a folder, in alphabetical order.

    Links are followed. Hidden files and folders are ignored, and so is what archives
    made on a Mac contain.
    """
    images: list[tuple[str, ...]] = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        parts = Path(parent).relative_to(folder).parts
        visible = [f for f in folders if f[0] != "." and f != "__MACOSX"]
        folders[:] = visible if len(parts) < 2 else []
        names = [name for name in files if name[0] != "."]
        images += [
            (*parts, name)
            for name in names
            if os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES
        ]
    return [folder.joinpath(*parts) for parts in sorted(images)]


def read_image_as_pixels(path: Path, side: int, n_channels: int) -> NDArray[np.uint8]:
    """Return an image's pixels, [channels, side, side]."""
    where = f"image {str(path)!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about metadata that cameras leave
            with Image.open(path, formats=IMAGE_FORMATS) as image:
                size, mode = image.size, image.mode
                if size[0] * size[1] <= MOST_PIXELS and mode not in ("I", "F"):
                    return _resize_image_to_square(image, side, n_channels)
    except UNREADABLE as error:
        raise ValueError(
            f"{where}: the image cannot be read ({shorten_error_message(error)}). "
            "Replace or remove the file."
        ) from None
    raise ValueError(
        f"{where}: the image has {size[0]} x {size[1]} pixels and the Pillow mode "
        f"{mode}, which cannot be used. Use images of at most {MOST_PIXELS:,} pixels "
        "with 8 or 16 bits each."
    )


def _resize_image_to_square(
    image: Image.Image, side: int, n_channels: int
) -> NDArray[np.uint8]:
    if image.mode.startswith("I;16"):  # pillow would cut off what is above 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = ImageOps.exif_transpose(image).convert("L" if n_channels == 1 else "RGB")
    pixels = np.asarray(image.resize((side, side), Image.Resampling.BILINEAR))
    return pixels.reshape(side, side, n_channels).transpose(2, 0, 1)
