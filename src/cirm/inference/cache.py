"""Cache of inferred environments in a folder, shared by all learners of the same data.

The file name is a hash of everything that decides the result: the data, the settings,
the seeds and the stage. Files are written atomically, and a missing or damaged file is
computed again. Two processes may compute the same file; the result is the same, and a
lock would outlive a process that is killed.
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
from cirm.inference.eiil import EIIL, pool_environments, split_environment_by_group
from cirm.randomness import Randomness
from cirm.records import write_text_atomically
from cirm.training import Watch, ignore_training_steps


@dataclass(frozen=True)
class CachedInference:
    """An inference whose results are read from a folder if they are there.

    Args:
        inference: How environments are inferred.
        folder: Where results are stored.
        data: Text that identifies the data of the stages.
    """

    inference: EIIL
    folder: Path
    data: str

    def __call__(
        self, stage: Stage, randomness: Randomness, watch: Watch = ignore_training_steps
    ) -> Stage:
        """Return the inferred environments of a stage, computed now or earlier."""
        pool = pool_environments(stage)
        path = self._get_inference_cache_path(randomness)
        second = read_inferred_groups(path, len(pool))
        if second is None:
            second = self.inference.infer_groups(pool, randomness, watch)
            write_inferred_groups(path, second)
        return split_environment_by_group(pool, second)

    def _get_inference_cache_path(self, randomness: Randomness) -> Path:
        content = repr((self.data, self.inference, randomness))
        name = hashlib.sha256(content.encode()).hexdigest()[:20]
        return self.folder / f"{name}.json"


def write_inferred_groups(path: Path, is_in_second_group: Tensor) -> None:
    """Write which examples [n] are in the second group."""
    places = np.packbits(is_in_second_group.numpy()).tobytes()
    content = {
        "examples": len(is_in_second_group),
        "second": places.hex(),
        "sha256": hashlib.sha256(places).hexdigest(),
    }
    write_text_atomically(path, json.dumps(content) + "\n")


def read_inferred_groups(path: Path, n_examples: int) -> Tensor | None:
    """Read which examples [n] are in the second group; None without a valid file."""
    try:
        content = json.loads(path.read_text("utf-8"))
        places = bytes.fromhex(content["second"])
        whole = content["sha256"] == hashlib.sha256(places).hexdigest()
        fits = content["examples"] == n_examples
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if not whole or not fits:
        return None
    bits = np.unpackbits(np.frombuffer(places, np.uint8), count=n_examples)
    return torch.from_numpy(bits.astype(bool))
