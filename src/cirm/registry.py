"""Classes that users choose by a key, loaded only when they are used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


@dataclass(frozen=True)
class NamedClassRegistry:
    """The built-in choices of one kind, and those that installed packages offer.

    A key is looked up in the built-in table first and then among the entry points of
    `group`. An import path such as `package.module:Class` is accepted as well.

    Attributes:
        noun: What a choice is called in messages, such as "learner".
        group: The entry point group, such as "cirm.learners".
        package: The package that holds the built-in modules.
        builtin: Key to class name, in the module of `package` that is named after the
            key, or key to `package.module:Class`.
        aliases: Further keys of built-in choices.

    Example:
        >>> builtin = {"x": "decimal:Decimal"}
        >>> numbers = NamedClassRegistry("number", "demo", "fractions", builtin)
        >>> numbers.load("x").__name__, numbers.load("fractions:Fraction").__name__
        ('Decimal', 'Fraction')
    """

    noun: str
    group: str
    package: str
    builtin: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def load(self, key: str, allow_import_paths: bool = True) -> Any:  # noqa: ANN401
        """Import and return what a key stands for.

        Args:
            key: A built-in key, the name of an entry point, or `package.module:Class`.
            allow_import_paths: Whether an import path is accepted. Switch it off for
                keys that come from a file, which may name any module.

        Raises:
            ValueError: If the key is unknown or its module cannot be imported.
        """
        if path := self._get_builtin_import_path(key):
            return _import_object_by_path(path)
        entry = self._list_entry_points().get(key)
        if entry is None and not (allow_import_paths and ":" in key):
            path = ", or give an import path such as package.module:Class"
            raise ValueError(
                f"There is no {self.noun} {key!r}. Choose one of "
                f"{', '.join(self.list_keys())}{path if allow_import_paths else ''}."
            )
        try:
            return (
                entry.load() if entry else _import_object_by_path(key, from_folder=True)
            )
        except Exception as error:  # whatever code of others raises on import
            source = f", of {entry.value!r}," if entry else ""
            raise ValueError(
                f"The {self.noun} {key!r}{source} cannot be imported "
                f"({type(error).__name__}: {error}). Check the name and that its "
                "package is installed."
            ) from error

    def find_key(self, cls: type) -> str:
        """Return the key of a class: built-in, of an entry point, or an import path."""
        for key, path in self.builtin.items():
            if path.rpartition(":")[2] == cls.__name__ and self.load(key) is cls:
                return key
        for key, entry in self._list_entry_points().items():
            if entry.attr == cls.__name__ and self.load(key) is cls:
                return key
        return f"{cls.__module__}:{cls.__qualname__}"

    def list_keys(self) -> list[str]:
        """Return every key: the built-in ones, their aliases, and entry points."""
        return list({**self.builtin, **self.aliases, **self._list_entry_points()})

    def describe(self, key: str) -> str:
        """Return the first line of the docstring of the key's module or class.

        A module that is named after its key describes the key; other modules may hold
        several classes. The source is read, not imported, so that a listing is fast.
        """
        entry = self._list_entry_points().get(key)
        path = self._get_builtin_import_path(key) or (entry.value if entry else key)
        module, _, name = path.partition(":")
        try:
            spec = find_spec(module)
            tree = ast.parse(Path(spec.origin or "").read_text("utf-8") if spec else "")
        except (ImportError, ValueError, OSError):
            tree = ast.parse("")
        docstring = ast.get_docstring(tree)
        if ":" in self.builtin.get(key, ":"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    docstring = ast.get_docstring(node) or docstring
        return (docstring or f"Provided by {path}.").partition("\n")[0]

    def find_package(self, key: str) -> str:
        """Return the installed package that offers a key; "" for a built-in key."""
        entry = self._list_entry_points().get(key)
        is_builtin = key in self.builtin or key in self.aliases
        if is_builtin or entry is None:
            return ""
        return entry.dist.name if entry.dist else entry.module.partition(".")[0]

    def _get_builtin_import_path(self, key: str) -> str:
        key = self.aliases.get(key, key)
        name = self.builtin.get(key, "")
        if not name or ":" in name:
            return name
        return f"{self.package}.{key.replace('-', '_')}:{name}"

    def _list_entry_points(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in list_entry_points(group=self.group)}


def list_entry_points(group: str) -> EntryPoints:
    """Return what installed packages offer under a group."""
    from importlib import metadata  # takes 30 ms, which `cirm --help` does not need

    return metadata.entry_points(group=group)


def _import_object_by_path(path: str, from_folder: bool = False) -> Any:  # noqa: ANN401
    """Import `package.module:Name`, if asked also from the current folder."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ImportError(
            f"{path!r} is not an import path. Write it as package.module:Class"
        )
    # Commands have their own folder on the path, not the one they are called in.
    here = str(Path.cwd())
    added = from_folder and here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        return getattr(import_module(module), name)
    finally:
        if added:
            sys.path.remove(here)
