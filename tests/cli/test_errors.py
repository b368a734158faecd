"""Bad input is rejected with one line and leaves every file unchanged.

docs/errors.md is the table of all inputs tested here. To write it anew:
CIRM_WRITE_ERRORS=1 pytest tests/cli/test_errors.py
"""

# ruff: noqa: E501  a table reads best with a case a line

import gzip
import io
import os
import re
import struct
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import save as tensors

from cirm import cli
from cirm.cli.exit_codes import MEANINGS

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
GOOD = "age,sex,outcome\n" + "".join(
    f"{30 + 7 * n % 40},{'fm'[n % 2]},{'yes' if n * n % 3 else 'no'}\n"
    for n in range(60)
)
FIT = "fit bad.csv --target outcome --model new.cirm --set epochs=1"
UPDATE = "update bad.csv --model model.cirm"
PREDICT = "predict bad.csv --model model.cirm --out out.csv"
HEAD = "age,sex,outcome\n"


def rows(text):
    """A good table with some cells replaced, given as old>new."""
    old, new = text.split(">")
    return GOOD.replace(old, new, 1)


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def pickled():
    file = io.BytesIO()
    np.savez(file, X=np.array([[1, "a"], [2, None]], dtype=object), y=[0, 1])
    return file.getvalue()


def image(size=8):
    file = io.BytesIO()
    Image.new("L", (size, size)).save(file, "PNG")
    return file.getvalue()


def huge():
    """An archive whose array promises far more than there is."""
    file = io.BytesIO()
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 9), }\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("X.npy", body)
    return file.getvalue()


def cut(path):
    return path.read_bytes()[:-100]


def altered(path):
    whole = bytearray(path.read_bytes())
    whole[-5] ^= 1
    return bytes(whole)


def newer(path):
    metadata = {"format": "cirm model", "version": "99", "model": "{}", "sha256": "0"}
    return tensors({"a": np.zeros(1, np.float32)}, metadata)


CASES = [
    ("a file that does not exist", {}, FIT.replace("bad", "none")),
    ("an empty file", {"bad.csv": ""}, FIT),
    ("a header without rows", {"bad.csv": HEAD}, FIT),
    ("an unsupported file type", {"bad.xlsx": "x"}, FIT.replace("csv", "xlsx")),
    ("bytes that are not text", {"bad.csv": HEAD.encode() + b"\xff\xfe\x00"}, FIT),
    ("a different separator", {"bad.csv": GOOD.replace(",", "|")}, FIT),
    ("a row with too many cells", {"bad.csv": rows("37,m,yes>37,m,yes,1")}, FIT),
    ("too many cells in every row", {"bad.csv": HEAD + "1,f,no,2\n"}, FIT),
    ("a quote that is never closed", {"bad.csv": rows('37,m,yes>37,"m,yes')}, FIT),
    ("a duplicate column", {"bad.csv": rows("age,sex>age,age")}, FIT),
    ("a column without a name", {"bad.csv": rows("age,sex>age,")}, FIT),
    ("no target", {"bad.csv": GOOD}, FIT.replace("--target outcome ", "")),
    ("a target that is not a column", {"bad.csv": GOOD}, FIT.replace("outcome", "nope")),
    ("a missing target", {"bad.csv": rows("37,m,yes>37,m,")}, FIT),
    ("a target with a single class", {"bad.csv": GOOD.replace("no\n", "yes\n")}, FIT),
    ("a target that differs in every row", {"bad.csv": "a,outcome\n" + "".join(f"{n % 7},P-{n}\n" for n in range(30))}, FIT),
    ("dates as the target", {"bad.csv": "a,outcome\n1,2024-01-01\n2,2024-01-02\n"}, FIT),
    ("text as a regression target", {"bad.csv": GOOD}, FIT + " --task regression"),
    ("text among numbers", {"bad.csv": rows("37,m>old,m")}, FIT),
    ("an infinite number", {"bad.csv": rows("37,m>inf,m")}, FIT),
    ("text among dates", {"bad.csv": "d,outcome\n" + "2024-01-01,a\n2024-01-02,b\n" * 9 + "soon,a\n"}, FIT),
    ("numbers that can be read in two ways", {"bad.csv": 'a,outcome\n"1,234",x\n"2,345",y\n'}, FIT),
    ("dates that can be read in two ways", {"bad.csv": "d,outcome\n03/04/2024,x\n05/06/2024,y\n"}, FIT),
    ("percent signs in some cells only", {"bad.csv": "a,outcome\n5 %,x\n7 %,y\n8,x\n9 %,y\n"}, FIT),
    ("several currencies", {"bad.csv": "a,outcome\n$5,x\n€7,y\n$8,x\n"}, FIT),
    ("only constant columns", {"bad.csv": "a,outcome\n1,x\n1,y\n"}, FIT),
    ("no column except the target", {"bad.csv": "outcome\nx\ny\n"}, FIT),
    ("an environment column that does not exist", {"bad.csv": GOOD}, FIT + " --environment site"),
    ("a row without an environment", {"bad.csv": rows("37,m>37,")}, FIT + " --environment sex"),
    ("a column to ignore that does not exist", {"bad.csv": GOOD}, FIT + " --ignore nope"),
    ("an identifier column that does not exist", {"bad.csv": GOOD}, FIT + " --id nope"),
    ("an unstable column that does not exist", {"bad.csv": GOOD}, FIT + " --learner steady --unstable nope"),
    ("an unstable column, and a learner that ignores this", {"bad.csv": GOOD}, FIT + " --learner erm --unstable age"),
    ("an unknown learner", {"bad.csv": GOOD}, FIT + " --learner nope"),
    ("a learner that does not do the task", {"bad.csv": GOOD}, FIT + " --learner ridge"),
    ("a network that a learner cannot use", {"bad.csv": GOOD}, FIT + " --learner logistic --set network=mlp"),
    ("a network without what a learner adapts", {"bad.csv": GOOD}, FIT + " --learner tent --set network=mlp"),
    ("an unknown encoder", {"bad.csv": GOOD}, FIT + " --encoder nope"),
    ("a column of text that does not exist", {"bad.csv": GOOD}, FIT + " --text nope"),
    ("an unknown setting", {"bad.csv": GOOD}, FIT + " --set nope=1"),
    ("a setting that is not a number", {"bad.csv": GOOD}, FIT + " --set rate=fast"),
    ("a setting out of range", {"bad.csv": GOOD}, FIT + " --set rate=-1"),
    ("a setting without a value", {"bad.csv": GOOD}, FIT + " --set rate"),
    ("an unknown preset", {"bad.csv": GOOD}, FIT + " --preset nope"),
    ("an unknown task", {"bad.csv": GOOD}, FIT + " --task guess"),
    ("an unknown device", {"bad.csv": GOOD}, FIT + " --device abacus"),
    ("all rows held out", {"bad.csv": GOOD}, FIT + " --held-out 1"),
    ("an order that does not add up", {"bad.csv": GOOD}, FIT + " --order 2+1"),
    ("a single declared class", {"bad.csv": GOOD}, FIT + " --classes yes"),
    ("a class that was not declared", {"bad.csv": GOOD}, FIT + " --classes yes,maybe"),
    ("a threshold that is no rule", {"bad.csv": GOOD}, FIT + " --threshold often"),
    ("a threshold above one", {"bad.csv": GOOD}, FIT + " --threshold 1.5"),
    ("a threshold of costs that are zero", {"bad.csv": GOOD}, FIT + " --threshold cost=0:1"),
    ("a threshold chosen on too few rows", {"bad.csv": GOOD}, FIT + " --threshold recall=0.9"),
    ("a threshold for a regression", {"bad.csv": GOOD}, FIT.replace("outcome", "age") + " --threshold 0.5"),
    ("a threshold for three classes", {"bad.csv": GOOD.replace("no\n", "never\n", 5)}, FIT + " --threshold 0.5"),
    ("a positive class that does not exist", {"bad.csv": GOOD}, FIT + " --positive maybe"),
    ("a positive class for a regression", {"bad.csv": GOOD}, FIT.replace("outcome", "age") + " --positive yes"),
    ("a class weight that is not a number", {"bad.csv": GOOD}, FIT + " --class-weight yes=heavy"),
    ("a class weight of zero", {"bad.csv": GOOD}, FIT + " --class-weight yes=0"),
    ("a weight for a class that does not exist", {"bad.csv": GOOD}, FIT + " --class-weight maybe=2"),
    ("class weights for a regression", {"bad.csv": GOOD}, FIT.replace("outcome", "age") + " --class-weight balanced"),
    ("a column of weights that does not exist", {"bad.csv": GOOD}, FIT + " --weight nope"),
    ("text as weights", {"bad.csv": GOOD}, FIT + " --weight sex"),
    ("a negative weight", {"bad.csv": rows("37,m>-37,m")}, FIT + " --weight age"),
    ("a missing weight", {"bad.csv": rows("37,m>,m")}, FIT + " --weight age"),
    ("weights that are all zero", {"bad.csv": re.sub("(?m)^[0-9]+,", "0,", GOOD)}, FIT + " --weight age"),
    ("the target as weights", {"bad.csv": GOOD}, FIT.replace("outcome", "age") + " --weight age"),
    ("the target as the environment", {"bad.csv": GOOD}, FIT + " --environment outcome"),
    ("the target as weights in an update", {"bad.csv": GOOD}, UPDATE + " --weight outcome"),
    ("a model file that exists", {"bad.csv": GOOD}, FIT.replace("new", "model")),
    ("a model file in a folder that does not exist", {"bad.csv": GOOD}, FIT.replace("new", "no/new")),
    ("a folder as the model file", {"bad.csv": GOOD, "d/x": ""}, FIT.replace("new.cirm", "d")),
    ("a report that is not HTML", {"bad.csv": GOOD}, FIT + " --report page.pdf"),
    ("two files with the same name", {"bad.csv": GOOD, "d/bad.csv": GOOD}, FIT.replace("bad.csv", "bad.csv d/bad.csv")),
    ("a model file that does not exist", {"bad.csv": GOOD}, UPDATE.replace("model.cirm", "none.cirm")),
    ("a file that is not a model", {"bad.csv": GOOD, "other.cirm": "hello, world"}, UPDATE.replace("model.cirm", "other.cirm")),
    ("a truncated model file", {"bad.csv": GOOD, "other.cirm": cut}, UPDATE.replace("model.cirm", "other.cirm")),
    ("a damaged model file", {"bad.csv": GOOD, "other.cirm": altered}, UPDATE.replace("model.cirm", "other.cirm")),
    ("a model file of a newer version", {"bad.csv": GOOD, "other.cirm": newer}, UPDATE.replace("model.cirm", "other.cirm")),
    ("a missing column", {"bad.csv": GOOD.replace("age", "years")}, UPDATE),
    ("numbers in another unit", {"bad.csv": "age,sex,outcome\n" + "".join(f"{n}000,f,no\n" for n in range(30))}, UPDATE),
    ("a new class", {"bad.csv": rows("37,m,yes>37,m,maybe")}, UPDATE),
    ("rows the model has learned from", {}, "update first.csv --model model.cirm"),
    ("text among numbers in an update", {"bad.csv": rows("44,f>old,f")}, UPDATE),
    ("an updated model that exists", {"bad.csv": GOOD, "other.cirm": "mine"}, UPDATE + " --out other.cirm"),
    ("an adapted model in place of the model", {"bad.csv": GOOD}, "adapt bad.csv --model model.cirm --out model.cirm"),
    ("standard input given twice", {}, FIT.replace("bad.csv", "- -")),
    ("a model on standard output", {"bad.csv": GOOD}, FIT.replace("new.cirm", "-")),
    ("a rollback without earlier versions", {}, "rollback model.cirm"),
    ("a comparison with a file that is no model", {"bad.csv": GOOD}, "diff model.cirm bad.csv"),
    ("images for a model of tables", {"images/a/x.png": image()}, "update images --model model.cirm"),
    ("a missing column when predicting", {"bad.csv": "age\n1\n"}, PREDICT),
    ("predictions in place of the rows", {"bad.csv": GOOD}, PREDICT.replace("out.csv", "bad.csv")),
    ("predictions that exist", {"bad.csv": GOOD, "out.csv": "mine"}, PREDICT),
    ("an error rate of nothing", {"bad.csv": GOOD}, PREDICT + " --abstain 0"),
    ("a threshold and abstention", {"bad.csv": GOOD}, PREDICT + " --threshold 0.2 --abstain 0.1"),
    ("a rule without held-out rows to choose by", {"bad.csv": GOOD}, PREDICT + " --threshold recall=0.9"),
    ("a coverage of everything", {"bad.csv": GOOD}, PREDICT + " --sets --level 1"),
    ("a table compared with a folder of images", {"images/a/x.png": image()}, "compare first.csv images"),
    ("tables without a common column", {"bad.csv": "x,y\n1,2\n"}, "compare first.csv bad.csv"),
    ("a target that a table lacks", {"bad.csv": GOOD}, "compare first.csv bad.csv --target nope"),
    ("a column to keep that does not exist", {"bad.csv": GOOD}, PREDICT + " --keep nope"),
    ("predictions in an unknown format", {"bad.csv": GOOD}, PREDICT.replace("out.csv", "out.doc")),
    ("predictions in a folder that does not exist", {"bad.csv": GOOD}, PREDICT.replace("out.csv", "no/out.csv")),
    ("JSON and predictions on standard output", {"bad.csv": GOOD}, "predict bad.csv --model model.cirm --json"),
    ("an evaluation without targets", {"bad.csv": "age,sex\n1,f\n"}, "evaluate bad.csv --model model.cirm"),
    ("an unknown group", {"bad.csv": GOOD}, "evaluate bad.csv --model model.cirm --group nope"),
    ("a table to inspect", {"bad.csv": GOOD}, "inspect bad.csv"),
    ("a key that does not exist", {}, "inspect model.cirm --key none"),
    ("a key that is too short", {"bad.key": "secret"}, "inspect model.cirm --key bad.key"),
    ("a model file that is not signed", {"bad.key": "0123456789abcdef"}, "inspect model.cirm --key bad.key"),
    ("an NPZ file that is not an archive", {"bad.npz": "x"}, "fit bad.npz --model new.cirm"),
    ("an NPZ file without inputs", {"bad.npz": archive(a=np.zeros(3))}, "fit bad.npz --model new.cirm"),
    ("an NPZ file without targets", {"bad.npz": archive(X=np.zeros((3, 2)))}, "fit bad.npz --model new.cirm"),
    ("an NPZ file with objects", {"bad.npz": pickled()}, "fit bad.npz --model new.cirm"),
    ("an NPZ file with an impossible size", {"bad.npz": huge()}, "fit bad.npz --model new.cirm"),
    ("targets of a different length", {"bad.npz": archive(X=np.zeros((3, 2)), y=np.zeros(2))}, "fit bad.npz --model new.cirm"),
    ("a packed table", {"bad.csv": gzip.compress(GOOD.encode(), mtime=0)}, FIT),
    ("a column of periods that has no dates", {"bad.csv": GOOD}, FIT + " --time age"),
    ("an unknown length of a period", {"bad.csv": GOOD}, FIT + " --time age --every decade"),
    ("images that are all the same", {"bad.npz": archive(X=np.ones((9, 2, 2)), y=np.arange(9) % 2)}, "fit bad.npz --model new.cirm"),
    ("images with a huge value", {"bad.npz": archive(X=np.full((9, 2, 2), 1e20), y=np.arange(9) % 2)}, "fit bad.npz --model new.cirm"),
    ("a folder without images", {"images/a/x.txt": "x"}, "fit images --model new.cirm"),
    ("a file that is not an image", {"images/a/x.png": "x", "images/b/y.png": image()}, "fit images --model new.cirm"),
    ("images of a single class", {"images/a/x.png": image()}, "fit images --model new.cirm"),
    ("a file that is not Parquet", {"bad.parquet": "x"}, FIT.replace("csv", "parquet")),
    ("a file in place of the result folder", {"bad": ""}, "demo --out bad"),
    ("a result folder below a file", {"bad": ""}, "bench --out bad/results"),
    ("training that diverges", {"bad.csv": GOOD}, FIT + " --set rate=1e30 --set optimiser=sgd --set penalty=0 --learner irmv1"),
    ("a server for other machines without a token", {}, "serve model.cirm --host 0.0.0.0"),
    ("a token file that does not exist", {}, "serve model.cirm --token-file none.txt"),
    ("a token that could be guessed", {"token.txt": "secret"}, "serve model.cirm --token-file token.txt"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of a good table."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "first.csv").write_text(GOOD)
    from cirm import fit, save

    save(fit(folder / "first.csv", "outcome", settings={"epochs": 1}), folder / "m")
    return folder / "m"


def run(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["cirm", *words.split()])
    try:
        cli.main()
        status = 0
    except SystemExit as stop:
        status = stop.code
    return status, capsys.readouterr().err


def contents():
    return {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}


WRITE = os.environ.get("CIRM_WRITE_ERRORS")


@pytest.mark.parametrize(("title", "files", "words"), CASES, ids=[c[0] for c in CASES])
def test_bad_input_is_rejected_with_one_line_and_changes_nothing(
    title, files, words, model, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    Path("model.cirm").write_bytes(model.read_bytes())
    Path("first.csv").write_text(GOOD)
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        content = content(model) if callable(content) else content
        content = content.encode() if isinstance(content, str) else content
        Path(name).write_bytes(content)
    before = contents()
    # On a busy machine, training could take until a line says how far it is.
    monkeypatch.setattr("cirm.cli.progress.PAUSE", 3600.0)
    status, error = run(words, monkeypatch, capsys)
    assert status == 2
    assert error.startswith("cirm: ")
    assert error.count("\n") == 1
    assert contents() == before
    line = row(title, words, error.strip())
    if WRITE:
        old = HEADING if title == CASES[0][0] else DOCUMENT.read_text()
        DOCUMENT.write_text(f"{old}{line}\n")
    assert line in DOCUMENT.read_text().splitlines()


def row(title, words, error):
    """A row of the table, without today's date and without long lists of choices."""
    error = error.removeprefix("cirm: ").replace(
        f"{datetime.now(UTC):%Y-%m-%d}", "DATE"
    )
    error = re.sub(r"(?:[\w.-]+, ){5,}(?!or\b|and\b)[\w.-]*\w", "...", error)
    cells = (title, f"`cirm {words}`", error)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


STATUS = "\n".join(f"| {code:d} | {text} |" for code, text in MEANINGS.items())
HEADING = f"""# Error messages

Every message says what is wrong, where, and what to do next. To see which input causes a message, search this page for a part of
it.

## Exit status

The same for all commands:

| status | meaning |
|--:|---|
{STATUS}

With `--json`, the command prints an object `{{"error": {{"status": ..., "message": ...}}}}` on standard output instead of the result,
and the message on standard error as well.

## Inputs that are rejected

Each of these inputs is rejected with one line on standard error and exit status 2, and leaves all files unchanged. Long lists
of choices are shortened to `...` here. `CIRM_WRITE_ERRORS=1 pytest tests/cli/test_errors.py` writes this table.

| input | command | message |
|---|---|---|
"""


def test_the_table_has_a_row_for_every_case_and_no_other():
    text = DOCUMENT.read_text()
    assert text.startswith(HEADING)
    titles = [line.split(" | ")[0][2:] for line in text[len(HEADING) :].splitlines()]
    assert titles == [title for title, _, _ in CASES]
    assert len(titles) >= 40


@pytest.mark.integration
def test_any_csv_that_pandas_reads_works_or_gives_one_line(
    model, monkeypatch, capsys, tmp_path
):
    """Odd but readable tables: what one meets in the wild."""
    monkeypatch.chdir(tmp_path)
    odd = [
        "a,outcome\n1,x\n,y\n2,x\n3,y\n",
        "a,outcome\r\n1,x\r\n5,y\r\n",
        '"a","outcome"\n"1,5","x"\n"2,5","y"\n',
        "\ufeffa,outcome\n1,x\n2,y\n",
        "\n\na,outcome\n\n1,x\n\n2,y\n",
        'a,outcome\n"line\nbreak",x\nother,y\n',
        "a,outcome\n1,x\n2\n3,y\n",
        " a , outcome \n 1 , x \n 2 , y \n",
        "a,outcome\n1e308,x\n-1e308,y\n",
        "outcome,a\nTrue,1\nFalse,2\n",
        "a,outcome\n#,x\n!,y\n",
    ]
    for text in odd:
        Path("odd.csv").write_text(text)
        assert not pd.read_csv("odd.csv", skipinitialspace=True).empty
        Path("new.cirm").unlink(missing_ok=True)
        status, error = run(
            "fit odd.csv --target outcome --model new.cirm --set epochs=1 "
            "--set hidden=2 --report page.html",
            monkeypatch,
            capsys,
        )
        assert status in (0, 2), text
        if status == 2:
            assert error.startswith("cirm: ") and error.count("\n") == 1
