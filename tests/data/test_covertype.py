"""Covertype, on a made-up sample in the form of the original file."""

import gzip

import numpy as np
import pytest
import torch

from cirm.data.covertype import AREAS, COVERS, Covertype
from cirm.data.public import import_public_dataset


def make_rows(count=80):
    """Rows as published: ten numbers, four areas, forty soils, class from 1."""
    rng = np.random.default_rng(0)
    rows = np.zeros((count, 55), int)
    rows[:, :10] = rng.integers(0, 3000, (count, 10))
    rows[np.arange(count), 10 + np.arange(count) % 4] = 1
    rows[np.arange(count), 14 + rng.integers(0, 40, count)] = 1
    rows[:, -1] = rng.integers(1, 8, count)
    return rows


@pytest.fixture
def folder(tmp_path):
    text = "\n".join(",".join(map(str, row)) for row in make_rows())
    (tmp_path / "covtype.data.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_an_area_is_an_environment_without_its_own_columns(folder):
    problem = Covertype(path=str(folder), examples=None).draw_problem((0,))
    assert [e.name for e in (*problem.train, *problem.test)] == list(AREAS)
    assert all(len(e) == 20 for e in problem.train)
    assert problem.train[0].features == (50,)
    assert problem.train[0].task.classes == COVERS
    rows = make_rows()
    assert problem.train[1].targets.tolist() == (rows[1::4, -1] - 1).tolist()
    first = rows[::4, :10].astype(np.float32)
    wanted = (rows[1::4, :10] - first.mean(0)) / first.std(0)
    np.testing.assert_allclose(problem.train[1].inputs[:, :10], wanted, atol=1e-4)
    np.testing.assert_array_equal(problem.train[1].inputs[:, 10:], rows[1::4, 14:-1])


def test_the_imported_areas_equal_those_of_the_file(folder):
    home, rows = import_public_dataset("covertype", folder)
    assert rows == dict.fromkeys(AREAS, 20)
    assert sorted(path.name for path in home.iterdir()) == sorted(
        f"{area}.npy" for area in AREAS
    )
    torch.testing.assert_close(
        Covertype(examples=5).draw_problem((3,)).train[2].take_all(1).x,
        Covertype(path=str(folder), examples=5)
        .draw_problem((3,))
        .train[2]
        .take_all(1)
        .x,
    )


def test_unseen_rows_are_thinned_out_evenly(folder):
    whole = Covertype(path=str(folder), test="neota", test_examples=None).draw_problem(
        (0,)
    )
    part = Covertype(path=str(folder), test="neota", test_examples=5).draw_problem((0,))
    assert torch.equal(part.test[0].targets, whole.test[0].targets[::4])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "the table has 3 columns, but the table of Covertype has 55"),
        ("a" + ",1" * 54, "this is not a table of numbers"),
        (
            "0" + ",0" * 53 + ",1\n",
            "row 1 has 0 wilderness areas, 0 soil types and the class 1",
        ),
        (
            "0" + ",0" * 9 + ",1,0,0,0" + ",1" + ",0" * 39 + ",9\n",
            "and the class 9, but must",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "covtype.data").write_text(text)
    with pytest.raises(ValueError, match=message):
        import_public_dataset("covertype", tmp_path)


def test_a_folder_without_the_file_says_where_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"neither covtype.data nor covtype.da"):
        import_public_dataset("covertype", tmp_path)


def test_a_number_of_unseen_rows_below_one_is_refused():
    with pytest.raises(ValueError, match=r"test_examples is 0\. Use 1 or more"):
        Covertype(test_examples=0)
