"""The state of the columns engine: what is kept of the environments seen."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cirm.learners.steady.columns_basis import HingeFeatureBasis
from cirm.learners.steady.columns_effects import EffectEstimates
from cirm.learners.steady.columns_glm import CoefficientPosterior

Part = TypeVar("Part", bound=tuple[Any, ...])

SAMPLES = 16  # posterior samples of a prediction: enough for a mean and its spread


class EnvironmentSummaries(NamedTuple):
    """Means and effects of each environment seen, in order.

    Attributes:
        rows: Number of rows, [e].
        inputs: Mean of the basis functions, [e, p].
        targets: Class frequencies or mean target, [e, c].
        contrasts: What features say about the targets, [e, d, k] each.
        alignment: For many classes, how far units speak for each if true, [e, d, k].
        alignment_variance: Its sampling variance, [e, d, k].
        cluster_effects: The effect of the score of each cluster of units and its
            variance, at the first feature, [e, d, 2]; [e, 0, 2] in states of earlier
            revisions.
        coefficients: What the score of each unit adds to the target of a regression,
            given the others, and its variance, [e, d, 2]; [e, 0, 2] in states of
            earlier revisions.
        score_effects: The same as `contrasts` of the score of each unit, at its first
            feature, and in a regression of the target's ranks, [e, d, 4]; [e, 0, 4] for
            many classes and in states of earlier revisions.
    """

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    contrasts: EffectEstimates
    alignment: Tensor
    alignment_variance: Tensor
    cluster_effects: Tensor
    coefficients: Tensor
    score_effects: Tensor


class ModelsWithoutOneColumn(NamedTuple):
    """Models of classes that never saw one unit, for the units that matter most.

    Attributes:
        unit: The unit left out, [m].
        mean: Coefficients, [m, k, p].
        ratio: Their information relative to that of the whole model, [m].
    """

    unit: Tensor
    mean: Tensor
    ratio: Tensor


class ScoresBeforeTraining(NamedTuple):
    """What was predicted for each environment before its labels were used.

    Attributes:
        losses: Mean loss under "invariant", "interval", "average" and with adaptation,
            [a, 4].
        scores: Accuracy or fraction of variance explained, in the same order, [a, 4].
        gains: Mean gain of adapting each feature alone over the stable model, [a, d].
        errors: Standard errors of these gains, infinite if not adapted, [a, d].
        skill: Correlation with the target of the predictions without and with unstable
            features, [a, 2].
        shifts: By how much the environment's intercept differs from that of the stable
            model, [a, k].
        shift_variances: Sampling variances of the shifts, [a, k].
        frequency_gains: Mean gain of adapting the class frequencies, [a].
        frequency_errors: Standard errors of these gains, [a].
        slopes: Factor of the predictions' differences that would have fitted best, [a];
            fewer in states of earlier revisions.
        slope_variances: Sampling variances of these factors, [a].
        frequency_misses: By how much the shift that unlabelled rows showed differs from
            that of the labels, [a, k]; fewer in states of earlier revisions.
    """

    losses: Tensor
    scores: Tensor
    gains: Tensor
    errors: Tensor
    skill: Tensor
    shifts: Tensor
    shift_variances: Tensor
    frequency_gains: Tensor
    frequency_errors: Tensor
    slopes: Tensor
    slope_variances: Tensor
    frequency_misses: Tensor


class CoefficientSamples(NamedTuple):
    """Samples of coefficients [s, k, p] and intercepts [s, k] of the basis."""

    coefficients: Tensor
    levels: Tensor


class ColumnsAdaptation(NamedTuple):
    """What was learned from unlabelled rows.

    Attributes:
        predictor: The predictor for the rows' environment.
        rows: Number of rows; 0 if the state is not adapted, [].
        means: Mean of each feature there, [d].
        effects: Posterior median, and 2.5 and 97.5 % points, of each effect, [3, d, k].
        reasons: Why a feature was not adapted, a number in `columns_refuse`, [d].
        frequencies: Class frequencies there, 0 if they were not adapted, [c].
        residual: Size of residuals relative to those before the adaptation, [].
        found: Which features were set aside because of these rows alone, [d]; empty in
            states of earlier revisions.
    """

    predictor: CoefficientSamples
    rows: Tensor
    means: Tensor
    effects: Tensor
    reasons: Tensor
    frequencies: Tensor
    residual: Tensor
    found: Tensor


class SteadyTableState(NamedTuple):
    """Everything that is kept; in the learner's state with a leading replica axis.

    Attributes:
        basis: The basis functions.
        column: Column of each feature, by its first feature, [d]; empty in states of
            earlier revisions.
        unit: Unit of each feature, by its first feature, [d].
        cluster: Cluster of units of each feature, by its first feature, [d]; empty in
            states of earlier revisions.
        simple: Which features need no adjustment for others, [d]; empty in states of
            earlier revisions.
        weights: Weights of features and hinges in the scores of units, and of clusters,
            [2, d (1 + hinges)]; empty in states of earlier revisions.
        needed: Which features represent their units, [d].
        unstable: Which features are set aside, [d].
        entangled: Which features change, but share too much with others to be set
            aside, [d].
        ridge: Prior precision of the coefficients, [p].
        noise: Noise variance of a regression with and without unstable features, [2].
        looks: Number of tests so far, [].
        whole: The model of all features.
        stable: The model without unstable features.
        without: Models without single units, for classes.
        moments: Sums of products of basis and targets, [p + c, p + c].
        places: Summaries of the environments.
        arrivals: Predictions for environments on their arrival.
        base: Samples of the stable model for a new environment.
        predictor: Samples of the model that the setting `trust` asks for.
        adaptation: What was learned from unlabelled rows.
    """

    basis: HingeFeatureBasis
    column: Tensor
    unit: Tensor
    cluster: Tensor
    simple: Tensor
    weights: Tensor
    needed: Tensor
    unstable: Tensor
    entangled: Tensor
    ridge: Tensor
    noise: Tensor
    looks: Tensor
    whole: CoefficientPosterior
    stable: CoefficientPosterior
    without: ModelsWithoutOneColumn
    moments: Tensor
    places: EnvironmentSummaries
    arrivals: ScoresBeforeTraining
    base: CoefficientSamples
    predictor: CoefficientSamples
    adaptation: ColumnsAdaptation


def create_empty_columns_state(
    n_features: int,
    n_basis_functions: int,
    n_outputs: int,
    n_classes: int,
    n_models_without_column: int,
    n_hinges: int,
    n_pairs: int,
) -> SteadyTableState:
    """Return the state of one replica before any data.

    Args:
        n_features: Number of features.
        n_basis_functions: Number of basis functions.
        n_outputs: Number of outputs of the model.
        n_classes: Number of columns of targets: classes, or 1.
        n_models_without_column: Number of models without single units.
        n_hinges: Number of hinges of a feature.
        n_pairs: Number of products of features.
    """

    def create_zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)

    def create_integer_zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int64)

    posterior = CoefficientPosterior(
        create_zeros(n_outputs, n_basis_functions),
        create_zeros(n_outputs, n_basis_functions, n_basis_functions),
    )
    predictor = CoefficientSamples(
        create_zeros(SAMPLES, n_outputs, n_basis_functions),
        create_zeros(SAMPLES, n_outputs),
    )
    return SteadyTableState(
        basis=HingeFeatureBasis(
            centre=create_zeros(n_features),
            scale=create_zeros(n_features),
            limit=create_zeros(n_features),
            knots=create_zeros(n_hinges, n_features),
            slopes=create_zeros(n_hinges, n_features),
            pairs=create_integer_zeros(n_pairs, 2),
            factors=create_zeros(n_pairs),
        ),
        column=create_integer_zeros(n_features),
        unit=create_integer_zeros(n_features),
        cluster=create_integer_zeros(n_features),
        simple=create_integer_zeros(n_features).bool(),
        weights=create_zeros(2, n_features * (1 + n_hinges)),
        needed=create_integer_zeros(n_features).bool(),
        unstable=create_integer_zeros(n_features).bool(),
        entangled=create_integer_zeros(n_features).bool(),
        ridge=create_zeros(n_basis_functions),
        noise=create_zeros(2),
        looks=create_integer_zeros(),
        whole=posterior,
        stable=posterior,
        without=ModelsWithoutOneColumn(
            create_integer_zeros(n_models_without_column),
            create_zeros(n_models_without_column, n_outputs, n_basis_functions),
            create_zeros(n_models_without_column),
        ),
        moments=create_zeros(
            n_basis_functions + n_classes, n_basis_functions + n_classes
        ),
        places=EnvironmentSummaries(
            rows=create_zeros(0),
            inputs=create_zeros(0, n_basis_functions),
            targets=create_zeros(0, n_classes),
            contrasts=EffectEstimates(*([create_zeros(0, n_features, n_outputs)] * 4)),
            alignment=create_zeros(0, n_features, n_outputs),
            alignment_variance=create_zeros(0, n_features, n_outputs),
            cluster_effects=create_zeros(0, n_features, 2),
            coefficients=create_zeros(0, n_features, 2),
            score_effects=create_zeros(0, n_features if n_outputs == 1 else 0, 4),
        ),
        arrivals=ScoresBeforeTraining(
            losses=create_zeros(0, 4),
            scores=create_zeros(0, 4),
            gains=create_zeros(0, n_features),
            errors=create_zeros(0, n_features),
            skill=create_zeros(0, 2),
            shifts=create_zeros(0, n_outputs),
            shift_variances=create_zeros(0, n_outputs),
            frequency_gains=create_zeros(0),
            frequency_errors=create_zeros(0),
            slopes=create_zeros(0),
            slope_variances=create_zeros(0),
            frequency_misses=create_zeros(0, n_outputs),
        ),
        base=predictor,
        predictor=predictor,
        adaptation=create_empty_columns_adaptation(
            predictor, n_features, n_outputs, n_classes
        ),
    )


def create_empty_columns_adaptation(
    predictor: CoefficientSamples, n_features: int, n_outputs: int, n_classes: int
) -> ColumnsAdaptation:
    """Return the record of a state that is not adapted."""
    number = torch.float64
    return ColumnsAdaptation(
        CoefficientSamples(*(torch.zeros_like(part) for part in predictor)),
        torch.zeros((), dtype=torch.int64),
        torch.zeros(n_features, dtype=number),
        torch.zeros(3, n_features, n_outputs, dtype=number),
        torch.zeros(n_features, dtype=torch.int64),
        torch.zeros(n_classes, dtype=number),
        torch.ones((), dtype=number),
        torch.zeros(n_features, dtype=torch.bool),
    )


def compute_mean_targets_of_past(state: SteadyTableState) -> Tensor:
    """Return the class frequencies [c], or the mean target [1], of all rows seen."""
    places = state.places
    return places.rows @ places.targets / places.rows.sum()


def compute_class_frequencies_of_model(state: SteadyTableState) -> Tensor:
    """Return the class frequencies [c] that the intercepts of the model belong to.

    The model learns nothing from an environment of a single class. Before any other,
    all classes are as likely.
    """
    places = state.places
    rows = places.rows * ((places.targets > 0).sum(1) > 1)
    if not bool(rows.any()):
        return torch.full_like(places.targets[0], 1 / places.targets.shape[1])
    return (rows @ places.targets / rows.sum()).clamp(min=1e-6)


def center_moments(state: SteadyTableState) -> Tensor:
    """Return sums of products around the means of each environment, [p + c, p + c]."""
    places = state.places
    means = torch.cat([places.inputs, places.targets], 1)
    return state.moments - (means * places.rows[:, None]).T @ means


def find_basis_functions_of_features(
    state: SteadyTableState, features: Tensor
) -> Tensor:
    """Return which basis functions [p] belong to features [d]."""
    repeated = features.repeat(1 + len(state.basis.knots))
    products = features[state.basis.pairs].any(1)
    return torch.cat([repeated, products, features.new_zeros(1)])


def list_ridge_group_of_basis_functions(state: SteadyTableState) -> Tensor:
    """Return the group of basis functions that share a ridge, [p].

    Features (0), hinges (1), products (2), and the constant (3).
    """
    d, hinges, pairs = len(state.unit), len(state.basis.knots), len(state.basis.pairs)
    sizes = torch.tensor([d, d * hinges, pairs, 1])
    return torch.arange(4).repeat_interleave(sizes)


def append_row_to_tensors(table: Part, row: Part) -> Part:
    """Append one row to each tensor of a table."""
    return type(table)(
        *(
            torch.cat([old, new[None]])
            if isinstance(old, Tensor)
            else append_row_to_tensors(old, new)
            for old, new in zip(table, row, strict=True)
        )
    )
