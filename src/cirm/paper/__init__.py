"""The paper's tables as values: what to run, the numbers there, and what is beyond.

Alesiani, Yu and Niepert, "Continual Invariant Risk Minimization", 2023.
"""

from __future__ import annotations

from cirm.paper import (
    beyond,
    group_methods,
    inference_readings,
    readings,
    table_2_readings,
    table_5,
    tables_1_2,
    tables_3_4,
)
from cirm.paper.experiment import PaperExperiment

EXPERIMENTS: dict[str, PaperExperiment] = {
    experiment.name: experiment
    for experiment in (
        tables_1_2.build_table1_experiment(),
        tables_1_2.build_table2_experiment(),
        tables_3_4.build_table3_experiment(),
        tables_3_4.build_table4_experiment(),
        table_5.build_table5_experiment(),
        readings.build_experiment_of_other_readings_of_table1(),
        inference_readings.build_experiment_of_other_readings_of_tables3_and_4(),
        table_2_readings.build_experiment_of_other_readings_of_table2(),
        table_2_readings.build_both_colourings_experiment(),
        table_2_readings.build_partial_datasets_experiment(),
        beyond.build_steady_experiment(),
        beyond.build_steady_ablation_experiment(),
        group_methods.build_group_methods_experiment(),
        group_methods.build_label_noise_experiment(),
    )
}


def get_paper_experiment(name: str) -> PaperExperiment:
    """Return the experiment of a name."""
    if name not in EXPERIMENTS:
        raise ValueError(
            f"There is no experiment {name!r}. Choose one of {', '.join(EXPERIMENTS)}."
        )
    return EXPERIMENTS[name]
