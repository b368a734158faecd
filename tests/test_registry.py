import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from cirm import registry
from cirm.registry import NamedClassRegistry

SHAPES = NamedClassRegistry(
    "shape", "demo.shapes", "email", {"header-value": "x", "mime": "fractions:Fraction"}
)
HEADER = {"header": "Header"}
OFFERED = EntryPoint("money", "statistics:NormalDist", "demo.shapes")
BROKEN = EntryPoint("broken", "no_module:Thing", "demo.shapes")


@pytest.fixture
def installed(monkeypatch):
    """Another package offers two shapes, one of which cannot be imported."""
    offers = {"demo.shapes": [OFFERED, BROKEN]}
    monkeypatch.setattr(
        registry, "list_entry_points", lambda group: offers.get(group, [])
    )


def test_a_builtin_key_names_a_module_or_an_import_path():
    table = NamedClassRegistry("shape", "demo.shapes", "email", HEADER)
    assert table.load("header").__module__ == "email.header"
    assert SHAPES.load("mime").__name__ == "Fraction"


def test_an_alias_loads_the_same_class():
    table = NamedClassRegistry("shape", "demo.shapes", "email", HEADER, {"h": "header"})
    assert table.load("h") is table.load("header")
    assert table.list_keys() == ["header", "h"]


def test_an_entry_point_is_found_listed_and_described(installed):
    assert SHAPES.load("money").__name__ == "NormalDist"
    assert SHAPES.list_keys() == ["header-value", "mime", "money", "broken"]
    assert SHAPES.describe("money") == "Normal distribution of a random variable"
    assert SHAPES.describe("broken") == "Provided by no_module:Thing."
    assert SHAPES.find_package("money") == "statistics"
    assert SHAPES.find_package("mime") == ""


def test_a_builtin_key_goes_before_an_entry_point_of_the_same_name(monkeypatch):
    other = EntryPoint("mime", "statistics:NormalDist", "demo.shapes")
    monkeypatch.setattr(registry, "list_entry_points", lambda group: [other])
    assert SHAPES.load("mime").__name__ == "Fraction"


def test_an_import_path_is_accepted_also_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_shapes_here.py").write_text("class Mine: pass\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert SHAPES.load("my_shapes_here:Mine").__name__ == "Mine"
    assert sys.path == before
    with pytest.raises(ValueError, match="There is no shape 'my_shapes_here:Mine'"):
        SHAPES.load("my_shapes_here:Mine", allow_import_paths=False)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "nope",
            r"^There is no shape 'nope'\. Choose one of header-value, mime",
        ),
        (
            "broken",
            r"^The shape 'broken', of 'no_module:Thing', cannot be imported .",
        ),
        (
            "decimal:Nothing",
            r"^The shape 'decimal:Nothing' cannot be imported .",
        ),
        (
            "no_module:Thing",
            "cannot be imported .ModuleNotFoundError: No module named 'no_module'",
        ),
        (":Thing", r"is not an import path\. Write it as package"),
    ],
)
def test_what_cannot_be_loaded_is_explained(installed, key, message):
    with pytest.raises(ValueError, match=message):
        SHAPES.load(key)


def test_a_description_is_read_without_loading_the_module():
    code = (
        "import sys; from cirm.learners import summarise_learner; "
        "print(summarise_learner('erm')); assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "risk" in done.stdout
