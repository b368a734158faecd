"""The Flower app of the server.

The run configuration describes the study: `study`, a name; `learner`, `preset` and
`settings` as for `cirm run`; `stages`, the names of the sites, those of a stage
separated by spaces and stages by semicolons; `seeds`; `folder` for the checkpoint and
the ledger; `patience`, the seconds that an exchange waits for a site; `lifetime`, the
seconds after which a request is dropped (0: ten times the patience); `min_sites`, the
number of sites that must answer an exchange.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cirm.federated import USER_HAS_SET_TELEMETRY
from cirm.federated.connection import SiteMessenger
from cirm.federated.coordinator import FederatedStudyCoordinator
from cirm.federated.study import FederatedStudySettings
from cirm.learners import parse_learner_settings
from cirm.settings import parse_name_value_assignments


def run_federated_study(grid: Grid, context: Context) -> None:
    """Run the study that the run configuration describes."""
    torch.set_num_threads(1)
    if not USER_HAS_SET_TELEMETRY:
        _print_log_line(
            "Flower sends usage data to its developers. To prevent this, set "
            "FLWR_TELEMETRY_ENABLED=0 before its commands are started."
        )
    create_study_coordinator(grid, context.run_config).run()


def create_study_coordinator(
    grid: Grid, config: Mapping[str, Any]
) -> FederatedStudyCoordinator:
    """Create the coordinator of the study that a run configuration describes."""
    learner = str(config.get("learner", "bvirm"))
    texts = parse_name_value_assignments(
        shlex.split(str(config.get("settings", ""))), "settings"
    )
    study = FederatedStudySettings(
        name=str(config.get("study", "study")),
        learner=learner,
        features=(),
        settings=parse_learner_settings(learner, texts),
        preset=str(config.get("preset", "")),
        seeds=tuple(map(int, str(config.get("seeds", "0")).split())),
    )
    stages = [part.split() for part in str(config.get("stages", "")).split(";")]
    patience = float(config.get("patience", 600.0))
    lifetime = float(config.get("lifetime", 0.0)) or 10 * patience
    if not 0 < patience <= lifetime:
        raise ValueError(
            f"patience, how long the server waits for a site, is {patience:g} "
            "seconds, and lifetime, after which it drops a request without an "
            f"answer, is {lifetime:g} seconds. Use a positive patience, and a "
            "lifetime that is at least as long; a lifetime of 0 means ten times the "
            "patience."
        )
    folder = Path(str(config.get("folder", "") or f"study-{study.name}"))
    connection = SiteMessenger(grid, patience, lifetime, _print_log_line)
    min_sites = int(config.get("min_sites", 1))
    return FederatedStudyCoordinator(
        study, stages, connection, folder, min_sites, _print_log_line
    )


def _print_log_line(text: str) -> None:
    print(text, flush=True)


app = ServerApp()
app.main()(run_federated_study)
