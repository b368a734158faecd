"""Try the commands on odd inputs: every one is accepted or refused in one line.

    python tests/fuzz.py --minutes 10 --write

runs for ten minutes of processor time, prints a table of what was tried, and with
--write puts it into docs/robustness.md. Each input is made from its kind and a number,
which a failure prints, so that `--kind KIND --number N` tries it again. `--first N`
starts with another number than 0, which tries other inputs.
"""

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from PIL import Image

from cirm import cli, fit, load, save, update
from cirm.model.file import encode_model_file

DOCUMENT = Path(__file__).parents[1] / "docs" / "robustness.md"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
CELLS = [
    *("", "NA", "?", "0", "1", "-1", "1e308", "-1e308", "1e-320", "inf", "nan", "007"),
    *("yes", "true", "FALSE", "2024-01-31", "9999-12-31", "0001-01-01", "31.12.2024"),
    *("1,5", "1.234,5", "1,234", "$5", "5 €", "12 %", "1 000", "03/04/2024", "1e400"),
    *(
        "=1+1",
        "@x",
        '"',
        "a\nb",
        "\x00",
        "\x1b[2J",
        "٣",
        "1_0",
        "0x10",
        " x ",
        "\ud7ff",
    ),
    *("a" * 300, "名前", "é", "\u202etxt", "-", "--help", "NaT", "None", "[]", "{}"),
]
NAMES = ["a", "b", "c", "id", "", " a ", "y\n", "=c", "a: missing", "prediction", "env"]


def pick(rng, choices):
    """One of the choices, as it is."""
    return choices[rng.integers(len(choices))]


def draw_cells(rng, rows):
    """A column: of one kind, with a few odd cells."""
    kind = rng.integers(7)
    if kind < 2:
        cells = rng.normal(50, 9, rows).round(2).astype(str)
    elif kind == 2:
        cells = rng.integers(0, 5, rows).astype(str)
    elif kind == 3:
        cells = rng.choice(["f", "m", "x"], rows)
    elif kind == 4:
        days = pd.to_datetime("2024-01-01") + pd.to_timedelta(
            rng.integers(0, 99, rows), "D"
        )
        forms = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%d.%m.%y"]
        cells = days.strftime(pick(rng, forms))
    elif kind == 5:
        form = pick(rng, ["{:,.2f}", "${:.2f}", "{:.0f} %", "{:.2f} EUR", "{:_.1f}"])
        cells = [form.format(value) for value in rng.normal(2000, 900, rows)]
    else:
        cells = [pick(rng, CELLS) for _ in range(rows)]
    cells = [str(cell) for cell in cells]
    for _ in range(rng.integers(0, 3) if rng.random() < 0.4 else 0):
        cells[rng.integers(rows)] = pick(rng, CELLS)
    return cells


def write_table(path, rng, rows=None, target=True):
    """A table of odd columns; its last column is the target y."""
    rows = rows or int(rng.integers(1, 40))
    columns = [draw_cells(rng, rows) for _ in range(rng.integers(1, 5))]
    names = [
        pick(rng, NAMES) if rng.random() < 0.3 else f"x{n}" for n in range(len(columns))
    ]
    if target:
        names.append("y")
        y = (
            rng.choice(["no", "yes"], rows)
            if rng.random() < 0.7
            else draw_cells(rng, rows)
        )
        columns.append(y)
    text = io.StringIO()
    separator = "," if rng.random() < 0.95 else pick(rng, [";", "\t", "|"])
    csv.writer(text, delimiter=separator).writerows(
        [names, *zip(*columns, strict=True)]
    )
    encoding = "utf-8" if rng.random() < 0.95 else pick(rng, ["utf-16", "latin-1"])
    path.write_bytes(text.getvalue().encode(encoding, "replace"))


def damage(content, rng):
    """Content with some bytes replaced, removed or added."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        place, length = int(rng.integers(len(content) + 1)), int(rng.integers(0, 9))
        patch = rng.bytes(int(rng.integers(0, 9)))
        content[place : place + length] = patch
    if rng.random() < 0.2:
        content = content[: int(rng.integers(len(content) + 1))]
    return bytes(content)


FIT = ["fit", "t.csv", "--target", "y", "--model", "new.cirm"]


def try_table(rng):
    write_table(Path("t.csv"), rng)
    words = list(FIT)
    options = [
        ["--task", "regression"],
        ["--task", "classification"],
        ["--category", "x0"],
    ]
    options += [
        ["--environment", "env"],
        ["--held-out", "0.5"],
        ["--no-names"],
        ["--id", "x0"],
    ]
    for option in options:
        words += option if rng.random() < 0.1 else []
    return [words, ["predict", "t.csv", "--model", "new.cirm", "--probabilities"]]


def try_table_of_bytes(rng):
    write_table(Path("t.csv"), rng)
    Path("t.csv").write_bytes(damage(Path("t.csv").read_bytes(), rng))
    return [FIT, ["evaluate", "t.csv", "--model", "new.cirm"]]


def try_later_table(rng):
    frame = pd.read_csv("good.csv", dtype=str)
    for name in rng.choice(frame.columns, rng.integers(1, 3)):
        frame[name] = draw_cells(rng, len(frame))
    if rng.random() < 0.3:
        frame = frame.drop(columns=rng.choice(frame.columns))
    frame = frame.iloc[: rng.integers(1, len(frame) + 1)]
    frame.to_csv("t.csv", index=False, errors="replace")
    command = pick(rng, ["update", "predict", "evaluate", "adapt"])
    words = [command, "t.csv", "--model", "m.cirm"]
    words += ["--out", "new.cirm"] if command in ("update", "adapt") else []
    words += ["--fill-missing"] if rng.random() < 0.3 else []
    return [words]


def try_standard_input(rng):
    write_table(Path("t.csv"), rng)
    if rng.random() < 0.3:
        Path("t.csv").write_bytes(damage(Path("t.csv").read_bytes(), rng))
    return [["fit", "-", *FIT[2:]]]


def try_parquet(rng):
    frame = pd.DataFrame({f"x{n}": draw_cells(rng, 20) for n in range(3)})
    if rng.random() < 0.5:
        frame["x0"] = rng.normal(size=20).astype(rng.choice(["f4", "f8"]))
        frame["x1"] = (
            pd.Series(rng.integers(0, 9, 20))
            .astype("Int64")
            .where(rng.random(20) < 0.9)
        )
    frame.assign(y=rng.choice(["no", "yes"], 20)).to_parquet("t.parquet")
    if rng.random() < 0.6:
        Path("t.parquet").write_bytes(damage(Path("t.parquet").read_bytes(), rng))
    return [["fit", "t.parquet", *FIT[2:]]]


def try_archive(rng):
    kinds = ["f4", "f8", "f2", "i1", "u1", "i8", "?", "U3", "S3", "c8", "M8[D]", ">f4"]
    shape = [
        int(rng.integers(0, 14)),
        *map(int, rng.integers(1, 4, rng.integers(0, 4))),
    ]
    arrays = {
        "X": (9 * rng.random(shape)).astype(pick(rng, kinds)),
        "y": rng.integers(0, 3, shape[0]).astype(pick(rng, kinds)),
    }
    np.savez("t.npz", **arrays)
    if rng.random() < 0.5:
        Path("t.npz").write_bytes(damage(Path("t.npz").read_bytes(), rng))
    return [["fit", "t.npz", "--model", "new.cirm", "--set", "epochs=2"]]


def try_images(rng):
    depth = pick(rng, [["a", "b"], ["a", "b"], ["a/x", "b/y", "a/y"], [".", "a"]])
    for name in [*depth, pick(rng, [*depth, "\x1b[2J"])]:
        folder = Path("images", name)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*rng.integers(1, 12, 2), 3)).astype(np.uint8)
        path = folder / f"{rng.integers(9)}.png"
        Image.fromarray(pixels).save(path)
        if rng.random() < 0.15:
            path.write_bytes(damage(path.read_bytes(), rng))
    words = ["--set", "epochs=1", "--side", "8", "--learner", "erm"]
    return [["fit", "images", "--model", "new.cirm", *words]]


def try_model_bytes(rng):
    Path("m.cirm").write_bytes(damage(Path("m.cirm").read_bytes(), rng))
    return [pick(rng, [INSPECT, PREDICT, DIFF, ROLLBACK])]


def try_model_description(rng):
    """A model file with one value replaced, and a checksum that holds."""
    crafted = load_crafted_files()
    places = crafted.PLACES
    values = [
        None,
        "text",
        -1,
        10**30,
        1e308,
        True,
        [],
        {},
        "\x1b[2J",
        0.5,
        "0",
        [1],
        ...,
    ]
    content = crafted.craft(crafted.replace_at(pick(rng, places), pick(rng, values)))
    Path("m.cirm").write_bytes(content)
    return [INSPECT, ["inspect", "m.cirm", "--history"]]


@cache
def load_crafted_files():
    """The module that makes model files with replaced values."""
    path = Path(__file__).parent / "cli" / "test_crafted_files.py"
    spec = importlib.util.spec_from_file_location("crafted_files", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def try_model_versions(rng):
    """A model file whose earlier versions are damaged, and a checksum that holds."""
    model = load("m.cirm")
    earlier = tuple(damage(v, rng) if rng.random() < 0.7 else v for v in model.earlier)
    if rng.random() < 0.2:
        earlier += (encode_model_file(model),)  # with versions of its own
    Path("m.cirm").write_bytes(encode_model_file(replace(model, earlier=earlier)))
    return [["rollback", "m.cirm"], ["inspect", "m.cirm", "--history"]]


def try_options(rng):
    words = ["fit", "good.csv", "--target", "y", "--model", "new.cirm"]
    usual = {
        "--set": "epochs=1",
        "--task": "classification",
        "--learner": "erm",
        "--order": "sequential",
        "--held-out": "0.2",
        "--classes": "no,yes,maybe",
        "--id": "x1",
        "--category": "x0",
        "--ignore": "x1",
        "--unstable": "x0",
        "--seed": "3",
        "--trust": "average",
        "--environment": "x1",
    }
    for _ in range(rng.integers(1, 4)):
        name = pick(rng, list(usual))
        odd = pick(rng, [*CELLS, "epochs=-1", "x0", "y", "2+1"]).replace("\x00", "")
        words += [name, odd if rng.random() < 0.3 else usual[name]]
    return [[*words, "--json"]]


INSPECT = ["inspect", "m.cirm"]
PREDICT = ["predict", "good.csv", "--model", "m.cirm"]
DIFF = ["diff", "m.cirm", "m.cirm"]
ROLLBACK = ["rollback", "m.cirm"]
KINDS = {
    "tables of odd cells and columns, `fit` and `predict`": try_table,
    "tables with damaged bytes, `fit` and `evaluate`": try_table_of_bytes,
    "odd later tables, `update`, `predict`, `evaluate`, `adapt`": try_later_table,
    "tables on standard input, `fit -`": try_standard_input,
    "Parquet files, some damaged, `fit`": try_parquet,
    "NPZ files, some damaged, `fit`": try_archive,
    "folders of images, some damaged, `fit`": try_images,
    "damaged model files, `inspect`, `predict`, `diff`, `rollback`": try_model_bytes,
    "model files with a replaced value, `inspect`": try_model_description,
    "model files with damaged versions, `rollback`, `inspect`": try_model_versions,
    "odd options, `fit --json`": try_options,
}


def run(words):
    """Run a command in this process; return its status and what it printed."""
    out, error = io.StringIO(), io.StringIO()
    stdin = io.TextIOWrapper(
        io.BytesIO(Path("t.csv").read_bytes() if words[1] == "-" else b"")
    )
    with (
        mock.patch.object(sys, "argv", ["cirm", *words]),
        mock.patch.object(sys, "stdin", stdin),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
    return status, out.getvalue(), error.getvalue()


def list_local_input_files():
    return {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}


def check(words, before, status, out, error):
    """Raise an error unless a command ended well, or refused its input properly."""
    where = f"{words}: status {status}, {error[-600:]!r}"
    assert status in (0, 2), where
    assert not STEERING.search(error), where
    if "--json" in words:
        json.loads(out)
    if status == 2:
        lines = [line for line in error.splitlines() if " so far" not in line]
        assert lines[-1].startswith("cirm: ") and lines[-1].endswith((".", "?")), where
        assert len(lines) == 1, where
        assert list_local_input_files() == before, where
        return "refused"
    assert "Traceback" not in error, where
    if words[0] == "predict":
        check_predictions(out, words[1])
    if "new.cirm" in words and words[0] in ("fit", "update", "adapt"):
        load("new.cirm")
    return "accepted"


def check_predictions(text, name):
    """Raise an error unless there is a finite prediction for each row."""
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    with open(name, newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    assert len(frame) == len(rows) - 1, (
        f"{len(frame)} predictions for {len(rows) - 1} rows"
    )
    assert (frame["prediction"] != "").all()
    numbers = frame.filter(regex="^(probability|low|high)")
    if set(numbers) & {"low"} and (numbers[["low", "high"]] == "").all(axis=None):
        numbers = numbers.drop(columns=["low", "high"])  # too few rows, and it is said
    assert np.isfinite(numbers.astype(float).to_numpy()).all()
    chances = frame.filter(regex="^probability").astype(float)
    assert ((chances >= 0) & (chances <= 1)).all(axis=None)


def make_folder(root):
    """The files that every input starts from: a good table, and a model of two."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x0": rng.normal(50, 9, 80).round(1), "x1": rng.choice(["f", "m"], 80)}
    )
    frame["y"] = np.where(frame["x0"] + 5 * rng.normal(size=80) > 50, "yes", "no")
    frame[:40].to_csv(root / "first.csv", index=False)
    frame[40:].to_csv(root / "good.csv", index=False)
    model = fit(root / "first.csv", "y")
    save(update(model, frame[20:60], keep=3), root / "m.cirm")


def try_input(root, kind, number):
    """Try one input in a new folder; return whether it was accepted or refused."""
    rng = np.random.default_rng([list(KINDS).index(kind), number])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        shutil.copytree(root, ".", dirs_exist_ok=True)
        outcomes = []
        for words in KINDS[kind](rng):
            if (
                "new.cirm" in words
                and words[0] not in ("fit", "update", "adapt")
                and not Path("new.cirm").exists()
            ):
                continue  # the model before was refused
            before = list_local_input_files()
            outcomes.append(check(words, before, *run(words)))
    return outcomes[0]


def tell_table(counts):
    """The table of what was tried, in Markdown."""
    lines = [
        "| kind of input | tried | accepted | refused in one line | failed |",
        "|---|--:|--:|--:|--:|",
    ]
    total = Counter()
    for kind in KINDS:
        own = counts[kind]
        total.update(own)
        lines.append(tell_row(kind, own))
    lines.append(tell_row("**all**", total))
    return "\n".join(lines)


def tell_row(name, own):
    parts = (own.total(), own["accepted"], own["refused"], own["failed"])
    return f"| {name} | " + " | ".join(f"{part:,}" for part in parts) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of processor time")
    parser.add_argument("--kind", help="part of the name of a kind")
    parser.add_argument("--number", type=int, help="only this input of the kind")
    parser.add_argument("--first", type=int, default=0, help="number to start from")
    parser.add_argument("--write", action="store_true", help="write docs/robustness.md")
    options = parser.parse_args()
    kinds = [kind for kind in KINDS if not options.kind or options.kind in kind]
    counts = {kind: Counter() for kind in KINDS}
    start, number = time.process_time(), options.number or options.first
    with tempfile.TemporaryDirectory() as root:
        make_folder(Path(root))
        while time.process_time() - start < 60 * options.minutes:
            for kind in kinds:
                try:
                    outcome = try_input(root, kind, number)
                except Exception as error:
                    outcome = "failed"
                    reason = f"{type(error).__name__}: {error}"
                    print(
                        f"FAILED --kind {kind!r} --number {number}: {reason}",
                        flush=True,
                    )
                counts[kind][outcome] += 1
            number += 1
            if options.number is not None:
                break
    table = tell_table(counts)
    print(table)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition("| kind of input |")
        after = rest.partition("\n\n")[2]
        DOCUMENT.write_text(f"{before}{table}\n\n{after}")
    sys.exit(any(own["failed"] for own in counts.values()))


if __name__ == "__main__":
    main()
