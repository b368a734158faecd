"""The data sets, by the name the command line uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cirm.registry import Registry

if TYPE_CHECKING:
    from cirm.data.base import Dataset

DATASETS = {
    "colored": "Colored",
    "scm": "SCM",
    "table": "Table",
    "arrays": "Arrays",
    "images": "ImageFolder",
}
"""Class by key; the module is named after the key."""

REGISTRY = Registry("dataset", "cirm.datasets", __name__, DATASETS)
"""The data sets here and those that installed packages offer."""


def get_dataset_class(key: str) -> type[Dataset]:
    """The class of a data set."""
    cls: type[Dataset] = REGISTRY.load(key)
    return cls


def describe(key: str) -> str:
    """One line about a data set."""
    return REGISTRY.describe(key)
