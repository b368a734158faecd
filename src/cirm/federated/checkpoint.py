"""Where a study stands, in a file; a server that is killed goes on from it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cirm.federated.keeping import load, mover_state, restore_mover, save
from cirm.federated.site import Course
from cirm.federated.study import Study

NAME = "checkpoint.npz"
ENDED = ("features", "shared", "local")


@dataclass
class Table:
    """Where a stage stands; tensors are [replica, ...].

    `value` and `local` are the last that each site sent: one that is absent keeps its
    place in the average.
    """

    course: Course
    features: Tensor
    shared: Tensor
    past: Tensor
    prior: Tensor
    mover: torch.optim.Optimizer
    done: int = 0
    value: dict[str, Tensor] = field(default_factory=dict)
    local: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """The file of a study in its folder.

    `stages` are the names of the sites. After a stage it holds what the stage ended
    with, and during the next one also where that stands.
    """

    folder: Path
    stages: Sequence[Sequence[str]]

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / NAME

    def study(self, told: Study) -> tuple[Study, int]:
        """The study, and the stage to go on with; refuses that of another study.

        One that begins gets a mark of its own, by which sites tell it from others.
        """
        kept = load(self.path)
        if kept is None:
            return replace(told, begun=secrets.token_hex(4)), 0
        notes = kept[1]
        before = Study.read(notes["study"])
        same = replace(
            told,
            features=before.features,
            classes=before.classes,
            begun=before.begun,
        )
        begun = notes["stages"][: notes["stage"] + 1]
        stages = [list(names) for names in self.stages]
        if same != before or begun != stages[: len(begun)]:
            raise ValueError(
                f"{self.path}: a study must go on as it began, with {before.text()} "
                f"and stages {notes['stages']}; got {told.text()} and {stages}"
            )
        return before, int(notes["stage"])

    def ended(self) -> list[Tensor]:
        """What the last stage ended with: features, w and the mean of all w_e."""
        tensors, _ = load(self.path) or ({}, {})
        return [tensors[f"ended.{n}"] for n in ENDED if f"ended.{n}" in tensors]

    def within(self, stage: int) -> bool:
        """Whether the stage has begun and not ended."""
        tensors, notes = load(self.path) or ({}, {})
        return "shared" in tensors and bool(notes["stage"] == stage)

    def restore(self, table: Table) -> None:
        """Let the table of a stage that has begun go on from there."""
        tensors, notes = load(self.path) or ({}, {})
        table.features.data.copy_(tensors["features"])
        table.shared, table.done = tensors["shared"], notes["done"]
        table.course = Course(*notes["course"])
        restore_mover(table.mover, "mover", tensors)
        for kind, held in (("value", table.value), ("local", table.local)):
            prefix = f"{kind}."
            for name in (n for n in tensors if n.startswith(prefix)):
                held[name.removeprefix(prefix)] = tensors[name]

    def keep(self, study: Study, table: Table) -> None:
        """Replace the file by where the stage stands now."""
        before = dict(zip(ENDED, self.ended(), strict=False))
        tensors = {f"ended.{name}": tensor for name, tensor in before.items()}
        tensors |= {"features": table.features, "shared": table.shared}
        tensors |= mover_state(table.mover, "mover")
        tensors |= {f"value.{name}": tensor for name, tensor in table.value.items()}
        tensors |= {f"local.{name}": tensor for name, tensor in table.local.items()}
        course = table.course
        facts = [course.stage, course.steps, course.examples]
        self._write(study, course.stage, tensors, done=table.done, course=facts)

    def close(self, study: Study, table: Table) -> None:
        """Replace the file by what the stage has ended with."""
        local = torch.stack([table.local[name] for name in sorted(table.local)], 1)
        ends = table.features, table.shared, local.mean(1, keepdim=True)
        tensors = {f"ended.{n}": t for n, t in zip(ENDED, ends, strict=True)}
        self._write(study, table.course.stage + 1, tensors)

    def _write(
        self,
        study: Study,
        stage: int,
        tensors: dict[str, Tensor],
        **notes: Any,  # noqa: ANN401  any JSON
    ) -> None:
        told = {"study": study.text(), "stages": [list(names) for names in self.stages]}
        save(self.path, tensors, {**told, "stage": stage, **notes})


def result(folder: Path) -> tuple[Any, Any]:
    """The learner and its state after the last stage that has ended."""
    parts = Checkpoint(folder, ()).ended()
    kept = load(folder / NAME)
    if kept is None or not parts:
        raise FileNotFoundError(f"{folder}: a stage must have ended there; got none")
    learner = Study.read(kept[1]["study"]).made()
    return learner, learner.finish_stage(*parts)
