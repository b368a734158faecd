"""The data sets, by the name the command line uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cirm import registry

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


def get_dataset_class(key: str) -> type[Dataset]:
    """The class of a data set."""
    found: type[Dataset] = registry.find(__name__, DATASETS, key)
    return found


def describe(key: str) -> str:
    """One line about a data set."""
    return registry.description(__file__, key)
