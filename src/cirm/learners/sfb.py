"""Stable feature boosting: relearn unstable features where stable ones can teach them.

Eastwood, Singh, Nicolicioiu, Vlastelica, von Kuegelgen and Schoelkopf, "Spuriosity
Didn't Kill the Classifier: Using Invariant Predictions to Harness Spurious Features",
2023, equations 3 to 6. A stable network is trained with a penalty for differences
between environments, here that of IRMv1. A second network has features that may mean
something else in each environment: it has a last layer of its own for each, and adds
to the logits of the first. Features of both should be independent given the class, for
which their squared covariance within classes is penalised. At a new environment the
stable network labels the inputs; a last layer for the unstable features is fitted to
these labels, corrected for their errors, and combined with the stable prediction.
Without inputs of the environment the stable network predicts. Classification only.
Departures: the risk of both networks together and the covariance train the unstable
network only, so that the stable one is that of `irmv1` with replay; and the correction,
which the paper has for two classes, is that of a confusion matrix.

On a sequence some examples of each past environment are kept, and take part as one
more environment with a last layer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cirm.environments import Examples, Stage
from cirm.learners.base import ORIGINAL, Learner
from cirm.learners.features import compute_logit_of_each_class
from cirm.learners.linear_models import fit_linear_head_of_each_replica
from cirm.learners.rehearsal import build_batch_with_past_environments
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
    move_tensors_to_device,
)
from cirm.objectives import (
    Batch,
    apply_linear_heads,
    average_values_by_environment,
    build_terms_of_penalised_loss,
    check_penalty_settings,
    compute_irm_penalties,
    get_annealed_penalty_weight,
    split_averaging_weights_by_class,
)
from cirm.randomness import Randomness
from cirm.training import Terms, Watch, ignore_training_steps

LEAST_PROBABILITY = 1e-3  # of a class given unstable features, after the correction


class UnstableFeatureHead(NamedTuple):
    """What unstable features say at one environment; empty unless adapted.

    Attributes:
        head: Last layer for unstable features, [replica, h].
        confusion: Probability of each label of the stable network given the class,
            [replica, k, k].
        prior: Frequencies of the classes, [replica, k].
    """

    head: Tensor
    confusion: Tensor
    prior: Tensor


class SFBState(NamedTuple):
    """The stable and the unstable network [replica, p], kept examples, adaptation."""

    params: Tensor
    unstable: Tensor
    memory: PastExampleMemory
    boost: UnstableFeatureHead


@dataclass(frozen=True)
class SFB(Learner[SFBState]):
    """A stable network, boosted at a new environment by features relearned there.

    Args:
        penalty: Weight of IRMv1's penalty on the stable network.
        anneal: Fraction of a stage's training after which the penalty has its full
            weight; before, the weight is at most one.
        independence: Weight of the squared covariance between the logits of the stable
            network and the unstable features within classes.
        l2: Weight of half the squared last layer that is fitted at a new environment,
            for losses that are summed over its inputs.
        memory: Number of random examples kept of each environment.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(SFB(memory=5)).shape
        torch.Size([1, 20, 2])
    """

    penalty: float = 100.0
    anneal: float = 0.5
    independence: float = 1.0
    l2: float = 1.0
    memory: int = 100

    presets = {  # the settings of IRM's authors on coloured digits
        "irm": {
            "penalty": 91257.18613115903,
            **{name: value for name, value in ORIGINAL.items() if name != "l2"},
        }
    }
    tasks = ("classification",)
    adapts = True

    def __post_init__(self) -> None:
        check_penalty_settings("sfb", self.penalty, self.anneal, self.l2)
        self.check_setting("independence", self.independence >= 0, "0 or more")
        self.check_setting("memory", self.memory >= 0, "0 or more")

    def init(self, randomness: Randomness) -> SFBState:
        """Return random parameters of both networks."""
        params, unstable = (
            self.network.init(randomness.at(name)) for name in ("params", "unstable")
        )
        memory = create_empty_memory(len(params))
        return SFBState(
            params, unstable, memory, create_empty_unstable_feature_head(params)
        )

    def observe(
        self,
        state: SFBState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> SFBState:
        """Train both networks, then keep some examples."""
        past = move_tensors_to_device(state, self.descent.device)
        count = len(stage) + len(state.memory.sizes)
        heads = past.unstable[:, self.network.head].repeat(1, count)
        start = torch.cat([past.params, past.unstable, heads], 1)
        flat = self.descent.minimise(
            self.compute_loss, start, past, stage, randomness, watch
        )
        params, unstable, heads = self.split_parameters_into_networks_and_heads(flat)
        unstable = unstable.clone()
        unstable[:, self.network.head] = heads.mean(1)
        memory = add_examples_of_stage_to_memory(
            state.memory, stage, self.memory, randomness.at("memory")
        )
        return SFBState(
            params.clone(), unstable, memory, create_empty_unstable_feature_head(params)
        )

    def split_parameters_into_networks_and_heads(
        self, flat: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return both networks [replica, p] and last layers [replica, e, h]."""
        size, head = self.network.size, self.network.head
        params, unstable, heads = flat.tensor_split([size, 2 * size], 1)
        return params, unstable, heads.unflatten(1, (-1, head.stop - head.start))

    def compute_loss(self, params: Tensor, past: SFBState, batch: Batch) -> Terms:
        """Return the penalised risks of the stable network and of both together."""
        batch = build_batch_with_past_environments(self.descent, batch, past.memory)
        own, other, heads = self.split_parameters_into_networks_and_heads(params)
        outputs = self.network(own.contiguous(), batch.x, batch.noise)
        features = self.network.compute_features(
            other.contiguous(), batch.x, batch.noise
        )
        pieces = zip(heads.unbind(1), features.split(batch.sizes, 1), strict=True)
        added = torch.cat([apply_linear_heads(*pair) for pair in pieces], 1)
        risk, both = (
            average_values_by_environment(
                self.likelihood.compute_losses(values, batch.y), batch.share
            ).mean(-1)
            for values in (outputs, outputs.detach() + added)
        )
        penalty = compute_irm_penalties(self.likelihood, outputs, batch).mean(-1)
        weight = get_annealed_penalty_weight(self.penalty, self.anneal, batch.progress)
        dependence = self.compute_squared_covariance_within_classes(
            outputs.detach(), features, batch
        )
        return {
            **build_terms_of_penalised_loss(risk, penalty, weight, params),
            "joint risk": both,
            "dependence": self.independence * dependence,
        }

    def compute_squared_covariance_within_classes(
        self, outputs: Tensor, features: Tensor, batch: Batch
    ) -> Tensor:
        """Return the mean squared covariance within classes, [replica]."""
        classes = self.likelihood.classes  # type: ignore[attr-defined]
        share = split_averaging_weights_by_class(batch.share, batch.y, classes)
        means = (share @ outputs).unsqueeze(-1), (share @ features).unsqueeze(-2)
        weighted = share.unsqueeze(-1) * outputs.unsqueeze(1)
        products = weighted.mT @ features.unsqueeze(1)
        return (products - means[0] * means[1]).square().mean((-3, -2, -1))

    def outputs(self, state: SFBState, inputs: Tensor) -> Tensor:
        """Return the stable logits, or those with unstable features added."""
        logits = compute_logit_of_each_class(self, state.params, inputs)
        if not state.boost.prior.shape[1]:
            return logits.unsqueeze(1)
        features = self.network.compute_features(state.unstable, inputs)
        outputs = apply_linear_heads(state.boost.head, features)
        labels = self.likelihood.compute_class_logits(outputs).softmax(-1)  # type: ignore[attr-defined]
        classes = correct_probabilities_for_confusion(labels, state.boost.confusion)
        prior = state.boost.prior.unsqueeze(1)
        return (logits.log_softmax(-1) + (classes / prior).log()).unsqueeze(1)

    def adapt(self, state: SFBState, inputs: Tensor) -> SFBState:
        """Return the state with a last layer for unstable features fitted to inputs."""
        with torch.no_grad():
            p = compute_logit_of_each_class(self, state.params, inputs).softmax(-1)
            features = self.network.compute_features(state.unstable, inputs)
        labels = p.argmax(-1)
        start = torch.zeros_like(state.unstable[:, self.network.head])
        head = fit_linear_head_of_each_replica(
            self.likelihood,
            Examples(features, labels),
            torch.ones_like(p[..., 0]),
            self.l2,
            start,
        )
        one_hot = torch.nn.functional.one_hot(labels, p.shape[-1]).to(p)
        totals = p.sum(1).clamp(min=torch.finfo(p.dtype).tiny)
        confusion = (p.mT @ one_hot) / totals.unsqueeze(-1)
        return state._replace(boost=UnstableFeatureHead(head, confusion, p.mean(1)))

    def forget_adaptation(self, state: SFBState) -> SFBState:
        """Return the state without a last layer for unstable features."""
        return state._replace(boost=create_empty_unstable_feature_head(state.params))


def create_empty_unstable_feature_head(params: Tensor) -> UnstableFeatureHead:
    """Return the boost of a state that is not adapted."""
    none = params.new_zeros(len(params), 0)
    return UnstableFeatureHead(none, params.new_zeros(len(params), 0, 0), none)


def correct_probabilities_for_confusion(
    label_probabilities: Tensor, confusion_matrix: Tensor
) -> Tensor:
    """Return probabilities of classes from those of labels, [replica, n, k].

    Given the class, the label of the stable network does not depend on unstable
    features: the probabilities of labels are those of classes times the confusion
    matrix [replica, k, k], which is inverted. For two classes with accuracies a and b
    of the labels, that of the second class is (p + a - 1) / (a + b - 1).
    """
    classes = label_probabilities @ torch.linalg.pinv(confusion_matrix)
    classes = classes.clamp(LEAST_PROBABILITY, 1.0)
    return classes / classes.sum(-1, keepdim=True)
