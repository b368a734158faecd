"""Classes that are found by a key, and loaded only when they are used."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

NOUNS = {"learners": "learner", "data": "dataset", "inference": "inference"}
"""What the classes of each package are called in messages."""


def find(package: str, classes: Mapping[str, str], key: str) -> Any:  # noqa: ANN401
    """The class that a key names; the module is named after the key."""
    if key not in classes:
        noun = NOUNS[package.rpartition(".")[2]]
        raise ValueError(f"{noun} must be one of {', '.join(classes)}; got {key!r}")
    return getattr(import_module(f"{package}.{module(key)}"), classes[key])


def description(package_file: str, key: str) -> str:
    """The first line of the module's docstring, read without loading the module."""
    path = Path(package_file).with_name(f"{module(key)}.py")
    if not path.exists():
        path = path.with_suffix("") / "__init__.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.partition("\n")[0]


def module(key: str) -> str:
    """The name of the module that a key stands for."""
    return key.replace("-", "_")
