"""Tables of users: read, split into environments, encoded by the first one alone."""

import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm.data.table import Table, from_frame

CLINICS = """site,age,sex,ill
north,30,f,no
north,50,m,yes
south,40,f,no
south,41,x,yes
west,99,f,yes
west,1,m,no
"""


def written(folder, text=CLINICS, name="clinics.csv"):
    path = folder / name
    path.write_text(text)
    return str(path)


def names(environments):
    return [environment.name for environment in environments]


def clinics(folder, **settings):
    path = written(folder)
    return Table(path, **{"target": "ill", "environment": "site", **settings})


def test_a_column_splits_a_file_into_environments_in_order_of_appearance(tmp_path):
    problem = clinics(tmp_path).draw((0, 1))
    assert names(problem.train) == ["north", "south"]
    assert names(problem.test) == ["west"]
    first = problem.train[0]
    assert not first.replicated
    assert first.task.classes == ("no", "yes")
    assert first.targets.tolist() == [0, 1]
    assert first.inputs.tolist() == [[-1, 1, 0, 0], [1, 0, 1, 0]]
    south = problem.train[1].inputs.tolist()
    assert south[1] == [pytest.approx(0.1), 0, 0, 1]


def test_rows_of_an_environment_need_not_be_neighbours(tmp_path):
    text = "e,a,y\n2,1,0\n1,2,1\n2,3,1\n1,5,0\n"
    problem = Table(written(tmp_path, text), "y", "e", test="none").draw((0,))
    assert names(problem.train) == ["2", "1"]
    assert problem.train[0].targets.tolist() == [0, 1]
    assert problem.train[1].inputs.tolist() == [[0], [3]]


@pytest.mark.parametrize(
    ("test", "train", "unseen"),
    [
        ("north", ["south", "west"], ["north"]),
        ("west,south", ["north"], ["south", "west"]),
        ("none", ["north", "south", "west"], []),
    ],
)
def test_the_unseen_environments_are_chosen_by_name(tmp_path, test, train, unseen):
    problem = clinics(tmp_path, test=test).draw((0,))
    assert (names(problem.train), names(problem.test)) == (train, unseen)


def test_without_an_environment_column_each_file_is_one(tmp_path):
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "north.csv")
    two = written(tmp_path, "y\ta\n1\t5\n0\t3\n", "south.tsv")
    problem = Table(f"{one}, {two}", "y").draw((0,))
    assert (names(problem.train), names(problem.test)) == (["north"], ["south"])
    assert problem.test[0].inputs.tolist() == [[3], [1]]
    assert Table(one, "y").draw((0,)).test == ()


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path):
    (tmp_path / "b").mkdir()
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "data.csv")
    two = written(tmp_path / "b", "a,y\n1,0\n3,1\n", "data.csv")
    assert names(Table(f"{one},{two}", "y", test="none").draw((0,)).train) == [one, two]


def test_an_environment_may_lie_in_several_files(tmp_path):
    one = written(tmp_path, "e,a,y\nm,1,0\nn,3,1\n", "one.csv")
    two = written(tmp_path, "e,a,y\nn,1,0\nm,3,1\n", "two.csv")
    problem = Table(f"{one},{two}", "y", "e").draw((0,))
    assert problem.train[0].inputs.tolist() == [[-1], [1]]
    assert problem.test[0].targets.tolist() == [1, 0]


def test_other_environments_never_change_how_the_first_is_encoded(tmp_path):
    plain = clinics(tmp_path).draw((0,)).train[0]
    text = CLINICS.replace("south,40,f", "south,9e9,q").replace("west,99,f", "west,,?")
    other = Table(written(tmp_path, text), "ill", "site").draw((0,)).train[0]
    assert other.inputs.tolist() == plain.inputs.tolist()


def test_the_first_environment_is_the_first_that_is_not_held_out(tmp_path):
    problem = clinics(tmp_path, test="north").draw((0,))
    ages = problem.train[0].inputs[:, 0]
    assert ages.tolist() == [-1, 1]


def test_a_data_frame_is_encoded_like_a_file(tmp_path):
    dataset = clinics(tmp_path)
    found = from_frame(pd.read_csv(dataset.path), "ill", "site")
    for one, two in zip(found.problem.train, dataset.draw((0,)).train, strict=True):
        assert one.inputs.tolist() == two.inputs.tolist()
        assert one.targets.tolist() == two.targets.tolist()
    assert found.encoding == dataset.read().encoding


def test_a_parquet_file_is_encoded_like_text(tmp_path):
    dataset = clinics(tmp_path)
    pd.read_csv(dataset.path).to_parquet(tmp_path / "clinics.parquet")
    other = Table(str(tmp_path / "clinics.parquet"), "ill", "site")
    assert other.read().encoding == dataset.read().encoding
    assert names(other.draw((0,)).train) == ["north", "south"]


def test_parquet_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(tmp_path / "a.parquet", r"needs the extra cirm\[parquet\]")


@pytest.mark.parametrize(
    ("cells", "task", "classes"),
    [
        (["0", "1", "1"], "auto", ("0", "1")),
        (["10", "9", "10"], "auto", ("9", "10")),
        (["1.0", "0.0", "1.0"], "auto", ("0", "1")),
        (["True", "False", "True"], "auto", ("False", "True")),
        (["none", "mild", "mild"], "auto", ("mild", "none")),
        (["0.5", "1", "2"], "auto", ()),
        (["0", "1", "1"], "regression", ()),
        (["1", "2", "x"], "classification", ("1", "2", "x")),
    ],
)
def test_the_task_is_detected_unless_given(cells, task, classes):
    frame = pd.DataFrame({"a": [1, 2, 3], "y": cells})
    found = from_frame(frame, "y", task=task)
    assert found.problem.train[0].task.classes == classes
    said = found.description.splitlines()[0]
    assert said.startswith("classification" if classes else "regression")
    assert ("(detected)" in said) == (task == "auto")


def test_a_regression_target_is_scaled_by_the_first_environment_unless_refused():
    frame = pd.DataFrame(
        {"e": list("aabb"), "a": [1, 2, 3, 4], "y": [100.5, 300.5, 700.5, 300.5]}
    )
    found = from_frame(frame, "y", "e")
    assert found.problem.train[0].targets.tolist() == [-1, 1]
    assert found.problem.test[0].targets.tolist() == [5, 1]
    centre, scale = found.target.centre, found.target.scale
    assert (centre, scale) == pytest.approx((200.5, 100))
    plain = from_frame(frame, "y", "e", standardise=False).problem
    assert plain.test[0].targets.tolist() == [700.5, 300.5]


def test_columns_can_be_left_out_or_declared_to_be_codes():
    frame = pd.DataFrame({"id": [1, 2], "code": [7, 8], "y": [0, 1]})
    found = from_frame(frame, "y", categories=["code"], ignore=["id"])
    assert found.encoding.features == ("code=7", "code=8", "code: other")


def test_row_numbers_without_a_name_are_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1, 3], "y": [0, 1]})
    frame.to_csv(tmp_path / "a.csv")
    assert Table(str(tmp_path / "a.csv"), "y").read().encoding.features == ("a",)


def test_it_says_what_it_found_and_does(tmp_path):
    text = clinics(tmp_path, ignore=("sex",)).describe()
    assert text.splitlines() == [
        "classification (detected), 2 classes: no, yes",
        "inputs: 1",
        "train: north (2 examples), south (2 examples)",
        "unseen: west (2 examples)",
        "left out as asked: sex",
        "columns, as north has them:",
        "age: number, mean 40, deviation 10",
    ]


def test_it_says_the_units_of_a_regression_target():
    frame = pd.DataFrame({"a": [1, 2], "y": [0.5, 2.5]})
    text = from_frame(frame, "y", task="regression").description
    assert "target: y, in deviations of 1 from 1.5" in text


def refused(path, message, kind=ValueError, **settings):
    with pytest.raises(kind, match=message) as caught:
        Table(str(path), **{"target": "y", **settings}).draw((0,))
    assert "\n" not in str(caught.value)


GAP = r"file '.*', row 2, column"


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, r"clinics\.csv': it must have a header; got an empty file"),
        ("a,y\n", {}, "there must be rows below the header; got none"),
        ("a,b\n1,2\n", {}, r"clinics\.csv': it must have the column 'y'; got 'a', 'b'"),
        ("a,y\n1,0\n", {"environment": "e"}, "must have the column 'e'; got 'a', 'y'"),
        ("a,y\n1,0\n", {"ignore": ("id",)}, "must have the column 'id'; got 'a', 'y'"),
        ("a,y\n1,0\n", {"target": ""}, "table: target must name a column; got ''"),
        ("a,a,y\n1,2,0\n", {}, "columns must have different names; got 'a' twice"),
        (",y\n5,0\n", {}, "every column must have a name; got none for column 1"),
        ("a,,y\n5,1,0\n", {}, "every column must have a name; got none for column 2"),
        ("a;y\n1;0\n", {}, "must be separated by ','; got 'a;y'"),
        ("a,y\n1,0\n1,2,3\n", {}, "rows must be as the header; got Expected 2 fields"),
        ('a,y\n"1,0\n', {}, "rows must be as the header; got EOF inside string"),
        ("a,y\n1,0\n2,\n3,NA\n", {}, GAP + " 'y': the target .*; got 2 missing values"),
        ("a,y\n1,0\n2,1.5\n3,x\n", {}, "row 3, column 'y': .* the task be classif"),
        ("a,y\n1,0\n2,x\n", {"task": "regression"}, GAP + " 'y': it must be a number"),
        ("a,y\n1,.5\n2,inf\n", {}, GAP + " 'y': it must be a finite number; got 'inf'"),
        ("a,y\n1,1\n2,1\n", {}, "two or more classes; got only '1' in all 2"),
        ("a,y\n1,2024-01-01\n2,2024-01-02\n", {}, "be numbers or classes; got dates"),
        ("a,y\n1,0\nx,1\n2,1\n", {}, GAP + " 'a': it must be a number, like most"),
        ("a,y\n5,0\n5,1\n", {}, "'clinics': a column besides the target must vary"),
        ("y\n0\n1\n", {}, "'clinics': a column besides the target must vary"),
        ("e,a,y\nm,1,0\n,2,1\n", {"environment": "e"}, GAP + " 'e': it must be an"),
        ("a,y\n1,0\n2,1\n", {"test": "z"}, "among clinics; got 'z'"),
        ("a,y\n1,0\n2,1\n", {"test": "clinics"}, "must leave an environment to learn"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(tmp_path, text, settings, message):
    refused(written(tmp_path, text), message, **settings)


def test_text_in_a_number_column_of_a_later_environment_is_named(tmp_path):
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "one.csv")
    two = written(tmp_path, "a,y\n1,0\nold,1\n", "two.csv")
    refused(f"{one},{two}", r"two\.csv', row 2, column 'a': it must be a number; got")


def test_files_with_different_columns_are_refused(tmp_path):
    one = written(tmp_path, "a,b,y\n1,2,0\n", "one.csv")
    two = written(tmp_path, "a,c,y\n1,2,0\n", "two.csv")
    refused(
        f"{one},{two}", r"two\.csv': .* those of .*; got none called 'b' and also 'c'"
    )


def test_files_that_are_no_tables_are_refused(tmp_path):
    refused("", "table: path must name one or more files; got ''")
    refused(tmp_path / "gone.csv", "path must exist; got", FileNotFoundError)
    refused(written(tmp_path, "", "a.doc"), r"must end in \.csv, .*; got '\.doc'")
    refused(written(tmp_path, "a,y", "a.parquet"), "it must be a Parquet file; got")
    (tmp_path / "latin.csv").write_bytes("ä,y\n1,0\n".encode("latin-1"))
    refused(tmp_path / "latin.csv", "it must be UTF-8 text; got other bytes")


def test_a_data_frame_without_rows_is_refused():
    with pytest.raises(ValueError, match="table: there must be rows; got none"):
        from_frame(pd.DataFrame({"a": [], "y": []}), "y")


def test_messages_name_rows_of_a_data_frame_by_their_labels():
    frame = pd.DataFrame({"a": [1, 2], "y": [0, None]}, index=["first", "second"])
    with pytest.raises(ValueError, match="row second, column 'y': the target must not"):
        from_frame(frame, "y")


def test_names_of_columns_may_be_numbers():
    frame = pd.DataFrame(np.array([[1.0, 0.0], [3.0, 1.0]]))
    assert from_frame(frame, "1").encoding.features == ("0",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("any")


CELLS = st.sampled_from(
    ["1", "2.5", "x", "", "NA", "true", "2024-01-01", '"', "é", "\0"]
)
LINES = st.lists(st.lists(CELLS, max_size=4).map(",".join), max_size=6)


@given(LINES, st.sampled_from(["e,a,y", "a,y", "y,e", "e,y,y", ""]))
def test_any_file_is_read_or_refused_in_one_sentence(folder, lines, header):
    path = written(folder, "\n".join([header, *lines]), "any.csv")
    try:
        problem = Table(path, "y", "e", test="none").draw((0,))
    except ValueError as error:
        assert "must" in str(error)
        assert "\n" not in str(error)
    else:
        assert all(environment.inputs.isfinite().all() for environment in problem.train)
