"""A learner of your own in one file: it minimises the risk of the worst environment.

    python examples/own_learner.py

`cirm.fit`, the estimators and `cirm.run` take the instance as it is, and the command
line takes `--learner own_learner:Worst`. To offer it by a name of its own, see
examples/second_package.
"""

from dataclasses import dataclass

from torch import Tensor

from cirm import Descent, Learner, PointState, create, run
from cirm.data.scm import SCM
from cirm.objectives import Batch, compute_environment_risks
from cirm.training import Terms


@dataclass(frozen=True)
class Worst(Learner[PointState]):
    """Mean risk, mixed with `weight` times the risk of the worst environment."""

    weight: float = 0.5

    def compute_loss(self, params: Tensor, past: PointState, batch: Batch) -> Terms:
        """Return the two parts of each replica's loss."""
        risks = compute_environment_risks(self.network, self.likelihood, params, batch)
        worst = self.weight * risks.max(-1).values
        return {"worst": worst, "mean": (1 - self.weight) * risks.mean(-1)}


if __name__ == "__main__":
    problem = SCM(examples=200).draw_problem((0, 1))
    settings = Descent(epochs=150, batch=0, rate=0.02)
    learner = create(Worst(descent=settings), problem.train[0], {"hidden": ()})
    for record in run(learner, problem, "joint", seeds=(0, 1), label="worst"):
        if record.kind == "score" and record.split == "train":
            print(f"seed {record.seed}, {record.environment}: error {record.value:.3f}")
