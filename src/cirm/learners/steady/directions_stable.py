"""Learn the stable model of a stage: what inputs say of the classes beside features.

A feature that the view hides is no longer there. What another one says is a fixed part
of the logits in training, so that the networks need not learn it; what they know of it
from earlier environments is measured on the rows of the stage and subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.columns_arrival import compute_correlation
from cirm.learners.steady.directions_search import compute_means_by_group
from cirm.learners.steady.directions_state import SteadyNetworkState
from cirm.learners.steady.directions_tables import FeatureLeakIntoLogits
from cirm.learners.steady.directions_training import (
    LabelledTrainingRows,
    Model,
    NetworkEnsemble,
    compute_ensemble_member_outputs,
    select_held_out_outputs_of_members,
    train_ensemble_members,
)
from cirm.likelihoods import Likelihood
from cirm.randomness import Randomness
from cirm.training import Descent, Watch

SLOW = 0.2  # of the usual rate, where features are explained: rows that agree with them
# say little, and a network that has learned before forgets more than they tell

CLEARLY = 2.0  # standard errors by which a stable model beats chance on new rows
SURELY = 2.5  # the same on the rows of a stage: members stop where they predict best
# the rows left out, which adds about half a standard error

ABSENT = -1e4  # logit of a class without a row at a place: its rows can show nothing of
# this class, and networks that are told to rule it out would do so everywhere


class RowsWithKnownFeatures(NamedTuple):
    """What is known of the rows of one replica.

    Values [feature, n] of the features, classes [n], environments [n], whether each
    feature is hidden from the networks, and the number of classes.
    """

    values: Tensor
    targets: Tensor
    places: Tensor
    is_hidden: list[bool]
    classes: int

    def compute_logits_of_known_features(self, with_hidden_features: bool) -> Tensor:
        """Return what frequencies and features say of the classes of rows, [n, k]."""
        chosen = [with_hidden_features or not hidden for hidden in self.is_hidden]
        values = self.values[torch.tensor(chosen, dtype=torch.bool)]
        offset = torch.zeros(len(self.targets), self.classes).double()
        for place in range(int(self.places.max()) + 1):
            here = self.places == place
            counts = torch.bincount(self.targets[here], minlength=self.classes)
            table = tables.count_feature_values_by_class(
                values[:, here], self.targets[here], self.classes
            )
            said = tables.compute_class_log_likelihoods(
                tables.convert_counts_to_probabilities(table).log(), values[:, here]
            )
            offset[here] = (
                tables.convert_counts_to_probabilities(counts.double()).log() + said
            ).masked_fill(counts == 0, ABSENT)
        return offset


class HeldOutLogits(NamedTuple):
    """Held-out logits [n, k] of a model, without leak and calibrated.

    `correction` [feature, value, class] is subtracted from its logits, and `leak` is
    what of it the last training left. `calibration` [share, 2] are factors and weights.
    """

    logits: Tensor
    correction: Tensor
    leak: FeatureLeakIntoLogits
    calibration: Tensor


def train_stable_ensemble(
    model: Model,
    initial_params: Tensor,
    inputs: Tensor,
    rows_of_replicas: list[RowsWithKnownFeatures],
    is_first_stage: bool,
    likelihood: Likelihood,
    descent: Descent,
    randomness: Randomness,
    watch: Watch,
    inputs_of_members: Tensor | None = None,
) -> tuple[NetworkEnsemble, list[HeldOutLogits]]:
    """Train an ensemble on inputs [replica, n, ...] in the view of their replica.

    `inputs_of_members` [replica, member, n, ...] are the same in views of each member,
    if these differ.
    """
    before = compute_mean_logits_of_members(model, initial_params, inputs)
    corrections = [
        torch.zeros(len(s.values), s.classes, s.classes).double()
        if is_first_stage
        else tables.measure_feature_leak_into_logits(logits, s.values, s.targets).parts
        for s, logits in zip(rows_of_replicas, before, strict=True)
    ]
    offsets = [
        s.compute_logits_of_known_features(with_hidden_features=False)
        - sum_corrections_of_features(correction, s.values)
        for s, correction in zip(rows_of_replicas, corrections, strict=True)
    ]
    offset = torch.stack(offsets).float()
    targets = torch.stack([s.targets for s in rows_of_replicas])
    differ = inputs_of_members is not None
    seen = inputs if inputs_of_members is None else inputs_of_members
    rows = LabelledTrainingRows(seen, targets, offset, differ)
    slow = torch.tensor(
        [not is_first_stage and not all(s.is_hidden) for s in rows_of_replicas]
    )
    pace = torch.where(slow, SLOW, 1.0)
    parts = likelihood, descent, randomness, watch, pace
    fit = train_ensemble_members(model, initial_params, rows, *parts)
    outputs = subtract_mean_logit(
        compute_ensemble_member_outputs(model, fit.params, seen, differ)
    )
    held_out = select_held_out_outputs_of_members(outputs, fit.folds)
    judged = [
        correct_and_calibrate_held_out_logits(*part)
        for part in zip(held_out, rows_of_replicas, corrections, strict=True)
    ]
    gains = [
        compute_logit_scale_of_ensemble(members, t)
        for members, t in zip(outputs, targets, strict=True)
    ]
    return fit, [
        part._replace(calibration=part.calibration * torch.tensor([gain, 1.0]).double())
        for part, gain in zip(judged, gains, strict=True)
    ]


def compute_logit_scale_of_ensemble(outputs: Tensor, targets: Tensor) -> float:
    """Return the factor that gives an ensemble's logits the spread of a member's.

    The calibration is that of single members, on rows that they have not seen. Noise of
    `outputs` [member, n, k] within classes cancels in their mean, which would otherwise
    be less certain than it may be.
    """
    classes = outputs.shape[-1]

    def measure_spread_within_classes(logits: Tensor) -> Tensor:
        rest = logits - compute_means_by_group(logits, targets, classes)[targets]
        return rest.square().sum()

    members = torch.stack(
        [measure_spread_within_classes(member) for member in outputs]
    ).mean()
    mean = measure_spread_within_classes(outputs.mean(0)).clamp(min=1e-12)
    return max(1.0, float((members / mean).sqrt()))


def correct_and_calibrate_held_out_logits(
    held_out: Tensor, rows: RowsWithKnownFeatures, correction: Tensor
) -> HeldOutLogits:
    """Return held-out logits [n, k] of one replica, corrected and calibrated."""
    logits = held_out.double() - sum_corrections_of_features(correction, rows.values)
    leak = tables.measure_feature_leak_into_logits(logits, rows.values, rows.targets)
    logits = logits - sum_corrections_of_features(leak.parts, rows.values)
    offset = rows.compute_logits_of_known_features(with_hidden_features=True)
    calibration = tables.fit_logit_calibration(logits, offset, rows.targets)
    logits = tables.calibrate_logits(logits, calibration)
    return HeldOutLogits(logits, correction + leak.parts, leak, calibration)


def has_single_target(targets: Tensor) -> bool:
    """Return whether the targets [replica, n] of every replica are all the same."""
    return bool((targets == targets[:, :1]).all())


def does_stable_model_tell_class(
    logits_before: Tensor, held_out: HeldOutLogits, rows: RowsWithKnownFeatures
) -> bool:
    """Return whether rows of one replica tell the class when features are hidden.

    If not, the features are what tells the class, and no shortcut. Two models judge:
    the networks of before, which have not seen these rows and have `logits_before`
    [n, k], unless they are new, and those trained now, on held-out rows. The more
    classes there are, the more it costs to set them aside, and the more does what is
    left tell of them.
    """
    z = [compute_z_of_recall(held_out.logits, rows.targets)]
    if logits_before.any():
        none = torch.zeros(len(rows.values), rows.classes, rows.classes).double()
        before = correct_and_calibrate_held_out_logits(logits_before, rows, none)
        z.append(max(0.0, compute_z_of_recall(before.logits, rows.targets)))
    return sum(z) > SURELY * (len(z) * (rows.classes - 1)) ** 0.5


def are_outputs_better_than_chance(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether outputs [n, k] of new rows clearly tell more than a constant."""
    if outputs.shape[-1] == 1:
        correlation = compute_correlation(outputs, targets[:, None].to(outputs))
        return bool(correlation > CLEARLY / len(targets) ** 0.5)
    return compute_z_of_recall(outputs, targets) > CLEARLY


def compute_z_of_recall(outputs: Tensor, targets: Tensor) -> float:
    """Return by how many standard errors the mean recall of classes exceeds chance.

    It does not depend on how frequent classes are. A place with only one class does not
    show it, so that z is infinite.
    """
    is_right = (outputs.argmax(-1) == targets).double()
    counts = targets.bincount()
    counts = counts[counts > 0]
    recalls = torch.stack([is_right[targets == c].mean() for c in targets.unique()])
    error = (0.25 / counts).sum().sqrt()  # of the sum, at most
    return torch.inf if len(recalls) == 1 else float((recalls.sum() - 1) / error)


def keep_earlier_calibration(
    state: SteadyNetworkState, held_out: HeldOutLogits
) -> HeldOutLogits:
    """Return held-out logits of few rows with the calibration of one replica's state.

    Nor do few rows tell what networks know of features.
    """
    known = held_out.correction
    return held_out._replace(
        calibration=state.calibration.to(held_out.calibration),
        correction=state.correction[: len(known)].to(known),
        leak=held_out.leak._replace(
            size=float(state.leak[0]), error=float(state.leak[1])
        ),
    )


def compute_mean_logits_of_members(
    model: Model, params: Tensor, inputs: Tensor
) -> Tensor:
    """Return the mean logits [replica, n, k] of members, less their mean."""
    logits = compute_ensemble_member_outputs(model, params, inputs)
    return subtract_mean_logit(logits).mean(1)


def subtract_mean_logit(logits: Tensor) -> Tensor:
    """Return logits less their mean over classes."""
    return logits - logits.mean(-1, keepdim=True)


def sum_corrections_of_features(correction: Tensor, values: Tensor) -> Tensor:
    """Return the sum over features of a correction at their values [feature, n]."""
    total = torch.zeros(values.shape[1], correction.shape[-1]).double()
    for part, feature in zip(correction, values, strict=True):
        total = total + part[feature]
    return total
