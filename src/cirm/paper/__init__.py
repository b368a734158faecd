"""The paper's tables as values: what to run, the numbers there, and what is beyond.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023.
"""

from __future__ import annotations

from cirm.paper import beyond, readings, table_5, tables_1_2, tables_3_4
from cirm.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        tables_1_2.build_table1(),
        tables_1_2.build_table2(),
        tables_3_4.build_table3(),
        tables_3_4.build_table4(),
        table_5.build_table5(),
        readings.build_readings(),
        readings.build_inferred_readings(),
        beyond.build_beyond(),
        beyond.build_ablation(),
    )
}


def get_experiment(name: str) -> Experiment:
    """Return the experiment of a name."""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"There is no experiment {name!r}. Choose one of {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name]
