"""The cells of the stress map, and the jobs that fill them."""

import pytest
import torch

from cirm.data import create_dataset
from cirm.stress.cells import (
    ADAPT,
    CONDITIONS,
    TITLES,
    USUAL,
    list_shortcut_kinds,
    list_stress_test_cells,
)


def cells(source="digits", quick=False, kinds=()):
    every = list_shortcut_kinds(source)
    return list_stress_test_cells(
        [k for k in every if not kinds or k.name in kinds], source, quick
    )


def test_every_cell_differs_from_the_usual_one_by_a_single_factor():
    found = cells("mnist")
    assert {cell.kind.name for cell in found} >= set(TITLES)
    usual = {c.kind.name: c.data for c in found if c.condition == USUAL}
    for cell in found:
        given = cell.data.items() - usual[cell.kind.name].items()
        names = {name for name, _ in given} - {"flips"} or {"flips"}
        assert len(names) == (0 if cell.condition == USUAL else 1) or names == {"flips"}


def test_the_oracle_of_each_cell_has_its_data_without_the_shortcut():
    for cell in cells():
        alone = {**cell.data, "shortcut": False}
        problems = [
            create_dataset(cell.kind.dataset, data).draw_problem((0,))
            for data in (cell.data, alone, cell.describe_data_without_shortcut())
        ]
        places = [[*problem.train, *problem.test] for problem in problems]
        for shown, expected, drawn in zip(*places, strict=True):
            assert len(shown) == len(expected) and drawn.name == expected.name
            x, y = expected.take_all(1)
            assert torch.equal(drawn.take_all(1).x, x)
            assert torch.equal(drawn.targets, y)


def test_cells_with_the_same_images_or_rows_share_the_job_of_the_oracle():
    oracles = {
        job.key
        for cell in cells("mnist")
        for job in cell.plan_jobs_by_role("steady", (0,))["oracle"]
    }
    # Eleven conditions of images change more than the shortcut, for grey images, two
    # colours of the figure and of the background, and ten hues, where noise 0 is usual;
    # six conditions of tables, for classes and regressions.
    assert len(oracles) == 4 * 11 - 1 + 2 * 6


def test_conditions_are_left_out_where_they_do_not_apply():
    found = {(c.kind.name, c.condition.value) for c in cells("mnist")}
    assert ("none", "0.05, 0.02") not in found and ("none", "0.35") in found
    assert ("new", "3") in found and ("new", "6") not in found
    assert ("table-binary", "cnn") not in found and ("table-binary", "10") in found
    digits = {(c.kind.name, c.condition.value) for c in cells()}
    assert ("figure", "5,000") not in digits and ("figure", "300") in digits


def test_the_quick_form_has_all_kinds_and_a_few_conditions_of_the_first():
    found = cells(quick=True)
    usual = [cell.kind.name for cell in found if cell.condition == USUAL]
    assert usual == [kind.name for kind in list_shortcut_kinds("digits")]
    assert {c.kind.name for c in found if c.condition != USUAL} == {"figure"}
    assert 25 > len(found) > len(usual)


def test_a_mild_column_keeps_its_range_with_more_places():
    (cell,) = (
        c
        for c in cells(kinds=["table-mild"])
        if c.condition.data == {"environments": 3}
    )
    assert cell.data["flips"] == pytest.approx((0.15, 0.225, 0.3))


def test_a_cell_has_the_learner_its_oracle_and_plain_training():
    (cell,) = cells(quick=True, kinds=["corner"])[:1]
    jobs = cell.plan_jobs_by_role("steady", range(2))
    (learner,), (oracle,), (plain,) = (jobs[n] for n in ("learner", "oracle", "erm"))
    assert learner.adapt == ADAPT and learner.seeds == (0, 1)
    assert oracle.data == {**learner.data, "kind": "none"} and oracle.adapt == ADAPT
    assert plain.learner == "erm" and plain.data == learner.data
    assert len({job.key for job in (learner, oracle, plain)}) == 3


def test_without_a_shortcut_the_learner_is_its_own_oracle():
    (cell,) = cells(quick=True, kinds=["none"])[:1]
    jobs = cell.plan_jobs_by_role("steady", range(2))
    assert jobs["oracle"] == jobs["learner"]


def test_networks_of_other_cells_have_other_labels_so_that_archives_keep_both():
    labels = {
        cell.condition.value: cell.plan_jobs_by_role("erm", (0,))["learner"][0].label
        for cell in cells(kinds=["figure"])
    }
    assert labels["cnn"] == "erm, cnn" and labels["usual"] == "erm"


def test_real_tables_are_named_by_their_folder(tmp_path):
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name in "abcd":
        (folder / f"{name}.csv").write_text("age,ill\n1,0\n2,1\n")
    kinds = list_shortcut_kinds("digits", [f"{folder}:ill"])
    own = [kind for kind in kinds if kind.name.startswith("hospitals")]
    assert [k.name.partition("-")[2] for k in own] == ["binary", "numeric", "mild"]
    conditions = [c.condition.value for c in list_stress_test_cells(own[:1], "digits")]
    assert conditions == ["usual", "300", "3"]
    for wrong in (str(folder), f"{folder}:", ":ill"):
        with pytest.raises(ValueError, match="COLUMN is the column to predict"):
            list_shortcut_kinds("digits", [wrong])
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        list_shortcut_kinds("digits", [f"{tmp_path / 'nowhere'}:ill"])


def test_conditions_have_different_names():
    names = [(c.factor, c.value) for c in CONDITIONS]
    assert len(set(names)) == len(names)
