"""The progress of a study, in a file from which a server that was stopped continues."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cirm.federated.study import FederatedStageInfo, FederatedStudySettings
from cirm.federated.tensor_file import (
    get_optimiser_state_tensors,
    read_tensor_file,
    restore_optimiser_state,
    write_tensor_file,
)

CHECKPOINT_NAME = "checkpoint.safetensors"
FINAL_TENSOR_NAMES = ("ended.features", "ended.shared", "ended.local")


@dataclass
class FederatedStageProgress:
    """The progress of a stage; tensors are [replica, ...].

    `values` and `locals` are the last that each site sent: a site that is absent keeps
    its place in the average.
    """

    info: FederatedStageInfo
    features: Tensor
    shared: Tensor
    past: Tensor
    prior: Tensor
    optimiser: torch.optim.Optimizer
    steps_done: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    locals: dict[str, Tensor] = field(default_factory=dict)


class StudyCheckpoint:
    """The file of a study, whose stages are lists of site names.

    It holds what the last stage ended with and, during a stage, its progress.
    """

    def __init__(self, folder: Path, stages: Sequence[Sequence[str]]) -> None:
        self.path = folder / CHECKPOINT_NAME
        self.stages = [list(names) for names in stages]
        self.tensors, self.notes = read_tensor_file(self.path) or ({}, {})

    def resume_study(
        self, study: FederatedStudySettings
    ) -> tuple[FederatedStudySettings, int]:
        """Return the study and the stage to continue with; refuse another study's file.

        A new study gets an id of its own, by which sites distinguish it from others.
        """
        if not self.notes:
            return replace(study, run_id=secrets.token_hex(4)), 0
        before = FederatedStudySettings.from_json(self.notes["study"])
        same = replace(
            study,
            features=before.features,
            classes=before.classes,
            run_id=before.run_id,
        )
        started = self.notes["stages"][: self.notes["stage"] + 1]
        if same != before or started != self.stages[: len(started)]:
            changes = [
                f"{name} (saved: {value!r}, requested: {getattr(same, name)!r})"
                for name, value in vars(before).items()
                if value != getattr(same, name)
            ]
            if started != self.stages[: len(started)]:
                saved = self.notes["stages"]
                changes.append(f"stages (saved: {saved}, requested: {self.stages})")
            raise ValueError(
                f"{self.path}: the folder contains a study that was started with other "
                f"settings. These settings differ: {', '.join(changes)}. Use the saved "
                "settings to continue that study, or choose another folder to start a "
                "new one."
            )
        return before, int(self.notes["stage"])

    @property
    def finished_stage_tensors(self) -> list[Tensor]:
        """Features, w and the mean of all w_e at the end of the last stage, if any."""
        return [
            self.tensors[name] for name in FINAL_TENSOR_NAMES if name in self.tensors
        ]

    def is_stage_unfinished(self, stage: int) -> bool:
        """Return whether the stage has been started and has not ended."""
        return "shared" in self.tensors and bool(self.notes["stage"] == stage)

    def restore_stage_progress(self, state: FederatedStageProgress) -> None:
        """Set the state of a stage that has been started to its progress."""
        state.features.data.copy_(self.tensors["features"])
        state.shared, state.steps_done = self.tensors["shared"], self.notes["done"]
        state.info = FederatedStageInfo(*self.notes["info"])
        restore_optimiser_state(state.optimiser, self.tensors)
        for prefix, sent in (("value.", state.values), ("local.", state.locals)):
            for name in (name for name in self.tensors if name.startswith(prefix)):
                sent[name.removeprefix(prefix)] = self.tensors[name]

    def save_stage_progress(
        self, study: FederatedStudySettings, state: FederatedStageProgress
    ) -> None:
        """Replace the file by the progress of a stage."""
        tensors = dict(
            zip(FINAL_TENSOR_NAMES, self.finished_stage_tensors, strict=False)
        )
        tensors |= {"features": state.features, "shared": state.shared}
        tensors |= get_optimiser_state_tensors(state.optimiser)
        tensors |= {f"value.{name}": tensor for name, tensor in state.values.items()}
        tensors |= {f"local.{name}": tensor for name, tensor in state.locals.items()}
        notes = {"done": state.steps_done, "info": list(state.info)}
        self._write_checkpoint(study, state.info.number, tensors, notes)

    def save_finished_stage(
        self, study: FederatedStudySettings, state: FederatedStageProgress
    ) -> None:
        """Replace the file by the end of a stage."""
        local = torch.stack([state.locals[name] for name in sorted(state.locals)], 1)
        ends = state.features, state.shared, local.mean(1, keepdim=True)
        tensors = {n: t.detach() for n, t in zip(FINAL_TENSOR_NAMES, ends, strict=True)}
        self._write_checkpoint(study, state.info.number + 1, tensors, {})

    def _write_checkpoint(
        self,
        study: FederatedStudySettings,
        stage: int,
        tensors: dict[str, Tensor],
        notes: Mapping[str, Any],
    ) -> None:
        facts = {"study": study.to_json(), "stages": self.stages, "stage": stage}
        self.tensors, self.notes = tensors, {**facts, **notes}
        write_tensor_file(self.path, self.tensors, self.notes)


def load_result_of_study(folder: Path) -> tuple[Any, Any]:
    """Load the learner and its state after the last stage that has ended."""
    checkpoint = StudyCheckpoint(folder, ())
    if not checkpoint.finished_stage_tensors:
        raise FileNotFoundError(
            f"{folder}: the study in this folder has not finished its first stage, so "
            "it has no model yet. Wait until the stage has finished, or give the "
            "folder of another study."
        )
    learner = FederatedStudySettings.from_json(
        checkpoint.notes["study"]
    ).create_learner_of_study()
    return learner, learner.build_state_after_stage(*checkpoint.finished_stage_tensors)
