"""Another installed package offers a learner, a data set and a selection rule."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples" / "second_package"
QUICK = ["--set", "epochs=2", "--set", "hidden=4"]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that the package is installed into."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("second")
    # Builds write into the source, so that a copy is installed.
    source = shutil.copytree(PACKAGE, folder / "source")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    options += ["--target", str(folder / "site")]
    pip = [sys.executable, "-m", "pip", "install"]
    subprocess.run([*pip, *options, str(source)], check=True)
    return folder / "site"


@pytest.fixture
def cirm(installed, tmp_path):
    """Runs the command line in a new folder, with or without the package."""

    def run(*words, package=True, status=0):
        path = [str(ROOT / "src"), *([str(installed)] if package else [])]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "200"
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "cirm", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def write_table(folder):
    """Write two clinics with two columns each."""
    for name, start in (("a", 0), ("b", 100)):
        rows = [
            f"{i % 7},{i % 3},{'yes' if i % 7 > 3 else 'no'}"
            for i in range(start, start + 40)
        ]
        text = "\n".join(["age,ward,outcome", *rows])
        (folder / f"{name}.csv").write_text(text + "\n")


def test_what_the_package_offers_is_listed_with_its_name(cirm):
    listing = cirm("list")
    lines = [line for line in listing.splitlines() if "(from cirm-example)" in line]
    names = [line.split()[0] for line in lines]
    assert names == ["worst-case", "wards", "worst-environment"]
    assert "weight" in cirm("list", "learners", "worst-case")


def test_a_model_of_its_learner_can_be_used_if_the_package_is_installed(cirm, tmp_path):
    write_table(tmp_path)
    model = ["--model", "model.cirm"]
    target = ["--target", "outcome", "--learner", "worst-case"]
    cirm("fit", "a.csv", *model, *target, *QUICK, "--set", "weight=0.9")
    cirm("update", "b.csv", *model)
    told = json.loads(cirm("inspect", "model.cirm", "--json"))
    assert told["learner"] == "worst-case"
    assert told["settings"]["weight"] == 0.9
    cirm("predict", "a.csv", *model, "--out", "predictions.csv")
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 41
    error = cirm("predict", "a.csv", *model, package=False, status=2)
    assert (
        "the learner 'worst-case', which trained the model, is not installed" in error
    )
    assert "Install the package that provides this learner" in error


def test_its_learner_runs_on_its_data_set(cirm, tmp_path):
    words = ["--dataset", "wards", "--learner", "worst-case", "--examples", "40"]
    cirm("run", *words, *QUICK, "--seeds", "1", "--out", "out")
    records = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json*"))
    assert '"worst-case"' in records and "ward-c" in records


def test_its_rule_selects_settings(cirm, tmp_path):
    words = ["worst-case", "wards", "--rule", "worst-environment", "--trials", "2"]
    more = ["--examples", "40", "--seeds", "1", "--space", "weight=0.1|0.9"]
    printed = cirm("select", *words, *more, *QUICK, "--out", "out")
    assert "worst-environment" in printed


def test_a_missing_package_is_explained(cirm):
    words = ["--dataset", "wards", "--learner", "erm"]
    error = cirm("run", *words, package=False, status=2)
    assert "There is no dataset 'wards'. Choose one of colored, scm" in error
