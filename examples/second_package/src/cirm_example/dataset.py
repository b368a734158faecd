"""Wards of a hospital whose habits give the outcome away in training only."""

from dataclasses import dataclass

import torch

from cirm import Environment, Problem, Randomness, Task
from cirm.data.base import Dataset

HABITS = {"ward-a": 0.9, "ward-b": 0.7, "ward-c": 0.1}


@dataclass(frozen=True)
class Wards(Dataset):
    """Patients with a noisy symptom, and a habit that predicts the outcome.

    Args:
        examples: Number of patients of each ward.
    """

    examples: int = 200

    def draw_problem(self, seeds: tuple[int, ...]) -> Problem:
        """Return two training wards, and one where the habit is reversed."""
        wards = []
        for name, habit in HABITS.items():
            randomness = Randomness(seeds).at(name)
            outcome = randomness.at("outcome").uniform(self.examples) < 0.5
            follows = randomness.at("habit").uniform(self.examples) < habit
            noise = randomness.at("symptom").normal(self.examples)
            columns = [outcome + noise, (outcome == follows).float()]
            wards.append(
                Environment(
                    name,
                    torch.stack(columns, -1),
                    outcome.long(),
                    Task.classification(2),
                    replicated=True,
                )
            )
        return Problem(train=tuple(wards[:2]), test=tuple(wards[2:]))
