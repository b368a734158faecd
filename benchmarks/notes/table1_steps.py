"""Compare the processor time of table 1 in two source trees, step by step.

    OMP_NUM_THREADS=1 python -m benchmarks.notes.table1_steps BEFORE/src AFTER/src

Both trees take turns, a few epochs each, with other batches in each round; the last
numbers are for scoring the test environment. The ratio is the median over the rounds.
"""

import sys
import time
from statistics import median

from benchmarks.notes.source_trees import TreeWorkers

ROUNDS, EPOCHS = 6, 5


def answer_requests() -> None:
    """Train or score the learner that a line names, and print the milliseconds."""
    import torch

    from cirm.data import create_dataset
    from cirm.evaluation import compute_mean_score
    from cirm.learners import create
    from cirm.paper.tables_1_2 import build_table1_experiment
    from cirm.randomness import Randomness

    torch.set_num_threads(1)
    (row,) = build_table1_experiment().rows
    trials = {trial.label: trial for trial in row.trials}
    randomness = Randomness((0,))
    for line in sys.stdin:
        label, work, turn = line.strip().split("|")
        trial = trials[label]
        if work == "prepare":
            problem = create_dataset(trial.dataset, trial.data).draw_problem((0,))
            settings = {"epochs": EPOCHS}
            learner = create(trial.learner, problem.train[0], settings, trial.preset)
            start = learner.init(randomness)
            if trial.order == "sequential":
                start = learner.observe(start, problem.train[:1], randomness)
            stage = problem.train[1:] if trial.order == "sequential" else problem.train
            state, steps = start, EPOCHS * learner.descent.count_steps(stage)
        began = time.process_time()
        if work == "score":
            compute_mean_score(learner, state, problem.test[0], 1)
        else:
            state = learner.observe(start, stage, randomness.at("turn", int(turn)))
        spent = 1e3 * (time.process_time() - began)
        print(spent if work == "score" else spent / steps, flush=True)


def compare_trees(trees: list[str]) -> None:
    """Print the times of both trees and their ratio, for each learner."""
    from cirm.paper.tables_1_2 import build_table1_experiment

    workers = TreeWorkers("benchmarks.notes.table1_steps", trees)
    (row,) = build_table1_experiment().rows
    for trial in row.trials:
        workers.ask_both(f"{trial.label}|prepare|0")
        for work in ("train", "score"):
            requests = [f"{trial.label}|{work}|{turn}" for turn in range(ROUNDS)]
            pairs = [workers.ask_both(line, turn) for turn, line in enumerate(requests)]
            before, after = (min(times) for times in zip(*pairs, strict=True))
            ratio = median(new / old for old, new in pairs)
            print(f"{trial.label}, {work}: {before:.1f}, {after:.1f} ms; {ratio:.2f}")
    workers.close()


if __name__ == "__main__":
    compare_trees(sys.argv[1:]) if len(sys.argv) > 1 else answer_requests()
