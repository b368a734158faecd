"""Public tables: their original files, the cache, and the environments they give."""

import dataclasses
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch

from cirm.data import PUBLIC, create_dataset, get_dataset_class
from cirm.data.brain_age import BrainAge
from cirm.data.breast_cancer import BreastCancer
from cirm.data.gas_drift import GASES, SENSORS, GasDrift
from cirm.data.gas_turbine import GasTurbine
from cirm.data.gusto import Gusto
from cirm.data.image_sets import get_data_cache_folder
from cirm.data.public import (
    describe_completeness_of_dataset,
    get_public_dataset_class,
    import_public_dataset,
    sort_names_by_number,
)
from cirm.data.public_downloads import download_public_dataset
from cirm.runs.plans import create_and_draw_dataset, plan_jobs_of_learner


def write_sensors(folder, batches=(1, 2, 10), rows=12, separator=""):
    """Batches as their authors publish them: class, then position:value."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for batch in batches:
        lines = []
        for row in range(rows):
            cells = " ".join(
                f"{i}:{v:.6f}" for i, v in enumerate(rng.normal(size=128), 1)
            )
            lines.append(f"{row % 6 + 1}{separator} {cells}")
        (folder / f"batch{batch}.dat").write_text("\n".join(lines) + "\n")
    return folder


def make_turbine_rows(rows, seed):
    rng = np.random.default_rng(seed)
    names = [*GasTurbine.columns, "CO", "NOX"]
    return pd.DataFrame(rng.normal(50, 9, (rows, len(names))), columns=names)


def write_years(folder, years=(2011, 2012, 2013), pattern="gt_{}.csv"):
    folder.mkdir(exist_ok=True)
    for year in years:
        make_turbine_rows(30, year).to_csv(folder / pattern.format(year), index=False)
    return folder


def make_patients(rows, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        rng.integers(0, 3, (rows, len(Gusto.columns))), columns=Gusto.columns
    )
    texts = {"sex": "male", "Killip": "I", "miloc": "Inferior", "pmi": "no"}
    return table.assign(**texts, age=rng.normal(60, 9, rows), day30=np.arange(rows) % 2)


def test_batches_are_read_from_their_original_files_in_order_of_time(tmp_path):
    folder = write_sensors(tmp_path / "original")
    problem = GasDrift(path=str(folder)).draw_problem((0,))
    assert [e.name for e in problem.train] == ["batch1", "batch2"]
    assert [e.name for e in problem.test] == ["batch10"]
    assert problem.train[0].features == (128,)
    assert problem.train[0].task.classes == tuple(sorted(GASES))
    first = [problem.train[0].task.classes[i] for i in problem.train[0].targets[:6]]
    assert tuple(first) == GASES


def test_the_edition_with_concentrations_gives_the_same_rows(tmp_path):
    plain = GasDrift.read_tables_by_environment(write_sensors(tmp_path / "plain"))
    other = write_sensors(tmp_path / "other", separator=";10.000000")
    pd.testing.assert_frame_equal(
        plain["batch2"], GasDrift.read_tables_by_environment(other)["batch2"]
    )


@pytest.mark.parametrize("line", ["7 1:0.5", "1 1:0.5 2:0.5", "gas 1:0.5", "1 1:a"])
def test_a_line_that_is_no_measurement_is_refused_with_its_place(tmp_path, line):
    folder = write_sensors(tmp_path / "original")
    file = folder / "batch2.dat"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(
        ValueError, match=r"batch2\.dat, line 13: the line begins with "
    ):
        GasDrift(path=str(folder)).draw_problem((0,))


def test_an_imported_table_gives_the_environments_of_its_folder(tmp_path):
    folder = write_years(tmp_path / "original")
    home, rows = import_public_dataset("gas-turbine", folder)
    assert home == get_data_cache_folder() / "gas-turbine"
    assert rows == {"2011": 30, "2012": 30, "2013": 30}
    inputs = [
        dataset.draw_problem((0,)).train[1].inputs
        for dataset in (GasTurbine(), GasTurbine(path=str(folder)))
    ]
    torch.testing.assert_close(*inputs)
    assert "CO" not in pd.read_csv(home / "2011.csv").columns
    assert "not the whole data set" in describe_completeness_of_dataset(
        GasTurbine.origin, rows
    )
    whole = dict(GasTurbine.origin.rows)
    assert describe_completeness_of_dataset(GasTurbine.origin, whole).endswith(
        "complete"
    )


def test_a_part_of_a_data_set_is_called_a_part_wherever_it_is_used(
    tmp_path, cirm, monkeypatch
):
    import_public_dataset("gas-turbine", write_years(tmp_path / "original"))
    part = "90 examples in 3 environments, of 36,733 in 5: not the whole data set"
    assert GasTurbine().describe().startswith(f"gas-turbine: {part}")
    _, printed, _ = cirm("data", "list")
    assert "3 of 5" in printed and "90 of 36,733" in printed
    _, printed, _ = cirm("data", "fetch", "gas-turbine")
    assert part in printed
    assert "To replace it by the whole data set, remove this folder" in printed
    rows = dict.fromkeys(("2011", "2012", "2013"), 30)
    monkeypatch.setattr(
        GasTurbine, "origin", dataclasses.replace(GasTurbine.origin, rows=rows)
    )
    assert GasTurbine().describe() == ""
    _, printed, _ = cirm("data", "fetch", "gas-turbine")
    assert "complete" in printed and "To replace" not in printed


def test_an_import_that_fails_leaves_no_trace_and_a_second_one_is_refused(tmp_path):
    folder = write_years(tmp_path / "original")
    make_turbine_rows(5, 0).drop(columns="TIT").to_csv(folder / "gt_2012.csv")
    with pytest.raises(ValueError, match="2012: there is no column 'TIT'"):
        import_public_dataset("gas-turbine", folder)
    assert not list(get_data_cache_folder().iterdir())
    write_years(folder)
    import_public_dataset("gas-turbine", folder)
    with pytest.raises(ValueError, match=r"has already been imported\. To import"):
        import_public_dataset("gas-turbine", folder)
    assert [path.name for path in get_data_cache_folder().iterdir()] == ["gas-turbine"]


def test_train_and_test_choose_environments_and_their_order(tmp_path):
    folder = str(write_years(tmp_path / "original"))
    chosen = GasTurbine(path=folder, train=("2013", "2011"), test="2012").draw_problem(
        (0,)
    )
    assert [e.name for e in chosen.train] == ["2013", "2011"]
    assert [e.name for e in chosen.test] == ["2012"]
    assert abs(chosen.train[0].inputs.mean()) < 1e-6  # the first one sets the scale
    usual = GasTurbine(path=folder, train=("2012",)).draw_problem((0,))
    assert [e.name for e in usual.test] == ["2013"]
    assert not GasTurbine(path=folder, test="none").draw_problem((0,)).test
    for settings, message in (
        ({"train": ("2019",)}, "train is .*Use some of 2011, 2012, 2013"),
        ({"train": ("2011",), "test": "2011"}, "Leave out 2011"),
        ({"test": "2019"}, "no environment '2019', which"),
        ({"examples": 1}, "examples is 1. Use 2 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            GasTurbine(path=folder, **settings).draw_problem((0,))


def test_examples_are_drawn_for_each_seed_and_do_not_depend_on_the_others(tmp_path):
    folder = str(write_years(tmp_path / "original"))
    dataset = GasTurbine(path=folder, examples=8)
    both, alone = (
        dataset.draw_problem((0, 1)).train[0],
        dataset.draw_problem((1,)).train[0],
    )
    assert (
        both.targets.shape == (2, 8) and len(dataset.draw_problem((0,)).test[0]) == 30
    )
    assert not torch.equal(both.targets[0], both.targets[1])
    torch.testing.assert_close(both.targets[1], alone.targets[0])
    torch.testing.assert_close(both.take_all(2).x[1], alone.take_all(1).x[0])


def test_each_seed_draws_a_part_of_places_with_few_rows(tmp_path):
    folder = str(write_years(tmp_path / "original"))
    for examples, rows in ((None, 24), (100, 24), (8, 8)):
        dataset = GasTurbine(path=folder, examples=examples, fraction=0.8)
        problem = dataset.draw_problem((0, 1))
        assert problem.train[0].targets.shape == (2, rows)
        assert len(problem.test[0]) == 30
    with pytest.raises(ValueError, match=r"fraction is 0\.0"):
        GasTurbine(path=folder, fraction=0.0)


def test_the_key_of_a_job_does_not_depend_on_the_folder_of_the_cache(
    tmp_path, monkeypatch
):
    write_years(tmp_path / "original")
    keys = set()
    for home in ("here", "there"):
        monkeypatch.setenv("CIRM_DATA", str(tmp_path / home))
        import_public_dataset("gas-turbine", tmp_path / "original")
        data = create_and_draw_dataset("gas-turbine", {})
        keys |= {job.key for job in plan_jobs_of_learner(data, "ridge", "joint", (0,))}
    assert len(keys) == 1


def test_sites_of_one_file_are_separated_and_small_ones_left_out(tmp_path):
    rng = np.random.default_rng(0)
    sites = ["ICBM"] * 25 + ["Oulu"] * 30 + ["Pittsburgh"] * 3 + ["Atlanta"] * 20
    table = pd.DataFrame(rng.normal(size=(len(sites), 3)), columns=["lh", "rh", "age"])
    table = table.assign(site=sites, sitenum=1, sub_id=[f"sub{i}" for i in range(78)])
    table.to_csv(tmp_path / "fcon1000.csv")
    problem = BrainAge(path=str(tmp_path)).draw_problem((0,))
    assert {e.name: len(e) for e in problem.train} == {"Atlanta": 20, "Oulu": 30}
    assert [e.name for e in problem.test] == ["ICBM"]
    assert problem.train[0].features == (2,)
    few = BrainAge(path=str(tmp_path), fewest=2).draw_problem((0,))
    assert "Pittsburgh" in [e.name for e in few.train]


def test_regions_of_one_file_are_separated(tmp_path):
    tables = [make_patients(10, region).assign(regl=region) for region in (2, 1, 11)]
    pd.concat(tables).to_csv(tmp_path / "gusto.csv")
    problem = Gusto(path=str(tmp_path)).draw_problem((0,))
    assert [e.name for e in problem.train] == ["region01", "region02"]
    assert [e.name for e in problem.test] == ["region11"]
    assert problem.train[0].task.classes == ("0", "1")


def test_a_column_of_environments_that_is_absent_is_named(tmp_path):
    make_patients(10, 0).to_csv(tmp_path / "gusto.csv")
    with pytest.raises(ValueError, match="there is no column 'regl'"):
        Gusto(path=str(tmp_path)).draw_problem((0,))
    pd.DataFrame({"age": [1.0]}).to_csv(tmp_path / "fcon1000.csv")
    with pytest.raises(ValueError, match="there is no column 'site'"):
        BrainAge(path=str(tmp_path)).draw_problem((0,))


def test_a_download_is_unpacked_converted_and_kept(tmp_path, serve, monkeypatch):
    original = write_years(tmp_path / "original", range(2011, 2016))
    with zipfile.ZipFile(tmp_path / "turbine.zip", "w") as archive:
        for file in original.iterdir():
            archive.write(file, f"folder/{file.name}")
    address = serve(tmp_path) + "turbine.zip"
    origin = dataclasses.replace(GasTurbine.origin, address=address)
    monkeypatch.setattr(GasTurbine, "origin", origin)
    home, rows = download_public_dataset("gas-turbine")
    assert sum(rows.values()) == 150 and len(GasTurbine().draw_problem((0,)).train) == 4
    assert download_public_dataset("gas-turbine") == (home, rows)


def test_an_archive_without_a_file_is_refused(tmp_path, serve, monkeypatch):
    with zipfile.ZipFile(tmp_path / "turbine.zip", "w") as archive:
        archive.writestr("gt_2011.csv", "AT,NOX\n1,2\n")
    address = serve(tmp_path) + "turbine.zip"
    origin = dataclasses.replace(GasTurbine.origin, address=address)
    monkeypatch.setattr(GasTurbine, "origin", origin)
    with pytest.raises(
        FileNotFoundError, match=r"gt_2012.csv is missing.*cirm data im"
    ):
        download_public_dataset("gas-turbine")
    assert not list(get_data_cache_folder().iterdir())


@pytest.mark.parametrize("name", PUBLIC)
def test_a_data_set_that_is_not_in_the_cache_says_where_to_get_it(name):
    with pytest.raises(FileNotFoundError) as caught:
        create_dataset(name).draw_problem((0,))
    message = str(caught.value)
    assert f"`cirm data import {name} FOLDER`" in message
    origin = get_public_dataset_class(name).origin
    assert origin.advice in message
    assert (f"`cirm data fetch {name}`" in message) == bool(origin.address)


@pytest.mark.parametrize("name", ["pacs", "gusto"])
def test_what_no_program_can_download_says_where_to_get_it(name):
    with pytest.raises(FileNotFoundError, match="cirm cannot download this data set"):
        download_public_dataset(name)


def test_a_folder_that_is_not_there_or_has_no_tables_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        import_public_dataset("gusto", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Gusto(path=str(tmp_path / "nowhere")).draw_problem((0,))
    with pytest.raises(
        FileNotFoundError, match="this folder contains no tables of gusto"
    ):
        import_public_dataset("gusto", tmp_path)
    with pytest.raises(ValueError, match="'colored' is not a public data set"):
        get_public_dataset_class("colored")


def test_the_trial_is_unseen_and_the_cohort_arrives_in_order_of_time(tmp_path):
    rng = np.random.default_rng(0)
    for name, rows in BreastCancer.origin.rows.items():
        values = rng.normal(50, 9, (rows, len(BreastCancer.columns)))
        table = pd.DataFrame(values, columns=BreastCancer.columns)
        table["size"] = np.where(np.arange(rows) % 2, "<=20", ">50")
        table["relapse"] = np.where(np.arange(rows) % 3, "no", "yes")
        table.assign(pid=range(rows)).to_csv(tmp_path / f"{name}.csv", index=False)
    problem = BreastCancer(path=str(tmp_path)).draw_problem((0,))
    periods = ["1978-1986", "1987-1989", "1990-1993"]
    assert [e.name for e in problem.train] == [f"rotterdam-{p}" for p in periods]
    assert [len(e) for e in problem.test] == [555]
    assert problem.train[0].task.classes == ("no", "yes")


def test_a_table_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "2011.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(
        ValueError, match=r"2011\.csv\.gz: this CSV file cannot be read"
    ):
        GasTurbine(path=str(tmp_path)).draw_problem((0,))


def test_a_changed_file_is_read_again(tmp_path):
    folder = write_years(tmp_path / "original")
    before = GasTurbine(path=str(folder)).draw_problem((0,))
    make_turbine_rows(9, 5).to_csv(folder / "gt_2013.csv", index=False)
    after = GasTurbine(path=str(folder)).draw_problem((0,))
    assert (len(before.test[0]), len(after.test[0])) == (30, 9)


def test_names_are_sorted_by_the_numbers_in_them():
    names = ["batch10", "batch9", "Oulu", "ICBM", "batch1"]
    assert sort_names_by_number(names) == [
        "ICBM",
        "Oulu",
        "batch1",
        "batch9",
        "batch10",
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_sizes_of_public_data_sets_are_those_published(name):
    published = {
        "pacs": (4, 9991),
        "gas-drift": (10, 13910),
        "gas-turbine": (5, 36733),
        "brain-age": (23, 1078),
        "gusto": (16, 40830),
        "breast-cancer": (4, 3505),
        "covertype": (4, 581012),
    }
    rows = get_dataset_class(name).origin.rows
    assert (len(rows), sum(rows.values())) == published[name]


def test_the_sensors_are_sixteen_with_eight_features_each():
    assert len(SENSORS) == 16 * 8
