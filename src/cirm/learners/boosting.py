"""Gradient boosting: trees fitted one after another, scikit-learn's, without a network.

Friedman, "Greedy Function Approximation: A Gradient Boosting Machine", 2001, as in
scikit-learn's `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`. It
is the strongest plain method for many tables. The fitted trees are stored as tensors
and evaluated here, so that a model file holds no code.

On a sequence there are three readings, by `sequence`: all examples are kept and the
trees are fitted to all of them; or only the last stage counts; or the predictions of
the stages' models are averaged. The latter two keep no example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cirm.environments import Stage
from cirm.learners.base import Learner
from cirm.memory import (
    PastExampleMemory,
    add_examples_of_stage_to_memory,
    create_empty_memory,
    move_tensors_to_device,
)
from cirm.randomness import Randomness
from cirm.training import Watch, ignore_training_steps


class BoostedTreeEnsembles(NamedTuple):
    """Models of boosted trees, one for each stage that counts.

    An example starts at node 0 and goes to the left child where its feature is at most
    the threshold; a leaf is its own child. The leaves' values are added to one output
    each, [replica, model, tree]. All but `outputs` and `baseline` are
    [replica, model, tree, node].

    Attributes:
        feature: Feature that is compared.
        threshold: What it is compared with.
        left: The left child.
        right: The right child.
        value: What a leaf adds.
        outputs: The output that a tree adds to.
        baseline: What the outputs are without trees, [replica, model, k].
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    outputs: Tensor
    baseline: Tensor


class BoostingState(NamedTuple):
    """The trees, and the examples that are kept."""

    forest: BoostedTreeEnsembles
    memory: PastExampleMemory


@dataclass(frozen=True)
class Boosting(Learner[BoostingState]):
    """Boosted trees on the inputs; the settings of training are not used.

    Args:
        iterations: Number of trees, for each class if there are more than two.
        shrinkage: Factor on what each tree adds.
        leaves: Most leaves of a tree.
        leaf_examples: Fewest examples in a leaf.
        l2: Weight of the squared values of the leaves.
        sequence: What happens to earlier stages: "pool" keeps all their examples,
            "last" forgets them, "average" averages the models of all stages.

    Example:
        >>> from cirm.learners import train_on_tiny_data
        >>> train_on_tiny_data(Boosting(leaf_examples=5)).shape
        torch.Size([1, 20, 2])
    """

    iterations: int = 100
    shrinkage: float = 0.1
    leaves: int = 31
    leaf_examples: int = 20
    l2: float = 0.0
    sequence: Literal["pool", "last", "average"] = "pool"

    presets = {
        "scikit-learn": {
            "iterations": 100,
            "shrinkage": 0.1,
            "leaves": 31,
            "leaf_examples": 20,
            "l2": 0.0,
        }
    }
    defaults = {"network": "linear"}  # not used; this one is small

    def __post_init__(self) -> None:
        self.check_setting("iterations", self.iterations >= 1, "1 or more")
        self.check_setting("shrinkage", self.shrinkage > 0, "above 0")
        self.check_setting("leaves", self.leaves >= 2, "2 or more")
        self.check_setting("leaf_examples", self.leaf_examples >= 1, "1 or more")
        self.check_setting("l2", self.l2 >= 0, "0 or more")
        valid = self.sequence in ("pool", "last", "average")
        self.check_setting("sequence", valid, "pool, last or average")

    @property
    def trains_network(self) -> bool:
        """Whether it trains a network: no, it grows trees."""
        return False

    @property
    def classes(self) -> int:
        """Number of classes; 0 for regression."""
        return getattr(self.likelihood, "classes", 0)

    def init(self, randomness: Randomness) -> BoostingState:
        """Return no trees and no examples."""
        replicas = len(randomness.seeds)
        empty = self.create_empty_tree_ensemble()
        none = BoostedTreeEnsembles(
            *(part.expand(replicas, *part.shape)[:, None] for part in empty)
        )
        forest = BoostedTreeEnsembles(*(part[:, :0].contiguous() for part in none))
        return BoostingState(forest, create_empty_memory(replicas))

    def observe(
        self,
        state: BoostingState,
        stage: Stage,
        randomness: Randomness,
        watch: Watch = ignore_training_steps,
    ) -> BoostingState:
        """Fit trees to the examples of the stage, or of all stages."""
        replicas, source = len(randomness.seeds), randomness.at("memory")
        pooled = self.sequence == "pool"
        memory = state.memory if pooled else create_empty_memory(replicas)
        whole = add_examples_of_stage_to_memory(
            memory, stage, max(map(len, stage)), source
        )
        fitted = [
            self.fit_boosted_trees(x, y) for x, y in zip(*whole.kept, strict=True)
        ]
        forest = BoostedTreeEnsembles(
            *(torch.stack(p).unsqueeze(1) for p in zip(*fitted, strict=True))
        )
        if self.sequence == "average":
            pairs = zip(state.forest, forest, strict=True)
            forest = BoostedTreeEnsembles(*(torch.cat(pair, 1) for pair in pairs))
        watch(1, 1, {})
        return BoostingState(forest, whole if pooled else state.memory)

    def outputs(self, state: BoostingState, inputs: Tensor) -> Tensor:
        """Return logits or values [replica, model, n, k]."""
        x = inputs.flatten(2).cpu()
        models = state.forest.baseline.shape[1]
        if not models:
            return inputs.new_zeros(len(x), 1, x.shape[1], max(1, self.classes))
        forest = move_tensors_to_device(state.forest, "cpu")
        found = [
            compute_outputs_of_boosted_trees(
                BoostedTreeEnsembles(*(part[replica, m] for part in forest)), rows
            )
            for replica, rows in enumerate(x)
            for m in range(models)
        ]
        return torch.stack(found).unflatten(0, (len(x), models)).to(inputs)

    def create_empty_tree_ensemble(self) -> BoostedTreeEnsembles:
        """Return as many trees as are fitted, all of them without effect."""
        trees = self.iterations * (self.classes if self.classes > 2 else 1)
        nodes = 2 * self.leaves - 1
        places = torch.arange(nodes, dtype=torch.int32).repeat(trees, 1)
        zeros = torch.zeros(trees, nodes, dtype=torch.float64)
        return BoostedTreeEnsembles(
            feature=torch.zeros(trees, nodes, dtype=torch.int32),
            threshold=zeros.clone(),
            left=places.clone(),
            right=places.clone(),
            value=zeros.clone(),
            outputs=torch.zeros(trees, dtype=torch.int32),
            baseline=torch.zeros(max(1, self.classes), dtype=torch.float64),
        )

    def fit_boosted_trees(self, x: Tensor, y: Tensor) -> BoostedTreeEnsembles:
        """Fit trees to inputs [n, ...] and targets [n] of one replica."""
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )

        forest = self.create_empty_tree_ensemble()
        settings = {
            "max_iter": self.iterations,
            "learning_rate": self.shrinkage,
            "max_leaf_nodes": self.leaves,
            "min_samples_leaf": self.leaf_examples,
            "l2_regularization": self.l2,
            "early_stopping": False,
            "random_state": 0,
        }
        known = y.unique().tolist() if self.classes else [0]
        if self.classes:
            # A class without examples gets less than one of them would give it.
            forest.baseline[:] = float(np.log(0.5 / len(y)))
            forest.baseline[known] = 0.0
        if self.classes and len(known) == 1:
            return forest
        cls: Any = HistGradientBoostingRegressor
        if self.classes:
            cls = HistGradientBoostingClassifier
        model = cls(**settings).fit(x.flatten(1).numpy(), y.numpy())
        # With two classes there is one tree an iteration, for the second class.
        targets = known if len(known) > 2 or not self.classes else known[1:]
        copy_trees_into_tensors(model, forest, targets)
        return forest


def copy_trees_into_tensors(
    model: Any,  # noqa: ANN401
    forest: BoostedTreeEnsembles,
    output_indices: list[int],
) -> None:
    """Copy the trees of a scikit-learn model into a forest that is large enough.

    The trees of an iteration add to the outputs `output_indices`, in this order.
    """
    forest.baseline[output_indices] += torch.from_numpy(
        np.asarray(model._baseline_prediction, dtype=np.float64).reshape(-1)
    )
    trees = [
        (target, tree.nodes)
        for trees in model._predictors
        for target, tree in zip(output_indices, trees, strict=True)
    ]
    for place, (target, nodes) in enumerate(trees):
        size, inner = len(nodes), ~nodes["is_leaf"].astype(bool)
        forest.outputs[place] = target
        forest.value[place, :size] = torch.from_numpy(nodes["value"] * ~inner)
        rows = torch.from_numpy(np.flatnonzero(inner))
        for part, name in (
            (forest.feature, "feature_idx"),
            (forest.threshold, "num_threshold"),
            (forest.left, "left"),
            (forest.right, "right"),
        ):
            values = torch.from_numpy(nodes[name][inner].astype(np.float64))
            part[place, rows] = values.to(part.dtype)


def compute_outputs_of_boosted_trees(forest: BoostedTreeEnsembles, x: Tensor) -> Tensor:
    """Return the outputs [n, k] of one model for inputs [n, d]."""
    x = x.double()
    trees = torch.arange(len(forest.outputs))
    node = torch.zeros(len(x), len(trees), dtype=torch.int64)
    for _ in range(forest.left.shape[1]):  # no path is longer than all nodes
        values = x.gather(1, forest.feature[trees, node].long())
        goes_left = values <= forest.threshold[trees, node]
        children = torch.where(
            goes_left, forest.left[trees, node], forest.right[trees, node]
        )
        if torch.equal(children.long(), node):
            break
        node = children.long()
    added = torch.zeros(len(x), len(forest.baseline), dtype=torch.float64)
    added.index_add_(1, forest.outputs.long(), forest.value[trees, node])
    return forest.baseline + added
