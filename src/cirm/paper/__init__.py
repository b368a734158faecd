"""The paper's tables as values: what to run, the numbers there, and what is beyond.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023.
"""

from __future__ import annotations

from cirm.paper import beyond, causal, inferred, inferred_readings, readings, sequences
from cirm.paper.trials import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        sequences.table1(),
        sequences.table2(),
        inferred.table3(),
        inferred.table4(),
        causal.table5(),
        readings.readings(),
        inferred_readings.readings_inferred(),
        beyond.beyond(),
        beyond.ablation(),
    )
}


def get_experiment(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"experiment must be one of {', '.join(EXPERIMENTS)}; got {name!r}"
        )
    return EXPERIMENTS[name]
