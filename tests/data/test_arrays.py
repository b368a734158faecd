"""Arrays of users: found by name, read safely, split into environments."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cirm import evaluate, fit, update
from cirm.data.user_data import Arrays
from tests.data.sentences import has_remedy

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])
SITES = np.array(["b", "b", "a", "a", "c", "c"])


def saved(folder, name="data.npz", **arrays):
    path = folder / name
    np.savez(path, **arrays)
    return str(path)


def names(environments):
    return [environment.name for environment in environments]


@pytest.mark.parametrize("task", ["auto", "classification"])
def test_booleans_in_one_file_are_the_classes_0_and_1_of_another(tmp_path, task):
    one = saved(tmp_path, "one.npz", X=X, y=Y)
    two = saved(tmp_path, "two.npz", X=X, y=Y.astype(bool))
    for both in (f"{one},{two}", f"{two},{one}"):
        problem = Arrays(both, task=task, test="none").draw_problem((0,))
        assert problem.train[0].task.classes == ("0", "1")
        assert all(part.targets.tolist() == Y.tolist() for part in problem.train)


def test_a_model_of_booleans_is_updated_with_0_and_1_and_vice_versa(tmp_path):
    one = saved(tmp_path, "one.npz", X=X, y=Y)
    two = saved(tmp_path, "two.npz", X=X, y=Y.astype(bool))
    settings = {"epochs": 1, "hidden": ()}
    for first, second, classes in (
        (one, two, ("0", "1")),
        (two, one, ("False", "True")),
    ):
        model = fit(first, learner="erm", settings=settings)
        model = update(model, second, again=True)
        assert model.task.classes == classes
        assert evaluate(model, second)["overall"] == evaluate(model, first)["overall"]


def test_environments_come_in_order_of_appearance_and_the_last_is_unseen(tmp_path):
    problem = Arrays(saved(tmp_path, X=X, y=Y, environment=SITES)).draw_problem((0, 1))
    assert names(problem.train) == ["b", "a"]
    assert names(problem.test) == ["c"]
    first = problem.train[0]
    assert not first.replicated
    assert first.inputs.tolist() == [[0, 1], [2, 3]]
    assert first.targets.tolist() == [0, 1]
    assert problem.train[1].take(torch.tensor([[1], [0]])).x.tolist() == [
        [[6, 7]],
        [[4, 5]],
    ]


@pytest.mark.parametrize(
    ("test", "train", "unseen"),
    [
        ("", ["b", "a"], ["c"]),
        ("b", ["a", "c"], ["b"]),
        ("c, b", ["a"], ["b", "c"]),
        ("none", ["b", "a", "c"], []),
    ],
)
def test_the_unseen_environments_are_chosen_by_name(tmp_path, test, train, unseen):
    path = saved(tmp_path, X=X, y=Y, environment=SITES)
    problem = Arrays(path, test=test).draw_problem((0,))
    assert names(problem.train) == train
    assert names(problem.test) == unseen


def test_usual_names_are_found_and_others_can_be_given(tmp_path):
    usual = saved(tmp_path, "usual.npz", inputs=X, labels=Y, env=SITES)
    own = saved(tmp_path, "own.npz", pixels=X, truth=Y, place=SITES)
    chosen = Arrays(own, inputs="pixels", targets="truth", environment="place")
    for dataset in (Arrays(usual), chosen):
        assert names(dataset.draw_problem((0,)).train) == ["b", "a"]


def test_without_an_environment_array_each_file_is_one(tmp_path):
    one = saved(tmp_path, "north.npz", X=X, y=Y)
    two = saved(tmp_path, "south, old.npz", X=X + 1, y=Y)
    alone = Arrays(two).draw_problem((0,))
    assert (names(alone.train), alone.test) == (["south, old"], ())
    (tmp_path / "south, old.npz").rename(tmp_path / "south.npz")
    both = Arrays(f"{one}, {tmp_path / 'south.npz'}").draw_problem((0,))
    assert (names(both.train), names(both.test)) == (["north"], ["south"])
    assert both.test[0].inputs[0].tolist() == [1, 2]


def test_a_file_without_environments_joins_one_that_names_them(tmp_path):
    one = saved(tmp_path, "sites.npz", X=X, y=Y, environment=SITES)
    two = saved(tmp_path, "more.npz", X=X, y=Y)
    problem = Arrays(f"{one},{two}").draw_problem((0,))
    assert names(problem.train) == ["b", "a", "c"]
    assert names(problem.test) == ["more"]


def test_bytes_and_other_numbers_can_be_mixed(tmp_path):
    one = saved(tmp_path, "bytes.npz", X=np.full((6, 2), 255, np.uint8), y=Y)
    two = saved(tmp_path, "floats.npz", X=X, y=Y)
    problem = Arrays(f"{one},{two}").draw_problem((0,))
    assert problem.train[0].inputs.unique().tolist() == [1.0]
    assert problem.test[0].inputs.tolist() == X.tolist()


def test_numbers_of_environments_become_names_without_points(tmp_path):
    path = saved(tmp_path, X=X, y=Y, environment=np.array([2.0, 2, 1, 1, 10, 10]))
    assert names(Arrays(path, test="none").draw_problem((0,)).train) == ["2", "1", "10"]


def test_bytes_are_divided_by_255_and_other_numbers_are_not(tmp_path):
    images = np.full((6, 1, 2, 2), 255, np.uint8)
    for values, expected in ((images, 1.0), (images.astype(">i4"), 255.0)):
        environment = (
            Arrays(saved(tmp_path, X=values, y=Y)).draw_problem((0, 1)).train[0]
        )
        inputs = environment.take_all(2).x
        assert inputs.shape == (2, 6, 1, 2, 2)
        assert inputs.unique().tolist() == [expected]


@pytest.mark.parametrize(
    ("targets", "task", "classes", "expected"),
    [
        ([3, 1, 3, 1, 1, 3], "auto", ("1", "3"), [1, 0, 1, 0, 0, 1]),
        ([2, 10, 2, 10, 2, 2], "auto", ("2", "10"), [0, 1, 0, 1, 0, 0]),
        (list("nyynyn"), "auto", ("n", "y"), [0, 1, 1, 0, 1, 0]),
        ([b"n", b"y"] * 3, "auto", ("n", "y"), [0, 1] * 3),
        ([True, False] * 3, "auto", ("False", "True"), [1, 0] * 3),
        ([0.5, 1, 2, 3, 4, 5], "auto", (), [0.5, 1, 2, 3, 4, 5]),
        ([[1.0], [0.0]] * 3, "auto", ("0", "1"), [1, 0] * 3),
        ([0, 1, 0, 1, 1, 0], "regression", (), [0, 1, 0, 1, 1, 0]),
    ],
)
def test_the_task_is_detected_unless_given(tmp_path, targets, task, classes, expected):
    path = saved(tmp_path, X=X, y=np.array(targets))
    environment = Arrays(path, task=task).draw_problem((0,)).train[0]
    assert environment.task.classes == classes
    assert environment.targets.tolist() == expected


def test_eleven_different_whole_numbers_are_values_unless_called_classes(tmp_path):
    path = saved(tmp_path, X=np.ones((11, 2)), y=np.arange(11))
    assert Arrays(path).draw_problem((0,)).train[0].task.kind == "regression"
    classes = (
        Arrays(path, task="classification").draw_problem((0,)).train[0].task.classes
    )
    assert classes == tuple(map(str, range(11)))


def test_it_says_what_it_found(tmp_path):
    path = saved(tmp_path, X=X, y=Y, environment=SITES)
    assert Arrays(path).describe().splitlines() == [
        "classification (detected), 2 classes: 0, 1",
        "inputs: 2",
        "train: b (2 examples), a (2 examples)",
        "test: c (2 examples)",
    ]


@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({"y": Y}, {}, "there is no array X or x or inputs .* file are: y[.]"),
        ({"X": X}, {}, "there is no array y or .* file are: X[.]"),
        ({"X": X, "y": Y}, {"environment": "site"}, "no array site. .* are: X, y[.]"),
        ({"X": X, "y": Y[:5]}, {}, r"the target has the shape \[5\], but there are 6"),
        (
            {"X": X, "y": Y, "env": Y[:2]},
            {},
            r"the environment has the shape \[2\], but there are 6",
        ),
        (
            {"X": X[:, 0], "y": Y},
            {},
            r"has the shape \[6\], but needs two or more axes. Save one row",
        ),
        ({"X": X[:0], "y": Y[:0]}, {}, r"has no rows. Save one row for each example"),
        (
            {"X": X.astype(str), "y": Y},
            {},
            "the type <U32. Save real numbers",
        ),
        (
            {"X": X * 1j, "y": Y},
            {},
            "'X': .* type complex128 is neither numeric nor text",
        ),
        (
            {"X": X * np.nan, "y": Y},
            {},
            r"the inputs contain NaN or infinite values \(12 in total\)",
        ),
        (
            {"X": X * 1e300, "y": Y},
            {},
            r"the inputs contain NaN or infinite values \(11 in total\)",
        ),
        ({"X": X, "y": Y * 0}, {}, "the target is '0' in every row"),
        (
            {"X": X, "y": Y / np.nan},
            {},
            "row 1: the target .* is missing .in 6 rows",
        ),
        ({"X": X, "y": SITES}, {"task": "regression"}, "'b', which is not a number"),
        (
            {"X": X, "y": Y / 3},
            {"task": "classification"},
            "row 2: .* neither a whole number nor text. Use --task regression",
        ),
        (
            {"X": X, "y": np.full(6, 2**31, "u4").view("<U1")},
            {},
            "'y': the array cannot be read .its text .* code point 2147483648",
        ),
        ({"X": X, "y": Y}, {"test": "d"}, "no environment 'd', .* more of data"),
        ({"X": X, "y": Y}, {"test": "data"}, "holds out every environment"),
        (
            {"X": X, "y": Y},
            {"gigabytes": 1e-7},
            "GB of memory, but the limit is 1e-07 GB. Raise",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays, settings, message):
    with (
        pytest.raises(ValueError, match=message) as caught,
        np.errstate(all="ignore"),
    ):
        Arrays(saved(tmp_path, **arrays), **settings).draw_problem((0,))
    assert has_remedy(caught.value)


def test_files_with_different_features_are_refused(tmp_path):
    one = saved(tmp_path, "a.npz", X=X, y=Y)
    two = saved(tmp_path, "b.npz", X=X[:, :1], y=Y)
    with pytest.raises(ValueError, match=r"b\.npz'.* shape \[1\], .* was \[2\]"):
        Arrays(f"{one},{two}").draw_problem((0,))


def test_paths_that_are_no_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="arrays: no file is given"):
        Arrays().draw_problem((0,))
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*gone\.npz'"):
        Arrays(str(tmp_path / "gone.npz")).draw_problem((0,))
    with pytest.raises(ValueError, match=r"is a folder\. Set path to a file"):
        Arrays(str(tmp_path)).draw_problem((0,))


def test_pickled_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    path = tmp_path / "trap.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|O", "fortran_order": False, "shape": (6, 2)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", header.getvalue() + pickle.dumps(Trap()))
        archive.writestr("y.npy", b"")
    with pytest.raises(ValueError, match=r"'X': .* type object is neither"):
        Arrays(str(path)).draw_problem((0,))


def member(shape, payload=b""):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + payload


@pytest.mark.parametrize("shape", [(10**9, 10**9), (-1, 2), (10**30, 1)])
def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path, shape):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", member(shape, bytes(96)))
        archive.writestr("y.npy", member((6,), bytes(48)))
    with pytest.raises(
        ValueError, match=r"'X': .*its 224 bytes are too few for the shape"
    ):
        Arrays(str(path)).draw_problem((0,))


def test_a_small_file_that_unpacks_to_much_is_refused_unread(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("X.npy", member((500_000, 2), bytes(8_000_000)))
        archive.writestr("y.npy", member((6,), bytes(48)))
    assert path.stat().st_size < 20_000
    with pytest.raises(
        ValueError, match=r"need 0\.008 GB of memory, but the limit is 0\.005"
    ):
        Arrays(str(path), gigabytes=0.005).draw_problem((0,))


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "data.npz"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"not a valid NPZ file \(File is not"):
        Arrays(str(path)).draw_problem((0,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


def damage(data, content):
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        damaged[position] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b"019()[]{},'-<|OVc"))
        )
    return bytes(damaged)


@given(st.data())
def test_damaged_files_are_read_or_refused_in_one_sentence(folder, data):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, values in (("X", X), ("y", Y), ("environment", SITES)):
            inner = io.BytesIO()
            np.save(inner, values)
            archive.writestr(f"{name}.npy", damage(data, inner.getvalue()))
    path = folder / "data.npz"
    path.write_bytes(damage(data, file.getvalue()))
    try:
        problem = Arrays(str(path), gigabytes=0.01).draw_problem((0,))
    except ValueError as error:
        assert has_remedy(error)
    else:
        assert problem.train


@pytest.mark.parametrize("header", [b"(" * 9000, b"-" * 9000 + b"1", b"[1", b"\0"])
def test_a_header_that_is_no_header_is_refused(tmp_path, header):
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("X.npy", content)
        archive.writestr("y.npy", member((6,), bytes(48)))
    with pytest.raises(ValueError, match=r"array 'X': the array cannot be read \(\S"):
        Arrays(str(tmp_path / "data.npz")).draw_problem((0,))
