"""The benchmark compares like with like."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    cold_start,
    growth,
    learner_speed,
    matrix_products,
    peer_comparison,
    pytorch_baselines,
    workloads,
)
from benchmarks.report import build_benchmark_page, render_benchmark_markdown
from benchmarks.timing import (
    compute_quartiles,
    compute_time_ratios,
    fit_exponent,
    time_functions_in_turn,
)
from benchmarks.workloads import TimedLearner, Workload
from cirm.learners.gem import project_gradient_onto_constraints
from cirm.randomness import Randomness

WORKLOAD = Workload("small", "", 12, (8, 8), 2, 20, 0, 1)


def flops(work):
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_functions_take_turns_and_the_first_round_does_not_count():
    order = []
    works = {name: lambda name=name: order.append(name) for name in "ab"}
    times = time_functions_in_turn(works, 3)
    assert order == ["a", "b"] * 4
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_a_slow_phase_does_not_change_the_ratio():
    assert compute_time_ratios([2.0, 20.0, 4.0], [1.0, 10.0, 2.0])["median"] == 2.0
    assert compute_quartiles([3.0]) == {"median": 3.0, "low": 3.0, "high": 3.0}


@pytest.mark.parametrize("power", [0.0, 1.0, 1.7])
def test_the_exponent_of_a_power_law_is_found(power):
    sizes = [1, 2, 4, 8]
    assert fit_exponent(sizes, [3 * size**power for size in sizes]) == pytest.approx(
        power
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("key", "floor", "settings"),
    [
        ("erm", matrix_products.list_plain_products(WORKLOAD.sizes, 20), {}),
        ("irmv1", matrix_products.list_plain_products(WORKLOAD.sizes, 20), {}),
        (
            "vcl",
            matrix_products.list_local_reparametrisation_products(
                WORKLOAD.sizes, 20, 3
            ),
            {"samples": 3},
        ),
        (
            "virmv1",
            matrix_products.list_local_reparametrisation_products(
                WORKLOAD.sizes, 20, 3
            ),
            {"samples": 3},
        ),
        (
            "bvirm",
            matrix_products.list_gradient_norm_products(WORKLOAD.sizes, 20, 3),
            {"samples": 3, "constraint": "network"},
        ),
        (
            "virmv1",
            matrix_products.list_sampled_weight_products(WORKLOAD.sizes, 20, 3),
            {"samples": 3, "draws": "weights"},
        ),
    ],
)
def test_a_floor_has_exactly_the_products_of_a_training_step(key, floor, settings):
    step = TimedLearner(
        WORKLOAD, WORKLOAD.make_learner(key, "", **settings), past=False
    )
    averages = 2 * 2 * 2 * 20  # means over the examples are products here, of vectors
    assert flops(floor) <= flops(step) <= flops(floor) + 2 * averages


def test_a_workload_counts_its_steps_and_the_examples_of_each():
    workload = replace(WORKLOAD, examples=100, batch=30, epochs=3, together=2)
    assert (workload.steps, workload.rows) == (12, 50)
    assert [len(stage) for stage in workload.make_stages()] == [2, 2]
    assert workloads.build_table1_workload(quick=False).steps == 20


@pytest.mark.parametrize(
    "entry",
    learner_speed.LEARNER_BENCHMARKS,
    ids=lambda entry: f"{entry.key}-{entry.workload.__name__}",
)
def test_usual_code_learns_its_workload(entry):
    mer = entry.key == "mer"
    outputs, epochs = entry.workload(quick=True).outputs, 12 if mer else 100
    workload = replace(WORKLOAD, together=1, outputs=outputs, epochs=epochs)
    free = dict.fromkeys(("dropout", "decay", "beta", "l2", "rho0", "rho1"), 0.0)
    own = {"rate": 0.1, "beta": 1.0, "replay": 1} if mer else {}
    quick = {"rate": 0.03, "penalty": 0.1, "samples": 2, "memory": 10}
    settings = {**learner_speed.get_benchmark_settings(entry), **quick, **free, **own}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = entry.usual(workload, settings).eval()
        x, y = workload.data[1]
        with torch.no_grad():
            risk = pytorch_baselines.cross_entropy(model(x), y).item()
    assert risk < 0.9 * math.log(2)


def test_the_general_solver_projects_gradients_as_ours_does():
    guards = Randomness((1,)).normal(2, 6)[0]
    slope = -guards.sum(0) + Randomness((2,)).normal(6)[0]
    torch.testing.assert_close(
        pytorch_baselines.project_gradient_onto_constraints(slope, guards),
        project_gradient_onto_constraints(slope, guards),
        rtol=1e-3,
        atol=1e-3,
    )


def test_an_entry_is_measured_against_its_floor_and_usual_code():
    entry = next(e for e in learner_speed.LEARNER_BENCHMARKS if e.key == "irmv1")
    row = learner_speed.time_learner_benchmark(entry, WORKLOAD, 2)
    assert min(row["floor"]["median"], row["usual"]["median"]) > 0
    assert row["ours_step"]["low"] <= row["ours_step"]["high"]


def test_memory_grows_in_proportion_to_the_examples_and_not_with_the_past():
    axis = next(axis for axis in growth.AXES if axis.name == "examples")
    base = replace(WORKLOAD, examples=200)
    row = growth.measure_scaling_along_axis(axis, "erm", (1, 2, 4), base, 1)
    assert 0.8 < row["memory_power"] < 1.05
    assert (
        growth.measure_cost_of_past_environments("ewc", WORKLOAD, 4, 1)["memory_power"]
        == 0
    )
    assert (
        growth.measure_cost_of_past_environments("gem", WORKLOAD, 4, 1)["memory_power"]
        > 0.5
    )


def test_a_peer_that_is_not_installed_is_reported_and_stops_nothing():
    outcome = peer_comparison.run_other_package(
        Path(sys.executable), "icp", {"place0": np.zeros((3, 2))}
    )
    assert "causalicp" in outcome["failed"]


def test_a_failing_process_is_an_error():
    assert min(cold_start.time_python_code("sum(range(3_000_000))")) > 0
    with pytest.raises(ValueError, match="a new process failed: no such luck"):
        cold_start.time_python_code("raise SystemExit('no such luck')")


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
        "start": [{"what": "import cirm", "processor": 0.3, **times}],
        "peers": [
            {"learner": "ewc", "peer": "Peer", "failed": "no such module"},
            {"learner": "icp", "peer": "Peer", "version": "1", "ours": times}
            | {"theirs": times, "ratio": times, "our_features": [[0]]}
            | {"their_features": [[1]]},
        ],
    }  # fmt: skip
    text = render_benchmark_markdown(found)
    assert "| gem, table 1 | 500 ms |  |  | 0.50 (0.40 to 0.60) | ≥ 1 ✗ |" in text
    assert "failed: no such module" in text
    assert "other features" in text
    shown = build_benchmark_page(found)
    assert "<b>chip" not in shown
    assert shown.count("<table>") == 3
