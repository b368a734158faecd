"""Data sets, by the key that the command line uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cirm.registry import NamedClassRegistry

if TYPE_CHECKING:
    from cirm.data.base import Dataset

DATASETS = {
    "colored": "cirm.data.colored:Colored",
    "scm": "cirm.data.scm:SCM",
    "shortcuts": "cirm.data.shortcuts:Shortcuts",
    "planted": "cirm.data.planted:PlantedShortcutTable",
    "rotated": "cirm.data.rotated:Rotated",
    "pacs": "cirm.data.pacs:Pacs",
    "gas-drift": "cirm.data.gas_drift:GasDrift",
    "gas-turbine": "cirm.data.gas_turbine:GasTurbine",
    "brain-age": "cirm.data.brain_age:BrainAge",
    "gusto": "cirm.data.gusto:Gusto",
    "breast-cancer": "cirm.data.breast_cancer:BreastCancer",
    "covertype": "cirm.data.covertype:Covertype",
    "table": "cirm.data.user_data:Table",
    "arrays": "cirm.data.user_data:Arrays",
    "images": "cirm.data.user_data:ImageFolder",
}
"""Import path of the class by key."""

PUBLIC = (
    *("pacs", "gas-drift", "gas-turbine", "brain-age", "gusto", "breast-cancer"),
    "covertype",
)
"""Data sets that `cirm data import` and `cirm data fetch` put into the cache."""

REGISTRY = NamedClassRegistry("dataset", "cirm.datasets", __name__, DATASETS)
"""The data sets here and those that installed packages offer."""


def get_dataset_class(key: str) -> type[Dataset]:
    """Return the class of a data set.

    Args:
        key: A built-in key, the name of an entry point in the group `cirm.datasets`,
            or an import path such as `package.module:Class`.

    Raises:
        ValueError: If there is no such data set.

    Example:
        >>> get_dataset_class("scm").__name__
        'SCM'
    """
    cls: type[Dataset] = REGISTRY.load(key)
    return cls


def create_dataset(
    dataset: str | Dataset, settings: Mapping[str, Any] | None = None
) -> Dataset:
    """Return a data set with its settings; an instance is returned unchanged.

    Example:
        >>> create_dataset("scm", {"dimension": 4}).dimension
        4
    """
    if isinstance(dataset, str):
        return get_dataset_class(dataset)(**(settings or {}))
    if settings:
        raise ValueError(
            f"dataset: settings {', '.join(settings)} cannot be changed on a data set "
            "that has already been created. Pass them to its constructor instead."
        )
    return dataset
