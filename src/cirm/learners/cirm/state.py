"""What the learner `cirm` carries on, and how its models see inputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.drift import Slope
from cirm.learners.cirm.moments import Moments
from cirm.memory import Memory
from cirm.variational import Gaussian


class State(NamedTuple):
    """What is carried on; networks are [replica, member, p].

    `centre` [replica, d] is the mean input of the first stage. `directions` [replica,
    member, rank, d] are hidden from the invariant model. `correction` [replica, 2]
    multiplies its logits and the reference's answers. `tally` [replica, 3, 2] counts
    held-out examples where the reference was right and wrong: all, and those that the
    plain and the invariant model got right. `evidence` [replica, 4] is the least
    probability that environments disagree as they do by chance, if it is known on what
    (for values, how strongly they do), and whether it is or not, the number of
    comparisons, and whether the reference was taught what they disagree on. `slope` is
    how the risk of the plain model sloped on held-out examples; `moments`, of values
    only, are those of all examples so far.
    """

    posterior: Gaussian
    plain: Tensor
    reference: Tensor
    centre: Tensor
    directions: Tensor
    correction: Tensor
    tally: Tensor
    evidence: Tensor
    slope: Slope
    moments: Moments
    memory: Memory


class View(NamedTuple):
    """How a model sees inputs: less the `centre` [replica, d] and `directions`."""

    centre: Tensor
    directions: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Inputs [replica, n, ...] as they are seen."""
        flat = inputs.flatten(2) - self.centre.unsqueeze(1)
        if self.directions.shape[1]:
            flat = shortcuts.remove_directions(flat, self.directions)
        return flat.view(inputs.shape)


class Past(NamedTuple):
    """What stays fixed while a model learns: its view, cell weights and prior."""

    view: View
    weights: Tensor
    prior: Gaussian


def make_view(state: State, members: int, hidden: bool = True) -> View:
    """How members see inputs: with the state's directions hidden, or not."""
    centre = state.centre.repeat_interleave(members, 0)
    directions = state.directions.flatten(0, 1)
    return View(centre, directions if hidden else directions[:, :0])
