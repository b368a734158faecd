"""The state of the learner `cirm`, and how its models see inputs."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from cirm.learners.cirm import shortcuts
from cirm.learners.cirm.drift import Slope
from cirm.learners.cirm.moments import Moments
from cirm.memory import Memory
from cirm.variational import Gaussian


class State(NamedTuple):
    """What is kept between stages; networks are [replica, member, p].

    `centre` [replica, d] is the mean input of the first stage. `directions` [replica,
    member, rank, d] are hidden from the invariant model. `correction` [replica, 2]
    multiplies its logits and the reference's answers. `tally` [replica, 3, 2] counts
    held-out examples for which the reference is right and wrong: all, and those that
    the plain and the invariant model classify correctly. `evidence` [replica, 4] is
    read by `Evidence.from_tensor`. `slope` is the gradient of the plain model's risk on
    held-out examples. `moments`, in regression only, are those of all examples so far.
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


class Evidence(NamedTuple):
    """What speaks for a shortcut, [replica] each.

    `p_value` is the least p-value of a disagreement between environments about a known
    feature (in regression, the strength of the evidence instead), `p_value_any` that
    about any feature, `comparisons` the number of comparisons, and `taught` is 1 if the
    reference was trained on what they disagree about.
    """

    p_value: Tensor
    p_value_any: Tensor
    comparisons: Tensor
    taught: Tensor

    @classmethod
    def from_tensor(cls, evidence: Tensor) -> Evidence:
        """Return the columns of the state's `evidence` [replica, 4]."""
        return cls(*evidence.unbind(1))


class View(NamedTuple):
    """How a model sees inputs: without the `centre` [replica, d] and `directions`."""

    centre: Tensor
    directions: Tensor

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return inputs [replica, n, ...] as the model sees them."""
        flat = inputs.flatten(2) - self.centre.unsqueeze(1)
        if self.directions.shape[1]:
            flat = shortcuts.remove_directions(flat, self.directions)
        return flat.view(inputs.shape)


class Past(NamedTuple):
    """What stays fixed while a model is trained: its view, cell weights and prior."""

    view: View
    weights: Tensor
    prior: Gaussian


def make_view(state: State, members: int, hidden: bool = True) -> View:
    """Return the view of members, with or without the directions hidden."""
    centre = state.centre.repeat_interleave(members, 0)
    directions = state.directions.flatten(0, 1)
    return View(centre, directions if hidden else directions[:, :0])
