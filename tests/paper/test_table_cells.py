"""One cell of each table, run as `cirm reproduce` runs it; minutes each."""

import pytest

from cirm.paper import get_paper_experiment
from cirm.paper.reproduction import (
    explain_why_trial_data_are_missing,
    plan_paper_reproduction,
    summarise_experiment,
)
from cirm.runs.archive import add_finished_jobs_to_archive
from cirm.runs.local import run_jobs_locally

CELLS = [
    ("table1", "mnist", "irmg", "test", 2),
    ("table2", "n=6", "erm", "test", 1),
    ("table3", "no-eiil", "irmv1", "test", 1),
    ("table4", "1000 no-eiil", "irmv1", "test", 2),
    ("table5", "table5", "erm", "causal", 5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row", "label", "split", "seeds"), CELLS)
def test_a_cell_is_within_its_band_or_better(tmp_path, name, row, label, split, seeds):
    whole = get_paper_experiment(name)
    (one,) = (r for r in whole.rows if r.name == row)
    (trial,) = (t for t in one.trials if t.label == label)
    if explain_why_trial_data_are_missing(trial):
        pytest.skip(explain_why_trial_data_are_missing(trial))
    jobs = plan_paper_reproduction(whole, seeds, [trial.key]).jobs[trial.identity]
    assert run_jobs_locally(jobs, tmp_path, 1) == {}
    part = summarise_experiment(
        whole, add_finished_jobs_to_archive(jobs, tmp_path, "here"), seeds, {}
    )
    place = (row, label, split)
    (cell,) = (
        c
        for c in part.summary["cells"]
        if (c["row"], c["learner"], c["split"]) == place
    )
    assert cell["seeds"] == seeds
    assert cell["verdict"] in ("match", "better"), cell
