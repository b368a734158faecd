"""Data flows one way: a module imports only from the layers below its own."""

import ast
import dataclasses
import graphlib
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TORCH = frozenset(
    {"intervals", "p_values", "records", "registry", "settings", "tasks", "wording"}
)
LAYER_0 = WITHOUT_TORCH | {"environments", "randomness"}
LAYERS_0_1 = LAYER_0 | {"networks", "variational", "likelihoods"}
LAYERS_0_2 = LAYERS_0_1 | {"objectives", "memory"}
LAYERS_0_3 = LAYERS_0_2 | {"training", "early_stopping", "admm"}
LAYERS_0_4 = LAYERS_0_3 | {"learners", "inference", "data"}
LAYERS_0_5 = LAYERS_0_4 | {"evaluation", "model"}
LAYER_6 = {"runs", "report", "estimator", "federated"}
MAY_IMPORT = {
    **dict.fromkeys(LAYER_0, frozenset()),
    "environments": {"tasks"},
    **dict.fromkeys(LAYERS_0_1 - LAYER_0, LAYERS_0_1),
    **dict.fromkeys(LAYERS_0_2 - LAYERS_0_1, LAYERS_0_2),
    "training": LAYERS_0_2,
    "early_stopping": LAYERS_0_2 | {"training"},
    "admm": LAYERS_0_2 | {"training"},
    "learners": LAYERS_0_3,
    "inference": LAYERS_0_3,
    "data": LAYER_0,
    **dict.fromkeys(LAYERS_0_5 - LAYERS_0_4, LAYERS_0_5),
    **dict.fromkeys(LAYER_6, LAYERS_0_5),
    "report": {"intervals", "records", "wording"},
    "paper": LAYERS_0_5 | {"runs", "report"},
    "stress": LAYERS_0_5 | {"runs", "report"},
    "board": LAYERS_0_5 | {"runs", "report"},
    "serving": LAYERS_0_5 | {"report"},
    "cli": LAYERS_0_5 | LAYER_6 | {"paper", "stress", "board", "serving"},
    "__main__": {"cli"},
}
# Files of a folder that its others share, and that no user asks for by name.
SHARED = {
    "learners": {
        "base",
        "features",
        "games",
        "last_layer",
        "linear_models",
        "state_check",
        "rehearsal",
    },
    "data": {
        "base",
        "category_names",
        "cell_errors",
        "coloring",
        "columns",
        "sources",
        "schema",
        "schema_inference",
        "encoded_chunks",
        "rows",
        "batches",
        "periods",
    }
    | {"table_files", "array_files", "image_files", "standard_input"}
    | {"values", "number_formats", "date_formats"}
    | {"downloads", "image_sets", "idx", "shortcut_images"}
    | {"public", "public_tables", "public_downloads", "example_draws"}
    | {
        "encoders",
        "encoder_checksums",
        "encoder_packages",
        "open_sources",
        "features",
        "text_columns",
    },
}

ROOT = Path(__file__).parents[1] / "src" / "cirm"
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def modules(source, package):
    """Full names of all that a source imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: 1 - node.level or None]
                base = ".".join([*kept, base] if base else kept)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def package(path):
    return ".".join(["cirm", *path.relative_to(ROOT).parts[:-1]])


def part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def parts(source, package):
    """The parts of cirm, modules or folders, that a source imports."""
    names = [name.split(".") for name in modules(source, package)]
    used = {name[1] for name in names if name[0] == "cirm" and len(name) > 1}
    return used - {"__version__"}


def forbidden(source, package, here):
    """The parts of cirm that a source of the part `here` imports and may not."""
    return parts(source, package) - MAY_IMPORT[here] - {here}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    assert not forbidden(path.read_text(), package(path), part(path))


def test_no_two_parts_import_each_other():
    graph = {}
    for path in FILES:
        used = parts(path.read_text(), package(path)) - {part(path)}
        graph.setdefault(part(path), set()).update(used)
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    "source",
    [
        "import cirm.evaluation.run",
        "from cirm import training, evaluation",
        "from cirm.evaluation import run",
        "from cirm.evaluation.run import scores",
        "from ..evaluation import run",
        "from .. import evaluation",
        "def late():\n    from cirm.evaluation import run",
    ],
)
def test_an_upward_import_is_seen_in_every_form(source):
    assert forbidden(source, "cirm.learners", "learners") == {"evaluation"}


def test_a_sibling_in_the_same_folder_may_be_imported():
    assert not forbidden("from .base import Learner", "cirm.learners", "learners")


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH))
def test_what_needs_no_torch_needs_only_the_standard_library(name):
    source = (ROOT / f"{name}.py").read_text()
    roots = {module.split(".")[0] for module in modules(source, "cirm")}
    assert roots <= sys.stdlib_module_names


def registered(folder):
    """Modules and classes that a folder's registry names."""
    registry = importlib.import_module(f"cirm.{folder}").REGISTRY
    for key, name in registry.builtin.items():
        module = name.partition(":")[0].rpartition(".")[2] if ":" in name else key
        yield module.replace("-", "_"), registry.load(key)


@pytest.mark.parametrize("folder", ["learners", "data"])
def test_every_file_is_registered(folder):
    files = {
        path.stem for path in (ROOT / folder).glob("*") if path.stem != "__pycache__"
    }
    assert {module for module, _ in registered(folder)} == files - SHARED[folder] - {
        "__init__"
    }


@pytest.mark.parametrize(
    ("folder", "base"), [("learners", "Learner"), ("data", "Dataset")]
)
def test_what_is_registered_is_frozen_and_inherits_from_nothing_registered(
    folder, base
):
    root = getattr(importlib.import_module(f"cirm.{folder}.base"), base)
    for _, held in registered(folder):
        (parent,) = held.__bases__  # public data sets share an abstract one
        assert parent is root or (folder == "data" and inspect.isabstract(parent))
        assert dataclasses.is_dataclass(held)
        assert held.__dataclass_params__.frozen


def loaded_by(module):
    """The modules that a new interpreter holds after an import."""
    code = f"import {module}, json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_importing_the_package_loads_no_other():
    plain = loaded_by("sys")  # what the interpreter's own start-up loads
    assert loaded_by("cirm") - plain - sys.stdlib_module_names == {"cirm"}


def test_importing_the_command_line_loads_nothing_heavy():
    heavy = {"torch", "numpy", "scipy", "sklearn", "pandas", "matplotlib", "PIL"}
    assert not loaded_by("cirm.cli") & heavy
