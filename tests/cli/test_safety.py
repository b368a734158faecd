"""What harms nobody: real data are accepted, and nothing private or false comes out."""

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

SETTINGS = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def write_quarter(name, seed, change):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "price": rng.normal(40, 8, 300),
            "rain": np.where(rng.random(300) < 0.7, 0.0, rng.exponential(5, 300)),
            "load": rng.normal(100, 10, 300),
            "up": rng.choice(["no", "yes"], 300),
        }
    )
    change(frame).round(3).to_csv(name, index=False)


def test_a_quarter_with_price_spikes_is_learned_without_a_word(cirm):
    write_quarter("q1.csv", 0, lambda f: f)
    spikes = lambda f: f.assign(price=f["price"].where(f.index % 20 > 0, 3000))  # noqa: E731
    write_quarter("q2.csv", 1, spikes)
    assert (
        cirm("fit", "q1.csv", "--target", "up", "--model", "m.cirm", *SETTINGS)[0] == 0
    )
    for command in ("predict", "evaluate", "update"):
        status, _, error = cirm(command, "q2.csv", "--model", "m.cirm")
        assert status == 0
        assert "unit" not in error


def test_a_dry_quarter_is_neither_empty_nor_in_another_unit(cirm):
    write_quarter("q1.csv", 0, lambda f: f)
    write_quarter("q2.csv", 1, lambda f: f.assign(rain=0.0))
    cirm("fit", "q1.csv", "--target", "up", "--model", "m.cirm", *SETTINGS)
    for command in ("predict", "evaluate", "update"):
        status, _, error = cirm(command, "q2.csv", "--model", "m.cirm")
        assert status == 0
        assert "rain" not in error


def test_a_column_without_values_is_named(cirm):
    write_quarter("q1.csv", 0, lambda f: f)
    write_quarter("q2.csv", 1, lambda f: f.assign(rain=np.nan))
    cirm("fit", "q1.csv", "--target", "up", "--model", "m.cirm", *SETTINGS)
    _, _, error = cirm("update", "q2.csv", "--model", "m.cirm")
    assert (
        "column 'rain': all values are missing. Check that the column was exported."
        in error
    )


@pytest.mark.parametrize(("factor", "status"), [(1000, 2), (2.2046, 0)])
def test_a_quarter_in_another_unit_is_refused_or_noted(cirm, factor, status):
    write_quarter("q1.csv", 0, lambda f: f)
    write_quarter("q2.csv", 1, lambda f: f.assign(load=factor * f["load"]))
    cirm("fit", "q1.csv", "--target", "up", "--model", "m.cirm", *SETTINGS)
    for command, wanted in (("predict", 0), ("update", status)):
        found, _, error = cirm(command, "q2.csv", "--model", "m.cirm")
        assert found == wanted
        assert "column 'load' seems to be in a different unit" in error
    assert cirm("update", "q2.csv", "--model", "m.cirm", "--accept-units")[0] == (
        0 if status else 2  # learned already
    )


@pytest.mark.integration
def test_a_table_of_ten_thousand_columns_takes_seconds(cirm):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(40, 10_000)).round(4)).add_prefix("gene")
    frame.assign(up=["no", "yes"] * 20).to_csv("wide.csv", index=False)
    start = time.process_time()  # unlike wall time, little changed by other processes
    words = ("fit", "wide.csv", "--target", "up", "--model", "m.cirm")
    status, _, _ = cirm(*words)
    assert status == 0
    assert time.process_time() - start < 30  # 12 s on a busy core, 87 s at first


@pytest.mark.integration
def test_a_table_of_too_many_columns_is_refused_with_what_to_do(cirm):
    header = ",".join(f"gene{n}" for n in range(50_001))
    Path("wide.csv").write_text(f"{header}\n" + f"{','.join('1' * 50_001)}\n" * 2)
    words = ("fit", "wide.csv", "--target", "gene0", "--model", "m.cirm")
    status, _, error = cirm(*words)
    assert status == 2
    assert "the table has 50,001 columns, but at most 50,000 can be used" in error
    assert not Path("m.cirm").exists()


@pytest.fixture
def guests(cirm):
    """A table with formulas in a column that is kept, and a model of it."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 9, 40), "up": ["=no", "yes"] * 20})
    frame["note"] = ["=HYPERLINK(1)", "+49 170", "-3.5", "@x", "plain\x1b[2J"] * 8
    frame.to_csv("guests.csv", index=False)
    words = ("--target", "up", "--model", "m.cirm", "--ignore", "note")
    assert cirm("fit", "guests.csv", *words, *SETTINGS)[0] == 0


@pytest.mark.parametrize("out", [(), ("--out", "p.csv"), ("--out", "p.tsv")])
def test_copied_text_is_no_formula_unless_it_is_wanted_raw(cirm, guests, out):
    words = ("predict", "guests.csv", "--model", "m.cirm", "--keep", "note", *out)
    for raw in (False, True):
        status, text, _ = cirm(*words, *(["--raw"] if raw else []))
        assert status == 0
        text = Path(out[1]).read_text() if out else text
        separator = "\t" if "p.tsv" in out else ","
        cells = [line.split(separator)[0] for line in text.splitlines()[1:6]]
        escaped = ["'=HYPERLINK(1)", "'+49 170", "-3.5", "'@x", "plain[2J"]
        plain = ["=HYPERLINK(1)", "+49 170", "-3.5", "@x", "plain\x1b[2J"]
        assert cells == (plain if raw else escaped)
        labels = {line.split(separator)[1] for line in text.splitlines()[1:]}
        assert labels <= ({"=no", "yes"} if raw else {"'=no", "yes"})
        for name in out[1:]:
            Path(name).unlink()


def write_patients(name, seed):
    rng = np.random.default_rng(seed)
    people = [f"{f} {s}" for f in ("Anna", "Ben", "Carl") for s in ("Meyer", "Adam")]
    frame = pd.DataFrame(
        {
            "age": rng.normal(50, 9, 60).round(1),
            "doctor": rng.choice(people, 60, p=[0.5, 0.3, 0.05, 0.05, 0.05, 0.05]),
            "phone": rng.choice([f"+49 170 55512{n}" for n in range(6)], 60),
            "smoker": rng.choice(["never", "current"], 60),
            "up": rng.choice(["no", "yes"], 60),
        }
    )
    frame.loc[0, "doctor"] = "Rare Person"
    frame.to_csv(name, index=False)


def test_rare_names_and_telephone_numbers_do_not_enter_the_model_file(cirm):
    write_patients("a.csv", 0)
    cirm("fit", "a.csv", "--target", "up", "--model", "m.cirm", *SETTINGS)
    content = Path("m.cirm").read_bytes()
    assert b"Rare Person" not in content
    assert b"55512" not in content
    assert b"Anna Meyer" not in content  # a doctor is a person, however frequent
    assert b"current" in content
    _, text, _ = cirm("inspect", "m.cirm", "--json")
    columns = {c["name"]: c["treatment"] for c in json.loads(text)["columns"]}
    assert "6 names are hashed" in columns["phone"]
    assert "names are hashed" in columns["doctor"]
    assert "hashed" not in columns["smoker"]
    frame = pd.read_csv("a.csv", dtype=str)
    names = {*frame["doctor"], *frame["phone"], *frame["smoker"]}
    verbatim = sum(name.encode() in content for name in names)
    assert json.loads(text)["category_names"] == verbatim


def test_without_names_no_name_is_stored_and_predictions_are_the_same(cirm):
    write_patients("a.csv", 0)
    write_patients("b.csv", 1)
    for model, words in (("m.cirm", ()), ("n.cirm", ("--no-names",))):
        fit = ("fit", "a.csv", "--target", "up", "--model", model, *SETTINGS, *words)
        assert cirm(*fit)[0] == 0
        assert cirm("update", "b.csv", "--model", model)[0] == 0
    content = Path("n.cirm").read_bytes()
    assert not any(name in content for name in (b"never", b"current", b"Anna"))
    _, text, _ = cirm("inspect", "n.cirm", "--json")
    assert json.loads(text)["category_names"] == 0
    assert "0 category names" in cirm("inspect", "n.cirm")[1]
    first, second = (
        cirm("predict", "b.csv", "--model", m)[1] for m in ("m.cirm", "n.cirm")
    )
    assert first == second


def test_control_characters_in_data_do_not_reach_the_terminal(cirm):
    steering = "\x1b[2J\u202e"
    write_quarter("q1.csv", 0, lambda f: f.rename(columns={"rain": f"rain{steering}"}))
    frame = pd.read_csv("q1.csv").assign(site=f"one{steering}")
    frame["up"] = frame["up"].replace("no", f"no{steering}")
    frame.to_csv("q1.csv", index=False)
    words = ("--target", "up", "--environment", "site", "--model", "m.cirm", *SETTINGS)
    results = [
        cirm("fit", "q1.csv", *words),
        cirm("inspect", "m.cirm"),
        cirm("inspect", "m.cirm", "--json"),
        cirm("evaluate", "q1.csv", "--model", "m.cirm"),
        cirm("predict", "q1.csv", "--model", "m.cirm", "--probabilities"),
    ]
    assert [status for status, _, _ in results] == [0] * 5
    for _, out, error in results:
        assert "\x1b" not in out + error
