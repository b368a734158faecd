"""Downloads of public data sets, converted and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from cirm.data.downloads import CreateProgressBar, download_file, read_files_from_zip
from cirm.data.image_sets import get_cached_image_folder, open_temporary_cache_folder
from cirm.data.public import (
    PublicDatasetOrigin,
    describe_how_to_get_dataset,
    get_public_dataset_class,
    import_public_dataset,
)

SCIKIT_LEARN = "scikit-learn"  # in place of an address: it downloads by itself


def download_public_dataset(
    name: str,
    create_progress_bar: CreateProgressBar | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[Path, dict[str, int]]:
    """Download a public data set into the cache, unless it or a part of it is there."""
    dataset, home = get_public_dataset_class(name), get_cached_image_folder(name)
    origin = dataset.origin
    if home.is_dir():
        return home, dataset().count_examples_by_environment()
    if not origin.address:
        raise FileNotFoundError(
            f"{name}: cirm cannot download this data set. "
            f"{describe_how_to_get_dataset(origin)}"
        )
    report(f"{name}: trying {origin.address}")
    with open_temporary_cache_folder() as work:
        try:
            _download_original_files(origin, work, create_progress_bar)
            return import_public_dataset(name, work)
        except (ConnectionError, ValueError) as error:
            raise FileNotFoundError(
                f"{name}: the download failed ({error}). {origin.advice}"
            ) from None


def _download_original_files(
    origin: PublicDatasetOrigin,
    work: Path,
    create_progress_bar: CreateProgressBar | None,
) -> None:
    """Write the original files of a data set into a folder."""
    if origin.address == SCIKIT_LEARN:
        return _download_covertype(work)
    name = origin.address.rpartition("/")[2]
    path = download_file(origin.address, work / name, create_progress_bar)
    if not origin.members:
        return None
    contents = read_files_from_zip(path, origin.members)
    absent = [member for member in origin.members if member not in contents]
    if absent:
        raise ValueError(f"the file {absent[0]} is missing from the archive")
    for member, content in contents.items():
        (work / member).write_bytes(content)
    return None


def _download_covertype(work: Path) -> None:
    """Write covtype.data as scikit-learn downloads it, with its check by SHA-256."""
    from sklearn.datasets import fetch_covtype

    try:
        data = fetch_covtype(data_home=work / "scikit-learn", random_state=0)
    except OSError as error:
        raise ConnectionError(f"the server could not be reached: {error}") from None
    rows = np.column_stack([data.data, data.target])
    np.savetxt(work / "covtype.data", rows, fmt="%d", delimiter=",")
