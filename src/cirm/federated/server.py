"""The Flower app of the server.

Its run configuration: `study`, a name; `learner`, `preset` and `settings` as `cirm run`
has them; `stages`, the names of the sites, those of a stage separated by spaces and
stages by semicolons; `seeds`; `folder` for the checkpoint and the ledger; `patience`,
the seconds that an exchange waits for a site; `lifetime`, the seconds after which a
request is given up (0: ten times the patience); `least`, the sites that must answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cirm.federated import CHOSEN
from cirm.federated.link import Link
from cirm.federated.meetings import Meetings
from cirm.federated.study import Study
from cirm.learners import parse_learner_settings
from cirm.settings import parse_assignments


def main(grid: Grid, context: Context) -> None:
    """Run the study that the run configuration describes."""
    torch.set_num_threads(1)
    if not CHOSEN:
        _say(
            "Flower's telemetry is on, as its commands were not told otherwise: start "
            "them with FLWR_TELEMETRY_ENABLED=0"
        )
    meetings_of(grid, context.run_config).run()


def meetings_of(grid: Grid, told: Mapping[str, Any]) -> Meetings:
    """The study that a run configuration describes, over a grid."""
    learner = str(told.get("learner", "bvirm"))
    texts = parse_assignments(shlex.split(str(told.get("settings", ""))), "settings")
    study = Study(
        name=str(told.get("study", "study")),
        learner=learner,
        features=(),
        settings=parse_learner_settings(learner, texts),
        preset=str(told.get("preset", "")),
        seeds=tuple(map(int, str(told.get("seeds", "0")).split())),
    )
    stages = [part.split() for part in str(told.get("stages", "")).split(";")]
    patience = float(told.get("patience", 600.0))
    lifetime = float(told.get("lifetime", 0.0)) or 10 * patience
    if not 0 < patience <= lifetime:
        raise ValueError(
            "patience: it must be positive seconds, and lifetime no less; got "
            f"{patience} and {lifetime}"
        )
    return Meetings(
        study,
        stages,
        Link(grid, patience, lifetime, _say),
        Path(str(told.get("folder", "") or f"study-{study.name}")),
        int(told.get("least", 1)),
        _say,
    )


def _say(text: str) -> None:
    print(text, flush=True)


app = ServerApp()
app.main()(main)
