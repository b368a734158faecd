"""The benchmark compares like with like."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cells, floors, growth, learners, peers, start, usual
from benchmarks.cells import Cell, Ours
from benchmarks.report import bench_report, markdown
from benchmarks.timing import exponent, interleaved, ratio, spread
from cirm.learners.gem import project_gradient
from cirm.randomness import Randomness

CELL = Cell("small", "", 12, (8, 8), 2, 20, 0, 1)


def flops(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_works_take_turns_and_the_first_round_does_not_count():
    order = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    times = interleaved(works, 3)
    assert order == ["a", "b"] * 4
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_a_slow_spell_that_meets_both_leaves_their_ratio():
    assert ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0])["median"] == 2.0
    assert spread([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
def test_the_power_of_a_power_law_is_found(power):
    sizes = [1, 2, 4, 8]
    assert exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


@pytest.mark.parametrize(
    ("key", "floor", "settings"),
    [
        ("erm", floors.plain(CELL.sizes, 20), {}),
        ("irmv1", floors.plain(CELL.sizes, 20), {}),
        ("vcl", floors.sums(CELL.sizes, 20, 3), {"samples": 3}),
        ("virmv1", floors.sums(CELL.sizes, 20, 3), {"samples": 3}),
        (
            "bvirm",
            floors.constrained(CELL.sizes, 20, 3),
            {"samples": 3, "constraint": "network"},
        ),
        (
            "virmv1",
            floors.weights(CELL.sizes, 20, 3),
            {"samples": 3, "draws": "weights"},
        ),
    ],
)
def test_a_floor_has_the_products_of_the_learners_step_and_no_other(
    key, floor, settings
):
    step = Ours(CELL, CELL.learner(key, "", **settings), past=False)
    averages = 2 * 2 * 2 * 20  # means over the examples are products here, of vectors
    assert flops(floor) <= flops(step) <= flops(floor) + 2 * averages


def test_a_cell_counts_its_steps_and_the_examples_of_each():
    cell = replace(CELL, examples=100, batch=30, epochs=3, together=2)
    assert (cell.steps, cell.rows) == (12, 50)
    assert [len(stage) for stage in cell.stages()] == [2, 2]
    assert cells.table1(quick=False).steps == 20


@pytest.mark.parametrize(
    "entry", learners.ENTRIES, ids=lambda entry: f"{entry.key}-{entry.cell.__name__}"
)
def test_usual_code_learns_its_cell(entry):
    mer = entry.key == "mer"
    outputs, epochs = entry.cell(quick=True).outputs, 12 if mer else 100
    cell = replace(CELL, together=1, outputs=outputs, epochs=epochs)
    free = dict.fromkeys(("dropout", "decay", "beta", "l2", "rho0", "rho1"), 0.0)
    own = {"rate": 0.1, "beta": 1.0, "replay": 1} if mer else {}
    quick = {"rate": 0.03, "penalty": 0.1, "samples": 2, "memory": 10}
    settings = {**learners.settings_of(entry), **quick, **free, **own}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = entry.usual(cell, settings).eval()
        x, y = cell.data[1]
        with torch.no_grad():
            risk = usual.cross_entropy(model(x), y).item()
    assert risk < 0.9 * math.log(2)


def test_the_general_solver_bends_gradients_as_ours_does():
    guards = Randomness((1,)).normal(2, 6)[0]
    slope = -guards.sum(0) + Randomness((2,)).normal(6)[0]
    torch.testing.assert_close(
        usual.bent(slope, guards), project_gradient(slope, guards), rtol=1e-3, atol=1e-3
    )


def test_an_entry_is_measured_against_its_floor_and_usual_code():
    entry = next(e for e in learners.ENTRIES if e.key == "irmv1")
    row = learners.compared(entry, CELL, 2)
    assert min(row["floor"]["median"], row["usual"]["median"]) > 0
    assert row["ours_step"]["low"] <= row["ours_step"]["high"]


def test_memory_grows_in_proportion_to_the_examples_and_not_with_the_past():
    axis = next(axis for axis in growth.AXES if axis.name == "examples")
    base = replace(CELL, examples=200)
    row = growth.grown(axis, "erm", (1, 2, 4), base, 1)
    assert 0.8 < row["memory_power"] < 1.05
    assert growth.remembered("ewc", CELL, 4, 1)["memory_power"] == 0
    assert growth.remembered("gem", CELL, 4, 1)["memory_power"] > 0.5


def test_a_peer_that_is_not_installed_is_reported_and_stops_nothing():
    outcome = peers.asked(Path(sys.executable), "icp", {"place0": np.zeros((3, 2))})
    assert "causalicp" in outcome["failed"]


def test_a_cold_start_that_fails_is_refused():
    assert start.timed("pass") > 0
    with pytest.raises(ValueError, match=r"must end well; got no such luck"):
        start.timed("raise SystemExit('no such luck')")


def test_every_part_has_a_table_and_texts_are_escaped():
    times = {"median": 0.5, "low": 0.4, "high": 0.6}
    found = {
        "machine": {"processor": "<b>chip</b>", "python": "3", "torch": "2"},
        "commit": "abc",
        "rounds": 2,
        "quick": False,
        "learners": [
            {"learner": "gem", "cell": "table 1", "aim": None, "faster": 1.0}
            | {"floor": None, "usual": times, "ours_step": times}
        ],
        "start": [{"what": "import cirm", **times}],
        "peers": [
            {"learner": "ewc", "peer": "Peer", "failed": "no such module"},
            {"learner": "icp", "peer": "Peer", "version": "1", "ours": times}
            | {"theirs": times, "ratio": times, "our_features": [[0]]}
            | {"their_features": [[1]]},
        ],
    }  # fmt: skip
    text = markdown(found)
    assert "| gem, table 1 | 500 ms |  |  | 0.50 (0.40 to 0.60) | ≥ 1 ✗ |" in text
    assert "failed: no such module" in text
    assert "other features" in text
    shown = bench_report(found)
    assert "<b>chip" not in shown
    assert shown.count("<table>") == 3
