"""Inferred environments kept in a folder, so that learners of the same data share them.

The file of an inference is named by what decides it: the data, the inference's own
settings, the seeds and the stage. It is written at once or not at all, and one that is
missing or damaged is made anew. Two processes may make the same one: the outcome is
the same, and a lock would outlive a process that is killed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.inference.eiil import EIIL, pool_stage, split_groups
from cirm.randomness import Randomness
from cirm.records import write_text
from cirm.training import Watch, ignore_steps


@dataclass(frozen=True)
class CachedInference:
    """An inference whose outcome is read from `folder` if it is there.

    `data` says, in any words, which data the stages come from.
    """

    inference: EIIL
    folder: Path
    data: str

    def __call__(
        self, stage: Stage, randomness: Randomness, watch: Watch = ignore_steps
    ) -> Stage:
        """The environments inferred of the stage's examples, now or earlier."""
        pool = pool_stage(stage)
        path = self._path(randomness)
        second = read_groups(path, len(pool))
        if second is None:
            second = self.inference.second(pool, randomness, watch)
            write_groups(path, second)
        return split_groups(pool, second)

    def _path(self, randomness: Randomness) -> Path:
        content = repr((self.data, self.inference, randomness))
        name = hashlib.sha256(content.encode()).hexdigest()[:20]
        return self.folder / f"{name}.json"


def write_groups(path: Path, second: Tensor) -> None:
    """Keep which examples [n] are in the second group."""
    places = np.packbits(second.numpy()).tobytes()
    content = {
        "examples": len(second),
        "second": places.hex(),
        "sha256": hashlib.sha256(places).hexdigest(),
    }
    write_text(path, json.dumps(content) + "\n")


def read_groups(path: Path, examples: int) -> Tensor | None:
    """Which of so many examples are in the second group, [n]; none if not known."""
    try:
        content = json.loads(path.read_text("utf-8"))
        places = bytes.fromhex(content["second"])
        whole = content["sha256"] == hashlib.sha256(places).hexdigest()
        fits = content["examples"] == examples
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if not whole or not fits:
        return None
    bits = np.unpackbits(np.frombuffer(places, np.uint8), count=examples)
    return torch.from_numpy(bits.astype(bool))
