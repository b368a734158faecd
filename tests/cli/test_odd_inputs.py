"""Odd inputs that once hung, crashed or lost something, through the commands."""

import bz2
import gzip
import json
import lzma
import os

import numpy as np
import pandas as pd
import pytest

QUICK = ("--learner", "erm", "--set", "epochs=2", "--set", "hidden=4")


def draw_table(rows, seed):
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.5
    frame = pd.DataFrame({"age": rng.normal(50, 9, rows), "crp": rng.normal(size=rows)})
    return frame.round(2).assign(outcome=np.where(y, "yes", "no"))


@pytest.fixture
def folder(cirm, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 0), ("b", 1)):
        draw_table(60, seed).to_csv(f"{name}.csv", index=False)
    words = ("fit", "a.csv", "--target", "outcome", "--model", "m.cirm")
    assert cirm(*words, *QUICK)[0] == 0
    return tmp_path


@pytest.mark.parametrize("rows", [1, 30])
def test_rows_of_one_class_can_be_evaluated(cirm, folder, rows):
    table = draw_table(90, 2)
    table[table["outcome"] == "no"][:rows].to_csv("c.csv", index=False)
    words = ("evaluate", "c.csv", "--model", "m.cirm")
    status, printed, _ = cirm(*words, "--report", "page.html")
    assert status == 0 and "class yes" in printed
    report = json.loads(cirm(*words, "--json")[1])
    assert report["classes"]["yes"]["rows"] == 0
    assert report["classes"]["no"]["rows"] == rows


@pytest.mark.parametrize("command", ["update", "evaluate"])
def test_data_without_a_row_that_counts_are_refused(cirm, folder, command):
    draw_table(60, 1).assign(w=0).to_csv("c.csv", index=False)
    status, _, error = cirm(command, "c.csv", "--model", "m.cirm", "--weight", "w")
    assert status == 2
    assert "column 'w': the weight of every row is zero." in error


def test_a_pipe_is_refused_instead_of_waited_for(cirm, folder):
    os.mkfifo("p.csv")
    os.mkfifo("p.cirm")
    status, _, error = cirm("evaluate", "p.csv", "--model", "m.cirm")
    assert status == 2
    assert "'p.csv' is not a regular file. Save the data in a file, or use -" in error
    status, _, error = cirm("inspect", "p.cirm")
    assert status == 2 and "model file 'p.cirm' is a device or a pipe" in error


def test_a_compressed_table_is_refused_with_what_to_do(cirm, folder):
    (folder / "b.csv.gz").write_bytes(gzip.compress((folder / "b.csv").read_bytes()))
    status, _, error = cirm("evaluate", "b.csv.gz", "--model", "m.cirm")
    assert status == 2
    assert "file 'b.csv.gz': the file is compressed. Unpack it first" in error


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_table_is_told_by_its_first_bytes(cirm, folder, pack):
    (folder / "packed.csv").write_bytes(pack((folder / "b.csv").read_bytes()))
    status, _, error = cirm("evaluate", "packed.csv", "--model", "m.cirm")
    assert status == 2
    assert "file 'packed.csv': the file is compressed. Unpack it first" in error


def test_a_link_to_a_model_stays_a_link(cirm, folder):
    (folder / "models").mkdir()
    os.rename("m.cirm", "models/m.cirm")
    os.symlink("models/m.cirm", "m.cirm")
    before = (folder / "models" / "m.cirm").read_bytes()
    assert cirm("update", "b.csv", "--model", "m.cirm")[0] == 0
    assert os.path.islink("m.cirm")
    assert (folder / "models" / "m.cirm").read_bytes() != before
    os.symlink("nowhere/n.cirm", "n.cirm")
    words = ("fit", "a.csv", "--target", "outcome", "--model", "n.cirm", *QUICK)
    status, _, error = cirm(*words)
    assert status == 2 and "nowhere' does not exist. Create the folder first" in error
    assert os.path.islink("n.cirm")
