"""T3A: at a new place, move the last layer's templates towards confident examples.

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain
Generalization", 2021, algorithm 1. Training is plain. Each class has a template, at
first the weights of the last layer. Features of inputs of the new environment join the
template of the class that is predicted for them. Of each class the `support` members of
lowest entropy are averaged, and a new input goes to the class whose mean has the
largest product with its features. Classification only. Departure: the paper meets its
inputs one after another, here all of them are used at once, so that their order does
not matter.

On a sequence training continues on whatever arrives. Nothing of the past is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.learners.last_layer import compute_plain_loss
from cirm.objectives import apply_linear_heads
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class T3AState(NamedTuple):
    """Parameters [replica, p], and templates of the classes [replica, width, k].

    Unless the state is adapted, there are no templates, [replica, 0, 0].
    """

    params: Tensor
    templates: Tensor


@dataclass(frozen=True)
class T3A(Learner[T3AState]):
    """Plain training, with templates of the classes adapted to a new environment.

    Args:
        support: Number of members of a class that its template averages; 0 for all.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(T3A()).shape
        torch.Size([1, 20, 2])
    """

    support: int = 20

    presets = {f"support-{n}": {"support": n} for n in (1, 5, 20, 50, 100)}
    tasks = ("classification",)
    adapts = True
    compute_loss = compute_plain_loss

    def __post_init__(self) -> None:
        self.check_setting("support", self.support >= 0, "0 or more")

    def init(self, randomness: Randomness) -> T3AState:
        """Return random parameters, without templates."""
        params = self.network.init(randomness.at("params"))
        return T3AState(params, params.new_zeros(len(params), 0, 0))

    def observe(
        self,
        state: T3AState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> T3AState:
        """Minimise the mean risk."""
        args = state.params, (), stage, randomness, watch
        params = self.descent.minimise(self.compute_loss, *args)
        return T3AState(params, params.new_zeros(len(params), 0, 0))

    def outputs(self, state: T3AState, inputs: Tensor) -> Tensor:
        """Return outputs of the network, or products with templates, as logits."""
        if not state.templates.shape[1]:
            return self.network(state.params, inputs).unsqueeze(1)
        features = self.network.compute_features(state.params, inputs)
        return (features @ state.templates).unsqueeze(1)

    def adapt(self, state: T3AState, inputs: Tensor) -> T3AState:
        """Return the state with templates that the inputs have joined."""
        head = state.params[:, self.network.head]
        with torch.no_grad():
            features = self.network.compute_features(state.params, inputs)
            width, outputs = features.shape[-1], self.network.outputs
            weights = head[:, : width * outputs].unflatten(-1, (width, outputs))
            if outputs == 1:  # the second class's logit, the other one's is zero
                weights = torch.cat([-weights / 2, weights / 2], -1)
            members = torch.cat([weights.mT, features], 1)
            answers = apply_linear_heads(head, members)
            logits = self.likelihood.compute_class_logits(answers)  # type: ignore[attr-defined]
            templates = compute_mean_feature_of_each_class(
                members, logits, self.support or members.shape[1], weights
            )
        return state._replace(templates=templates)

    def forget_adaptation(self, state: T3AState) -> T3AState:
        """Return the state without templates."""
        return state._replace(templates=state.templates[:, :0, :0])


def compute_mean_feature_of_each_class(
    features: Tensor, logits: Tensor, max_per_class: int, default_templates: Tensor
) -> Tensor:
    """Return templates [replica, width, k] of members [replica, m, width].

    Members belong to the class of their largest logit [replica, m, k]. A class without
    members keeps its weights [replica, width, k].
    """
    log_p = logits.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    directions = F.normalize(features, dim=-1)
    templates = []
    for label in range(logits.shape[-1]):
        outside = logits.argmax(-1) != label
        ranks = entropy.masked_fill(outside, torch.inf).argsort(-1).argsort(-1)
        chosen = (ranks < max_per_class) & ~outside
        total = (directions * chosen.unsqueeze(-1)).sum(1)
        none = ~chosen.any(-1, keepdim=True)
        templates.append(torch.where(none, default_templates[..., label], total))
    return F.normalize(torch.stack(templates, -1), dim=1)
