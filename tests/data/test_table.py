"""Tables of users: read, split into environments, encoded by the first one alone."""

import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirm.data import rows
from cirm.data.user_data import Table
from tests.data.sentences import has_remedy

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


def prepare(frame, target, environment="", **settings):
    return Table(target=target, environment=environment, **settings).prepare_data(frame)


def encoding(prepared):
    return prepared.schema.treatment.encoding


def names(environments):
    return [environment.name for environment in environments]


def clinics(folder, **settings):
    path = written(folder)
    return Table(path, **{"target": "ill", "environment": "site", **settings})


def test_a_column_splits_a_file_into_environments_in_order_of_appearance(tmp_path):
    problem = clinics(tmp_path).draw_problem((0, 1))
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
    problem = Table(written(tmp_path, text), "y", "e", test="none").draw_problem((0,))
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
    problem = clinics(tmp_path, test=test).draw_problem((0,))
    assert (names(problem.train), names(problem.test)) == (train, unseen)


def test_without_an_environment_column_each_file_is_one(tmp_path):
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "north.csv")
    two = written(tmp_path, "y\ta\n1\t5\n0\t3\n", "south.tsv")
    problem = Table(f"{one}, {two}", "y").draw_problem((0,))
    assert (names(problem.train), names(problem.test)) == (["north"], ["south"])
    assert problem.test[0].inputs.tolist() == [[3], [1]]
    assert Table(one, "y").draw_problem((0,)).test == ()


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path):
    (tmp_path / "b").mkdir()
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "data.csv")
    two = written(tmp_path / "b", "a,y\n1,0\n3,1\n", "data.csv")
    assert names(Table(f"{one},{two}", "y", test="none").draw_problem((0,)).train) == [
        one,
        two,
    ]


def test_an_environment_may_lie_in_several_files(tmp_path):
    one = written(tmp_path, "e,a,y\nm,1,0\nn,3,1\n", "one.csv")
    two = written(tmp_path, "e,a,y\nn,1,0\nm,3,1\n", "two.csv")
    problem = Table(f"{one},{two}", "y", "e").draw_problem((0,))
    assert problem.train[0].inputs.tolist() == [[-1], [1]]
    assert problem.test[0].targets.tolist() == [1, 0]


def test_other_environments_never_change_how_the_first_is_encoded(tmp_path):
    plain = clinics(tmp_path).draw_problem((0,)).train[0]
    text = CLINICS.replace("south,40,f", "south,9e9,q").replace("west,99,f", "west,,?")
    other = Table(written(tmp_path, text), "ill", "site").draw_problem((0,)).train[0]
    assert other.inputs.tolist() == plain.inputs.tolist()


def test_the_first_environment_is_the_first_that_is_not_held_out(tmp_path):
    problem = clinics(tmp_path, test="north").draw_problem((0,))
    ages = problem.train[0].inputs[:, 0]
    assert ages.tolist() == [-1, 1]


def test_a_data_frame_is_encoded_like_a_file(tmp_path):
    dataset = clinics(tmp_path)
    found = prepare(pd.read_csv(dataset.path), "ill", "site")
    for one, two in zip(
        found.problem.train, dataset.draw_problem((0,)).train, strict=True
    ):
        assert one.inputs.tolist() == two.inputs.tolist()
        assert one.targets.tolist() == two.targets.tolist()
    assert found.schema == dataset.prepare_data().schema


def test_a_parquet_file_is_encoded_like_text(tmp_path):
    dataset = clinics(tmp_path)
    pd.read_csv(dataset.path).to_parquet(tmp_path / "clinics.parquet")
    other = Table(str(tmp_path / "clinics.parquet"), "ill", "site")
    assert other.prepare_data().schema == dataset.prepare_data().schema
    assert names(other.draw_problem((0,)).train) == ["north", "south"]


def test_a_parquet_file_with_damaged_text_is_refused(tmp_path):
    import pyarrow
    from pyarrow.parquet import write_table

    ends = pyarrow.array([0, 2, 5, 7], pyarrow.int32()).buffers()[1]
    text = pyarrow.py_buffer(b"ab\xff\xfe1cd")  # the second of three cells is damaged
    cells = pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, ends, text])
    write_table(pyarrow.table({"a": cells, "y": [0, 1, 0]}), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "not a readable Parquet file .*Invalid UTF8")


def test_parquet_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(tmp_path / "a.parquet", r"needs the package pyarrow\. .*cirm\[parquet\]")


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
def test_the_task_is_detected_unless_given(tmp_path, cells, task, classes):
    frame = pd.DataFrame({"a": [1, 2, 3], "y": cells})
    path = tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    table = Table(str(path), "y", task=task)
    assert table.draw_problem((0,)).train[0].task.classes == classes
    first = table.describe().splitlines()[0]
    assert first.startswith("classification" if classes else "regression")
    assert ("(detected)" in first) == (task == "auto")


def test_a_regression_target_is_scaled_by_the_first_environment_unless_refused():
    frame = pd.DataFrame(
        {"e": list("aabb"), "a": [1, 2, 3, 4], "y": [100.5, 300.5, 700.5, 300.5]}
    )
    found = prepare(frame, "y", "e")
    assert found.problem.train[0].targets.tolist() == [-1, 1]
    assert found.problem.test[0].targets.tolist() == [5, 1]
    centre, scale = found.schema.target.centre, found.schema.target.scale
    assert (centre, scale) == pytest.approx((200.5, 100))
    plain = prepare(frame, "y", "e", standardise=False).problem
    assert plain.test[0].targets.tolist() == [700.5, 300.5]


def test_columns_can_be_left_out_or_declared_to_be_codes():
    frame = pd.DataFrame({"id": [1, 2], "code": [7, 8], "y": [0, 1]})
    found = prepare(frame, "y", categories=("code",), ignore=("id",))
    assert encoding(found).features == ("code=7", "code=8", "code: other")


def test_row_numbers_without_a_name_are_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1, 3], "y": [0, 1]})
    frame.to_csv(tmp_path / "a.csv")
    assert encoding(Table(str(tmp_path / "a.csv"), "y").prepare_data()).features == (
        "a",
    )


def test_it_says_what_it_found_and_does(tmp_path):
    text = clinics(tmp_path, ignore=("sex",)).describe()
    assert text.splitlines() == [
        "classification (detected), 2 classes: no, yes",
        "inputs: 1",
        "train: north (2 examples), south (2 examples)",
        "test: west (2 examples)",
        "ignored as requested: sex",
        "columns, with means and categories of the environment north:",
        "age: number (mean 40, standard deviation 10)",
    ]


def test_it_says_the_units_of_a_regression_target(tmp_path):
    path = written(tmp_path, "a,y\n1,0.5\n2,2.5\n")
    text = Table(path, "y", task="regression").describe()
    assert "target: y, standardised (mean 1.5, standard deviation 1)" in text


def test_rows_on_disk_are_the_same_for_every_seed(tmp_path, monkeypatch):
    small = clinics(tmp_path).draw_problem((0, 1))
    monkeypatch.setattr(rows, "MEMORY_BYTES", 10)
    large = clinics(tmp_path).draw_problem((0, 1))
    assert large.train[0].inputs.shape == (2, 2, 4)
    for one, other in zip(small.train, large.train, strict=True):
        assert one.take_all(2).x.tolist() == other.take_all(2).x.tolist()
        assert one.take_all(2).y.tolist() == other.take_all(2).y.tolist()


def refused(path, message, kind=ValueError, **settings):
    with pytest.raises(kind, match=message) as caught:
        Table(str(path), **{"target": "y", **settings}).draw_problem((0,))
    assert has_remedy(caught.value)


GAP = r"file '.*', row 2: "


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, r"clinics\.csv': the file is empty. Its first line must name"),
        ("a,y\n", {}, "there are no rows below the header"),
        ("a,b\n1,2\n", {}, r"clinics\.csv': there is no column 'y'. .* are 'a', 'b';"),
        ("a,y\n1,0\n", {"environment": "e"}, "no column 'e'. The columns are 'a', 'y'"),
        ("a,y\n1,0\n", {"ignore": ("id",)}, "no column 'id'. The columns are 'a', 'y'"),
        (
            "a,y\n1,0\n",
            {"target": ""},
            "table: the column to predict is not given. Name",
        ),
        ("a,a,y\n1,2,0\n", {}, "two columns are called 'a'. Rename one"),
        (",y\n5,0\n", {}, "column 1 has no name. Give every"),
        ("a,,y\n5,1,0\n", {}, "column 2 has no name. Give every"),
        (
            "a|y\n1|0\n",
            {},
            "the header 'a.y' is read as a single column. Separate .* with ','",
        ),
        ("a,y\n1,0\n1,2,3\n", {}, r"does not match the header \(Expected 2 fields"),
        ('a,y\n"1,0\n', {}, r"does not match the header \(EOF inside string"),
        (
            "a,y\n1,0\n2,\n3,NA\n",
            {},
            GAP + "the target in column 'y' is missing .in 2 rows",
        ),
        (
            "a,y\n1,0\n2,1.5\n3,x\n",
            {},
            "row 3: column 'y' .* use --task classification",
        ),
        (
            "a,y\n1,0\n2,x\n",
            {"task": "regression"},
            GAP + "column 'y' has the value 'x'",
        ),
        (
            "a,y\n1,.5\n2,inf\n",
            {},
            GAP + "column 'y' has the value 'inf', .* not a finite",
        ),
        ("a,y\n1,1\n2,1\n", {}, "the target is '1' in every row, .* --classes a,b"),
        ("a,y\n1,2024-01-01\n2,2024-01-02\n", {}, "'y': the target contains dates"),
        (
            "a,y\n1,0\nx,1\n2,1\n",
            {},
            GAP + "column 'a' .* 'x', .* --category a to treat",
        ),
        ("a,y\n5,0\n5,1\n", {}, "'clinics': no column besides the target can be used"),
        ("y\n0\n1\n", {}, r"used for prediction \(there is no other column\)"),
        (
            "e,a,y\nm,1,0\n,2,1\n",
            {"environment": "e"},
            GAP + "column 'e' .* not the name of",
        ),
        ("a,y\n1,0\n2,1\n", {"test": "z"}, "no environment 'z', .* more of clinics"),
        ("a,y\n1,0\n2,1\n", {"test": "clinics"}, "holds out every environment. Leave"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(tmp_path, text, settings, message):
    refused(written(tmp_path, text), message, **settings)


def test_text_in_a_number_column_of_a_later_environment_is_named(tmp_path):
    one = written(tmp_path, "a,y\n1,0\n3,1\n", "one.csv")
    two = written(tmp_path, "a,y\n1,0\nold,1\n", "two.csv")
    refused(
        f"{one},{two}",
        r"two\.csv', row 2: column 'a' has the value 'old', which is not a number",
    )


def test_files_with_different_columns_are_refused(tmp_path):
    one = written(tmp_path, "a,b,y\n1,2,0\n", "one.csv")
    two = written(tmp_path, "a,c,y\n1,2,0\n", "two.csv")
    refused(
        f"{one},{two}",
        r"two\.csv': the columns of this file differ from those of .*"
        r"one\.csv': this file lacks 'b' and "
        "also has 'c'",
    )


def test_files_that_are_no_tables_are_refused(tmp_path):
    refused("", "table: no file is given. Set path")
    refused(tmp_path / "gone.csv", "there is no file .*gone", FileNotFoundError)
    refused(
        written(tmp_path, "", "a.doc"), r"file that ends in '\.doc'. Use one of \.csv, "
    )
    refused(written(tmp_path, "a,y", "a.parquet"), "not a readable Parquet file")
    (tmp_path / "latin.csv").write_bytes("ä,y\n1,0\n".encode("latin-1"))
    refused(tmp_path / "latin.csv", "the file is not text in the encoding UTF-8")


def test_a_data_frame_without_rows_is_refused():
    with pytest.raises(ValueError, match="table: the data have no rows"):
        prepare(pd.DataFrame({"a": [], "y": []}), "y")


def test_messages_name_rows_of_a_data_frame_by_their_labels():
    frame = pd.DataFrame({"a": [1, 2], "y": [0, None]}, index=["first", "second"])
    with pytest.raises(ValueError, match="row second: the target in column 'y' is"):
        prepare(frame, "y")


def test_names_of_columns_may_be_numbers():
    frame = pd.DataFrame(np.array([[1.0, 0.0], [3.0, 1.0]]))
    assert encoding(prepare(frame, "1")).features == ("0",)


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
        problem = Table(path, "y", "e", test="none").draw_problem((0,))
    except ValueError as error:
        assert has_remedy(error)
    else:
        assert all(environment.inputs.isfinite().all() for environment in problem.train)
