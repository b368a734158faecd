"""fit, update, predict, evaluate and inspect, as a user runs them."""

import importlib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from cirm import load, save, update
from cirm.memory import list_state_tensors

QUICK = ["--set", "epochs=15", "--set", "hidden=8", "--set", "rate=0.02"]


def table(rows, agreement, seed):
    """The marker tells the outcome everywhere, the scanner by the site."""
    rng = np.random.default_rng(seed)
    outcome = rng.integers(0, 2, rows)
    site = np.where(rng.random(rows) < agreement, outcome, 1 - outcome)
    return pd.DataFrame(
        {
            "patient": [f"{seed}-{n}" for n in range(rows)],
            "marker": rng.normal(size=rows) + 1.5 * (2 * outcome - 1),
            "scanner": np.where(site == 1, "new", "old"),
            "outcome": np.where(outcome == 1, "ill", "well"),
        }
    )


@pytest.fixture
def clinics(tmp_path, monkeypatch):
    for name, agreement, seed in (("a", 0.95, 0), ("b", 0.8, 1), ("c", 0.1, 2)):
        frame = table(150, agreement, seed)
        frame.to_csv(tmp_path / f"clinic-{name}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fitted(cirm, clinics):
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--model", "m.cirm", *QUICK]
    status, printed, error = cirm(*words)
    assert status == 0, error
    return printed


def test_fit_prints_what_it_has_found_and_writes_the_model(fitted, clinics):
    assert "Target outcome: classification (detected), 2 classes: ill, well" in fitted
    assert (
        "patient: ignored: looks like an identifier "
        "(`cirm fit --category patient` keeps it)" in fitted
    )
    assert "The model file keeps no training rows" in fitted
    assert load("m.cirm").history[0].name == "clinic-a"


def test_a_model_goes_from_clinic_to_clinic(cirm, fitted):
    status, printed, _ = cirm("update", "clinic-b.csv", "--model", "m.cirm")
    assert status == 0
    assert "clinic-b, before learning" in printed
    status, _, error = cirm(
        "predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"
    )
    assert status == 0
    assert "Wrote 150 predictions to p.csv" in error
    shown = pd.read_csv("p.csv")
    wanted = ["patient", "prediction", "probability", "uncertainty"]
    assert list(shown.columns) == wanted
    assert shown["patient"].tolist() == table(150, 0.1, 2)["patient"].tolist()
    assert set(shown["prediction"]) <= {"ill", "well"}
    assert shown["probability"].between(0.5, 1).all()
    status, printed, _ = cirm("evaluate", "clinic-c.csv", "--model", "m.cirm")
    assert status == 0
    assert "at clinic-b before the model was trained on it" in printed
    assert printed.count("90 % interval of the difference") > 3
    status, printed, _ = cirm("inspect", "m.cirm")
    assert status == 0
    assert "The model file keeps no training rows" in printed
    assert "Importance of columns: " in printed


def test_predictions_go_to_the_standard_output_without_a_file(cirm, fitted):
    status, printed, _ = cirm(
        "predict", "clinic-b.csv", "--model", "m.cirm", "--probabilities"
    )
    assert status == 0
    head = "patient,prediction,probability,uncertainty"
    assert printed.splitlines()[0] == (f"{head},probability of ill,probability of well")
    assert len(printed.splitlines()) == 151


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
def test_tables_of_every_kind_are_read_and_written(cirm, fitted, clinics, ending):
    frame = table(150, 0.8, 1)
    if ending == "tsv":
        frame.to_csv("later.tsv", sep="\t", index=False)
    else:
        frame.to_parquet("later.parquet")
    out = f"out.{ending}"
    words = ["predict", f"later.{ending}", "--model", "m.cirm", "--out", out]
    assert cirm(*words)[0] == 0
    assert (
        cirm("predict", "clinic-b.csv", "--model", "m.cirm", "--out", "p.csv")[0] == 0
    )
    read = pd.read_parquet(out) if ending == "parquet" else pd.read_csv(out, sep="\t")
    assert read["prediction"].tolist() == pd.read_csv("p.csv")["prediction"].tolist()


def test_json_is_all_that_goes_to_the_standard_output(cirm, fitted):
    _, printed, _ = cirm("update", "clinic-b.csv", "--model", "m.cirm", "--json")
    content = json.loads(printed)
    assert [e["name"] for e in content["history"]] == ["clinic-a", "clinic-b"]
    _, printed, _ = cirm("evaluate", "clinic-c.csv", "--model", "m.cirm", "--json")
    assert json.loads(printed)["rows"] == 150
    _, printed, _ = cirm("inspect", "m.cirm", "--json")
    assert json.loads(printed)["raw_examples"] == 0
    words = ["predict", "clinic-c.csv", "--model", "m.cirm", "--out", "p.csv"]
    _, printed, _ = cirm(*words, "--json")
    assert sum(json.loads(printed)["predictions"].values()) == 150


@pytest.mark.parametrize(
    "words",
    [
        "inspect m.cirm",
        "update clinic-b.csv --model m.cirm",
        "evaluate clinic-c.csv --model m.cirm --group scanner",
        "predict clinic-c.csv --model m.cirm --out p.csv",
    ],
)
def test_every_command_writes_a_page_that_needs_nothing_else(cirm, fitted, words):
    status, _, error = cirm(*words.split(), "--report", "page.html")
    assert status == 0
    assert "page.html" in error
    with open("page.html") as file:
        text = file.read()
    assert text.startswith("<!doctype html>")
    assert "m.cirm" in text
    assert "src=" not in text
    space = "http://www.w3.org/2000/svg"  # a name, not an address
    assert "http" not in text.replace("http-equiv", "").replace(space, "")


def test_regression_has_a_page_as_well(cirm, clinics):
    frame = table(100, 0.9, 0).assign(dose=np.arange(100.0) / 7)
    frame.to_csv("v.csv", index=False)
    words = ["fit", "v.csv", "--target", "dose", "--model", "v.cirm", *QUICK]
    status, printed, _ = cirm(*words, "--report", "v.html", "--learner", "vcl")
    assert status == 0
    assert "regression (detected)" in printed
    status, printed, _ = cirm(
        "evaluate", "v.csv", "--model", "v.cirm", "--report", "e.html"
    )
    assert "of the targets lie in their 90 % prediction" in printed
    assert cirm("predict", "v.csv", "--model", "v.cirm", "--out", "p.csv")[0] == 0
    assert list(pd.read_csv("p.csv").columns) == [
        "patient", "prediction", "low", "high", "uncertainty",
    ]  # fmt: skip


def test_settings_and_the_seed_are_those_of_the_model(cirm, clinics):
    words = ["fit", "clinic-a.csv", "--target", "outcome", "--model", "m.cirm", *QUICK]
    assert cirm(*words, "--learner", "c-virmv1", "--seed", "7")[0] == 0
    model = load("m.cirm")
    assert model.plan.seed == 7
    assert model.plan.learner == "c-virmv1"
    assert model.learner.descent.epochs == 15
    assert model.learner.network.sizes[1:] == (8, 2)


def test_npz_files_and_folders_of_images_can_be_learned(cirm, clinics):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 3))
    np.savez("flat.npz", X=x, y=(x[:, 0] > 0).astype(int), environment=["n", "s"] * 40)
    assert cirm("fit", "flat.npz", "--model", "f.cirm", *QUICK)[0] == 0
    assert [entry.name for entry in load("f.cirm").history] == ["n", "s"]
    pixels = rng.integers(0, 99, (40, 6, 6), dtype=np.uint8)
    pixels[::2, :3] += 150
    np.savez("deep.npz", images=pixels, labels=np.arange(40) % 2)
    assert cirm("fit", "deep.npz", "--model", "d.cirm", *QUICK)[0] == 0
    assert cirm("predict", "deep.npz", "--model", "d.cirm", "--out", "p.csv")[0] == 0
    for n, image in enumerate(pixels):
        folder = clinics / "images" / ("even", "odd")[n % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{n}.png")
    words = ["fit", "images", "--model", "i.cirm", "--side", "6", "--channels", "1"]
    assert cirm(*words, *QUICK)[0] == 0
    assert cirm("predict", "images", "--model", "i.cirm", "--out", "i.csv")[0] == 0
    shown = pd.read_csv("i.csv")
    assert shown["image"].iloc[0] == os.path.join("even", "0.png")
    right = shown["image"].str.startswith("even") == (shown["prediction"] == "even")
    assert right.mean() > 0.8


@pytest.mark.integration
def test_an_interrupted_fit_writes_no_model(cirm, fitted, clinics, interrupt):
    table(6000, 0.8, 1).to_csv("many.csv", index=False)
    before = sorted(clinics.iterdir())
    began = time.monotonic()
    interrupt(lambda: time.monotonic() - began > 1)
    words = ["fit", "many.csv", "--target", "outcome", "--model", "n.cirm"]
    words += ["--learner", "erm", "--set", "epochs=100000"]  # that takes long enough
    status, _, error = cirm(*words)
    assert status == 130
    assert error == (
        "cirm: The command was interrupted, so no model was written to n.cirm. Run the "
        "command again to start over.\n"
    )
    assert sorted(clinics.iterdir()) == before


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of POSIX")
def test_an_interrupted_update_leaves_the_model_unchanged(fitted, clinics, monkeypatch):
    """Ctrl-C at a terminal, as soon as it shows that the update learns."""
    table(20_000, 0.8, 1).to_csv("many.csv", index=False)
    (clinics / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(clinics / "temporary"))
    model = clinics / "m.cirm"
    before, files = model.read_bytes(), sorted(clinics.rglob("*"))
    command = [sys.executable, "-c", "from cirm.cli import main; main()"]
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*command, "update", "many.csv", "--model", "m.cirm"],
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        read_terminal(ours, "training on many")
        process.send_signal(signal.SIGINT)
        ending = read_terminal(ours)
        assert process.wait(60) == 130
        assert process.stdout.read() == b""
    os.close(ours)
    assert "interrupted, so m.cirm is unchanged." in ending.splitlines()[-1]
    assert "Traceback" not in ending
    assert model.read_bytes() == before
    assert sorted(clinics.rglob("*")) == files


def read_terminal(terminal, word=None):
    """Read what a terminal shows, without colours, up to a word or to the end."""
    shown = ""
    while word is None or word not in shown:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # how Linux tells that the other side has closed
            part = b""
        if not part:
            assert word is None, shown
            break
        shown += part.decode(errors="replace")
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)


@pytest.mark.integration
def test_a_model_that_changes_while_it_is_updated_is_not_lost(
    cirm, fitted, monkeypatch
):
    learning = importlib.import_module("cirm.model.fit")

    whole = learning.update

    def slowly(*arguments, **words):
        made = whole(*arguments, **words)
        other = update(load("m.cirm"), "clinic-c.csv")
        save(other, "m.cirm")
        return made

    monkeypatch.setattr(learning, "update", slowly)
    status, _, error = cirm("update", "clinic-b.csv", "--model", "m.cirm")
    assert status == 2
    assert "another command changed the file while this one was running" in error
    assert [entry.name for entry in load("m.cirm").history] == ["clinic-a", "clinic-c"]


def test_an_update_can_be_written_to_a_new_file(cirm, fitted, clinics):
    before = (clinics / "m.cirm").read_bytes()
    words = ["update", "clinic-b.csv", "--model", "m.cirm", "--out", "n.cirm"]
    assert cirm(*words)[0] == 0
    assert (clinics / "m.cirm").read_bytes() == before
    assert len(load("n.cirm").history) == 2


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_model(fitted, clinics):
    """Fifty kills without warning: while it learns, and while it writes."""
    path = clinics / "m.cirm"
    old, before = load(path), path.read_bytes()
    start = time.perf_counter()
    new = update(old, "clinic-b.csv")
    learning = time.perf_counter() - start
    save(new, path)
    saving = time.perf_counter() - start - learning
    rng = random.Random(0)
    seen = set()
    for turn in range(50):
        path.write_bytes(before)
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            if turn % 2:
                save(update(load(path), "clinic-b.csv"), path)
            while not turn % 2:
                for model in (new, old):
                    save(model, path)
                    os.write(sender, b".")
            os._exit(0)
        if turn % 2:
            time.sleep(rng.uniform(0, learning))
        else:  # on a busy machine too, the child has begun to write
            for _ in range(rng.randint(1, 4)):
                assert select.select([receiver], [], [], 60)[0], "the child hangs"
                os.read(receiver, 1)
            time.sleep(rng.uniform(0, saving))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiver)
        os.close(sender)
        found = load(path)
        wanted = old if len(found.history) == 1 else new
        assert all(
            map(
                torch.equal,
                list_state_tensors(found.state),
                list_state_tensors(wanted.state),
            )
        )
        seen.add(len(found.history))
    assert seen == {1, 2}


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from cirm.cli import app; "
        "print(any(m in sys.modules for m in ('torch', 'numpy', 'pandas', 'sklearn')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_file_with_row_numbers_of_pandas_is_read(cirm, clinics):
    table(100, 0.9, 0).to_csv("numbered.csv")
    words = ["fit", "numbered.csv", "--target", "outcome", "--model", "n.cirm", *QUICK]
    assert cirm(*words)[0] == 0
    names = [c.name for c in load("n.cirm").schema.treatment.encoding.columns]
    assert names == ["marker", "patient", "scanner"]


def test_of_thousands_of_columns_only_some_are_printed(cirm, clinics):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(20, 150)).round(3)).add_prefix("c")
    frame.assign(y=["no", "yes"] * 10).to_csv("wide.csv", index=False)
    words = ["fit", "wide.csv", "--target", "y", "--model", "w.cirm"]
    status, printed, _ = cirm(*words, "--learner", "erm", *QUICK)
    assert status == 0
    lines = printed.splitlines()
    assert sum(": number (mean" in line for line in lines) == 100
    assert "  50 more columns, which `cirm inspect MODEL --json` lists" in lines
