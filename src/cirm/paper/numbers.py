"""The numbers of the paper's tables, as printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from cirm.paper.trials import PublishedValue


@cache
def table(name: str) -> Any:  # noqa: ANN401  the tables differ in shape
    """A table of paper_tables.json."""
    text = files(__package__).joinpath("paper_tables.json").read_text("utf-8")
    return json.loads(text)[name]


def figure(printed: Mapping[str, float] | None) -> PublishedValue | None:
    """A printed mean and standard deviation."""
    return None if printed is None else PublishedValue(printed["mean"], printed["std"])
