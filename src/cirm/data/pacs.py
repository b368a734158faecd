"""PACS: photos, paintings, cartoons and sketches of seven kinds of things."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cirm.data.encoders import open_frozen_encoder
from cirm.data.features import encode_image_files_as_features
from cirm.data.image_files import list_image_files_in_folder, read_image_as_pixels
from cirm.data.open_sources import (
    SIDE,
    compute_encoder_features_of_sources,
    list_encoder_checksums,
    open_image_folder_source,
)
from cirm.data.public import (
    PublicDataset,
    PublicDatasetOrigin,
    list_names_sizes_and_times_of_files,
)
from cirm.data.schema_inference import ReadOptions
from cirm.data.sources import ArraySource, DataSource, Progress
from cirm.data.user_data import prepare_environments_of_sources
from cirm.environments import Problem

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
ROOTS = ("", "pacs", "PACS", "kfold", "PACS/kfold")  # where archives keep the domains
PIXELS = ".pixels"  # a hidden folder in the cache: images that were decoded once


@dataclass(frozen=True)
class Pacs(PublicDataset):
    """Photos, art paintings, cartoons and sketches of seven classes.

    Da Li et al., "Deeper, Broader and Artier Domain Generalization", 2017. 9,991
    images. An environment is a kind of picture; the sketches are unseen unless `test`
    names another. Pixels alone give low scores: use an encoder, as published scores
    use pretrained networks. Every seed gets the same images unless `examples` is set.
    Images in the cache are decoded once for each size.

    Args:
        path: A folder with photo, art_painting, cartoon and sketch in it, and in each
            of them a folder for each class; empty for the cache.
        train: The environments to train on, in order of arrival; empty for all that
            are not held out, in the order photo, art_painting, cartoon, sketch.
        test: The environments to hold out, separated by commas; empty for sketch.
        examples: Images of each training environment, drawn for each seed; None for
            all.
        fraction: Largest part of a training environment that is drawn for each seed.
        side: The width and height in pixels to which images are resized; None for 32,
            or for what the encoder was made for.
        channels: 1 for grey images, 3 for coloured ones.
        encoder: A frozen encoder that turns images into features, such as
            efficientnet-lite0; empty for pixels.
    """

    has_images: ClassVar[bool] = True

    held_out = "sketch"
    origin = PublicDatasetOrigin(
        "pacs",
        authors="Li and others 2017",
        licence="for research",
        environment="kind of picture: photo, art_painting, cartoon or sketch",
        rows={"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929},
        advice=(
            "PACS is on Google Drive, from which cirm cannot download it. Follow the "
            "link to PACS on https://domaingeneralization.github.io, and unpack the "
            "folders photo, art_painting, cartoon and sketch into one folder. Then "
            "run `cirm data import pacs FOLDER` with that folder."
        ),
    )

    side: int | None = None
    channels: int = 3
    encoder: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side is not None and self.side < 1:
            self._raise_invalid_setting_error("side", "Use 1 or more")
        if self.channels not in (1, 3):
            self._raise_invalid_setting_error("channels", "Use 1 or 3")

    @classmethod
    def convert_original_files(cls, folder: Path, into: Path) -> dict[str, int]:
        """Check that every image can be read, and copy them."""
        root = find_folder_of_domains(folder)
        rows = {}
        for domain in list_domain_folders(root):
            files = list_domain_images(root, domain)
            for file in files:
                read_image_as_pixels(file, 8, 3)
                copy = into / file.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)
            rows[domain] = len(files)
        return rows

    def count_examples_by_environment(self) -> dict[str, int]:
        """Return the number of images of each domain in the folder."""
        root = find_folder_of_domains(self.folder)
        return {d: len(list_domain_images(root, d)) for d in list_domain_folders(root)}

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return images [n, channels, side, side] of each environment."""
        files = self.list_local_input_files()
        problem = _read_environments_of_pacs(
            replace(self, examples=None, fraction=1.0),
            find_folder_of_domains(self.folder),
            list_names_sizes_and_times_of_files(files),
            len(seeds),
        )
        return self.draw_examples_for_each_seed(problem, seeds)

    def read_environments(self, root: Path, n_replicas: int) -> Problem:
        """Return all images of each environment."""
        train, test = self.split_names_into_training_and_unseen(
            list_domain_folders(root)
        )
        return prepare_environments_of_sources(
            [self._open_images_of_domain(root, domain) for domain in (*train, *test)],
            ReadOptions(classes=CLASSES, task="classification"),
            ",".join(test) or "none",
            self.origin.name,
            n_replicas,
        ).problem

    def list_local_input_files(self) -> tuple[Path, ...]:
        """Return the images below the folder."""
        return tuple(list_image_files_in_folder(find_folder_of_domains(self.folder)))

    def list_setting_checksums(self) -> dict[str, str]:
        """Return the checksum of the encoder's weights."""
        return list_encoder_checksums(self.encoder, "images", self.side)

    def fill_feature_cache(self, progress: Progress) -> None:
        """Compute the features of all images, if there is an encoder."""
        if self.encoder:
            folder = find_folder_of_domains(self.folder)
            source = open_image_folder_source(
                folder, encoder=self.encoder, side=self.side
            )
            compute_encoder_features_of_sources([source], progress)

    def _open_images_of_domain(self, root: Path, domain: str) -> DataSource:
        """Return the images of one domain, or their features, with their classes."""
        files = list_domain_images(root, domain)
        classes = [file.parent.name for file in files]
        frame = pd.DataFrame({"class": classes, "environment": domain})
        known = {"target": "class", "environment": "environment"}
        if self.encoder:
            encoder = open_frozen_encoder(self.encoder, "images", self.side or 0)
            inputs: NDArray[Any] = encode_image_files_as_features(files, encoder)
        else:
            inputs = self._read_pixels_of_images(root, domain, files)
        return ArraySource(inputs, frame, domain, **known)

    def _read_pixels_of_images(
        self, root: Path, domain: str, files: Sequence[Path]
    ) -> NDArray[Any]:
        """Return the decoded images [n, channels, side, side], kept in the cache."""
        side = self.side or SIDE
        store = root / PIXELS / f"{domain}-{side}-{self.channels}.npy"
        if not self.path and store.is_file():
            pixels: NDArray[Any] = np.load(store, allow_pickle=False)
            if len(pixels) == len(files):
                return pixels
        pixels = np.stack([read_image_as_pixels(f, side, self.channels) for f in files])
        if not self.path:
            write_array_atomically(store, pixels)
        return pixels


@lru_cache(maxsize=2)  # 50 MB of features each
def _read_environments_of_pacs(
    dataset: Pacs,
    root: Path,
    file_times_and_sizes: tuple[tuple[str, int, int], ...],
    n_replicas: int,
) -> Problem:
    """Return all images or features; read anew when a file has changed."""
    return dataset.read_environments(root, n_replicas)


def find_folder_of_domains(folder: Path) -> Path:
    """Return the folder that holds the domains: this one, or one in it."""
    for root in ROOTS:
        if any((folder / root / domain).is_dir() for domain in DOMAINS):
            return folder / root
    raise FileNotFoundError(
        f"{folder}: this folder contains none of the folders {', '.join(DOMAINS)}. "
        f"{Pacs.origin.advice}"
    )


def list_domain_folders(root: Path) -> list[str]:
    """Return the domains that a folder has, in the usual order."""
    return [domain for domain in DOMAINS if (root / domain).is_dir()]


def list_domain_images(root: Path, domain: str) -> list[Path]:
    """Return the images of a domain, sorted by class and name."""
    files = [
        file
        for name in CLASSES
        for file in list_image_files_in_folder(root / domain / name)
        if file.parent.name == name
    ]
    if not files:
        raise ValueError(
            f"{root / domain}: this folder contains no images in folders named "
            f"{', '.join(CLASSES)}. Use the original folders of PACS."
        )
    return files


def write_array_atomically(path: Path, array: NDArray[Any]) -> None:
    """Write an array so that readers see all of it or nothing."""
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        with part.open("wb") as file:
            np.save(file, array)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
