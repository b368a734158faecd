"""A planted column of a table: what it tells at each place, and rows without it."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from cirm.data.planted import LOGIT_SPREAD, PlantedShortcutTable

SEEDS = tuple(range(4))


def places(problem):
    return (*problem.train, *problem.test)


@pytest.fixture
def folder(tmp_path):
    """Five places: three of 60 rows, one as a compressed file, and two small ones."""
    generator = np.random.default_rng(0)
    for name, rows in (("a", 60), ("b", 60), ("c", 80), ("d", 20), ("e", 20)):
        age = generator.normal(50, 10, rows)
        frame = pd.DataFrame(
            {
                "age": age,
                "ward": generator.choice(["north", "south"], rows),
                "ill": np.where(age + generator.normal(0, 10, rows) > 50, "yes", "no"),
            }
        )
        end = ".csv.gz" if name == "b" else ".csv"
        frame.to_csv(tmp_path / f"{name}{end}", index=False)
    (tmp_path / "notes.txt").write_text("not a table")
    return tmp_path


def test_a_binary_column_contradicts_the_label_as_often_as_it_should():
    problem = PlantedShortcutTable(flips=(0.3, 0.05), test_flip=0.9).draw_problem(SEEDS)
    for place, flip in zip(places(problem), (0.3, 0.05, 0.9), strict=True):
        differs = (place.inputs[..., -1] != place.targets).float()
        error = 4 * (flip * (1 - flip) / differs.numel()) ** 0.5
        assert differs.mean().item() == pytest.approx(flip, abs=error)


def test_a_numeric_column_agrees_in_sign_and_has_variance_one_given_the_label():
    problem = PlantedShortcutTable(plant="numeric", flips=(0.3, 0.05)).draw_problem(
        SEEDS
    )
    for place, flip in zip(places(problem), (0.3, 0.05, 0.9), strict=True):
        u, y = place.inputs[..., -1], place.targets
        differs = ((u > 0).long() != y).float().mean().item()
        assert differs == pytest.approx(flip, abs=0.02)
        for label in (0, 1):
            assert u[y == label].var().item() == pytest.approx(1.0, abs=0.1)


def test_in_a_regression_the_correlation_is_set_by_the_flip():
    problem = PlantedShortcutTable(task="regression", plant="numeric").draw_problem(
        SEEDS
    )
    for place, flip in zip(places(problem), (0.1, 0.2, 0.9), strict=True):
        u, y = place.inputs[..., -1].flatten(), place.targets.flatten()
        found = torch.corrcoef(torch.stack([u, y]))[0, 1].item()
        assert found == pytest.approx(1 - 2 * flip, abs=0.05)


def test_without_the_column_the_rows_are_the_same():
    for plant in ("binary", "numeric"):
        there = places(
            PlantedShortcutTable(plant=plant, examples=50).draw_problem((5,))
        )
        gone = places(
            PlantedShortcutTable(plant=plant, examples=50, shortcut=False).draw_problem(
                (5,)
            )
        )
        for one, other in zip(there, gone, strict=True):
            assert (one.inputs[..., :-1] == other.inputs).all()
            assert (one.targets == other.targets).all()


def test_synthetic_labels_follow_the_known_truth_at_every_place():
    problem = PlantedShortcutTable(shortcut=False, examples=20_000).draw_problem((0,))
    slopes = []
    for place in problem.train:
        x = torch.cat([place.inputs[0], torch.ones(20_000, 1)], 1).double()
        y, w = place.targets[0].double(), torch.zeros(9, dtype=torch.double)
        for _ in range(20):  # Newton's method of logistic regression
            p = torch.sigmoid(x @ w)
            w += torch.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (y - p))
        slopes.append(w[:-1])
    assert torch.stack(slopes).norm(dim=1).tolist() == pytest.approx(
        [LOGIT_SPREAD] * 2, abs=0.1
    )
    torch.testing.assert_close(slopes[0], slopes[1], atol=0.15, rtol=0)


def test_columns_are_standardised_by_the_first_place_alone():
    problem = PlantedShortcutTable(shortcut=False, task="regression").draw_problem(
        (0, 1)
    )
    first, second = problem.train
    assert first.inputs.mean(1).abs().max() < 1e-5
    assert first.targets.std(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-4)
    assert second.inputs.mean(1).abs().max() > 0.1


def test_places_and_rows_of_files_are_drawn_for_each_seed(folder):
    dataset = PlantedShortcutTable(path=str(folder), target="ill", examples=50)
    problem = dataset.draw_problem(tuple(range(6)))
    assert [len(place) for place in places(problem)] == [50, 50, 60]
    assert problem.train[0].inputs.shape[2] >= 3
    assert [file.name for file in dataset.list_local_input_files()] == [
        "a.csv", "b.csv.gz", "c.csv", "d.csv", "e.csv",
    ]  # fmt: skip
    alone = dataset.draw_problem((4,))
    for one, other in zip(places(problem), places(alone), strict=True):
        assert (one.inputs[4] == other.inputs[0]).all()
    assert not (problem.train[0].targets[0] == problem.train[0].targets[1]).all()


def test_many_classes_have_a_column_each(tmp_path):
    generator = np.random.default_rng(0)
    for name in "abc":
        x = generator.normal(size=90)
        kind = np.array(["low", "mid", "top"])[np.digitize(x, (-0.5, 0.5))]
        pd.DataFrame({"x": x, "kind": kind}).to_csv(tmp_path / f"{name}.csv")
    dataset = PlantedShortcutTable(path=str(tmp_path), target="kind", examples=80)
    with_column, without = (
        dataset.draw_problem((0,)).train[0],
        PlantedShortcutTable(
            path=str(tmp_path), target="kind", examples=80, shortcut=False
        )
        .draw_problem((0,))
        .train[0],
    )
    assert with_column.features[0] - without.features[0] == 3
    with pytest.raises(ValueError, match="A numeric shortcut needs a target with two"):
        PlantedShortcutTable(
            str(tmp_path), "kind", plant="numeric", examples=80
        ).draw_problem((0,))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"plant": "leaf"}, "plant is 'leaf'. Use binary or numeric"),
        ({"examples": 1}, "examples is 1. Use 2 or more"),
        ({"flips": (0.1,)}, r"flips is \[0.1\]. Give one value for each of the 2"),
        ({"test_flip": 1.0}, "test_flip is 1.0. Use probabilities between"),
        ({"path": "tables"}, "target is ''. Give the name of the column"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PlantedShortcutTable(**settings)


def test_a_folder_with_too_few_places_is_refused(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"4 files with 60 rows or more are needed, but .* only 3"
    ):
        PlantedShortcutTable(
            str(folder), "ill", examples=60, environments=3
        ).draw_problem((0,))
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        PlantedShortcutTable(str(tmp_path / "nowhere"), "ill").draw_problem((0,))


def test_the_planted_column_is_independent_of_the_others_given_the_label():
    (place, _) = (
        PlantedShortcutTable(plant="numeric", examples=5000).draw_problem((0,)).train
    )
    for label in (0, 1):
        rows = place.inputs[0][place.targets[0] == label]
        r = torch.corrcoef(rows.T)[-1, :-1].abs().max().item()
        assert r < 4 / math.sqrt(len(rows))
