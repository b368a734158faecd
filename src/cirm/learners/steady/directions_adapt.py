"""Adapt one replica to unlabelled rows, or refuse to."""

from __future__ import annotations

import torch
from torch import Tensor

from cirm.learners.steady import directions_tables as tables
from cirm.learners.steady.directions_features import measure_distance_of_nearest_centres
from cirm.learners.steady.directions_state import (
    DirectionsAdaptation,
    SteadyNetworkState,
    get_unstable_features_of_replica,
)
from cirm.learners.steady.meta_analysis import combine_effects_of_environments

FEWEST_ROWS = 30
LEAST_INFORMATION = 2.0  # in log likelihood: what chance gains in 5 % of the cases
AVERSION = 4.0  # how much worse a loss by adapting is than a gain of the same size
LEAST_WEIGHT = 0.02  # of a calibration that is looked at: less changes no decision
MISFIT = 3.0, 0.005  # standard errors, and share of the rows, of a contradiction
MISREAD = 6.0  # standard deviations between values, below which some are misread (above
# it, less than one in 700)
WORST_LEAK = 0.75  # of the separation of classes: with more, EM follows the leak

REFUSALS = (
    "",
    "nothing unstable was found, so there is nothing to adapt",
    f"there are fewer than {FEWEST_ROWS} rows without labels",
    "the stable model is hardly better than chance, so it cannot show what a feature "
    "means here",
    "the stable model depends on the unstable feature, or may do so",
    "adapting would not have helped at the places seen",
    "these rows do not show clearly enough what the unstable feature says about the "
    "target here",
    "what the unstable feature would mean here contradicts the stable model",
)


def estimate_adaptation_of_replica(
    state: SteadyNetworkState, raw_logits: Tensor, values: Tensor
) -> DirectionsAdaptation:
    """Return what unlabelled rows with logits of networks [n, k] and values tell."""
    kept = state.adaptation
    logits = correct_stable_logits_by_features(state, raw_logits, values)
    refused = _find_reason_not_to_adapt(state, logits, values)
    draws = torch.zeros(tables.DRAWS, *kept.draws.shape[1:]).to(kept.draws)
    found = len(values)
    table, error = torch.zeros_like(kept.tables), torch.zeros_like(kept.error)
    before = after = 0.0
    if not refused:
        estimate = tables.estimate_value_tables_by_em(
            logits, values, pool_value_tables_of_environments(state, found)
        )
        table[:found] = estimate.tables.to(table)
        error[:found] = estimate.error.to(error)
        before, after = compare_likelihoods_of_feature_values(
            logits, values, estimate.tables
        )
        refused = find_reason_to_refuse_adaptation(logits, values, estimate.draws)
        gain = len(logits) * (after - before)
        if not refused and not is_gain_worth_its_tables(gain, found, logits.shape[1]):
            refused = 6
        if not refused and may_estimate_be_leak(state, estimate.tables):
            refused = 4
        is_calibrated = bool(state.calibration.any())  # not in earlier versions
        if (
            not refused
            and is_calibrated
            and not do_gains_outweigh_losses(
                *measure_gains_by_calibration(state, raw_logits, values, estimate)
            )
        ):
            refused = 6
        if not refused:
            draws[:, :found] = estimate.draws.to(draws)
    notes = torch.tensor([float(len(logits)), float(refused), before, after])
    return DirectionsAdaptation(draws, table, error, notes)


def is_gain_worth_its_tables(gain: float, n_tables: int, n_classes: int) -> bool:
    """Return whether a log likelihood gains enough by tables (Akaike's criterion).

    A table has k (k - 1) free probabilities, of which k - 1 remain if it says nothing.
    """
    return gain >= n_tables * (n_classes - 1) ** 2


def find_reason_to_refuse_adaptation(
    logits: Tensor, values: Tensor, drawn_tables: Tensor
) -> int:
    """Return the code of the reason not to use an estimate, or 0.

    `drawn_tables` are log tables from the posterior. If one of them were true, the gain
    of adapting is how many more classes the adapted model would get right than the
    stable one. Gains must outweigh losses. And the adapted model must on average be as
    sure as the stable model of the classes which that predicts: that is the law of
    total probability, and EM breaks it where the stable model depends on the feature.
    """
    stable = logits.double().softmax(-1)
    beliefs = _compute_beliefs(logits, values, drawn_tables)
    adapted = beliefs.mean(0)
    first, second = (p.argmax(-1)[:, None] for p in (stable, adapted))
    gains = _measure_gains_of_draws(beliefs, first, second)
    if not do_gains_outweigh_losses(gains, torch.ones_like(gains)):
        return 6
    doubt = (stable - adapted).gather(1, first)[:, 0]
    error = float(doubt.std()) / len(doubt) ** 0.5
    return 7 if float(doubt.mean()) > max(MISFIT[0] * error, MISFIT[1]) else 0


def do_gains_outweigh_losses(gains: Tensor, weights: Tensor) -> bool:
    """Whether gains of adapting, each with a weight, are worth the losses."""
    gained = (weights * gains.clamp(min=0)).sum()
    return bool(gained > AVERSION * -(weights * gains.clamp(max=0)).sum())


def measure_gains_by_calibration(
    state: SteadyNetworkState,
    raw_logits: Tensor,
    values: Tensor,
    estimate: tables.ValueTableEstimate,
) -> tuple[Tensor, Tensor]:
    """Return the gains of adapting, and their weights, by calibration of the model.

    How sure the stable model may be of clear rows is known from few held-out rows. If
    it may be surer, features say less, and following them costs more. So the tables are
    estimated again for each share of noise, and the predictions that adapting leads to
    are judged by them. Weights are those of the shares on held-out rows.
    """
    logits = correct_stable_logits_by_features(state, raw_logits, values)
    adapted = _compute_beliefs(logits, values, estimate.draws).mean(0)
    first, second = (p.argmax(-1)[:, None] for p in (logits, adapted))
    gains, weights = [torch.zeros(0).double()], [torch.zeros(0).double()]
    for i, weight in enumerate(state.calibration[:, 1].double().tolist()):
        if weight < LEAST_WEIGHT:
            continue
        only = torch.zeros_like(state.calibration)
        only[i, 0], only[i, 1] = state.calibration[i, 0], 1
        own = correct_stable_logits_by_features(
            state._replace(calibration=only), raw_logits, values
        )
        draws = tables.draw_value_tables_near_estimate(estimate.tables, own, values)
        beliefs = _compute_beliefs(own, values, draws)
        gains.append(_measure_gains_of_draws(beliefs, first, second))
        weights.append(torch.full_like(gains[-1], weight))
    return torch.cat(gains), torch.cat(weights)


def _compute_beliefs(logits: Tensor, values: Tensor, drawn_tables: Tensor) -> Tensor:
    """Return the probabilities [draw, n, k] of classes by drawn log tables."""
    evidence = tables.compute_class_log_likelihoods(drawn_tables.double(), values)
    return (logits.double() + evidence).softmax(-1)


def _measure_gains_of_draws(beliefs: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return how much more often answers `second` [n, 1] are right than `first`."""
    right = [
        beliefs.gather(2, chosen.expand(len(beliefs), -1, -1))[..., 0].mean(1)
        for chosen in (first, second)
    ]
    return right[1] - right[0]


def may_estimate_be_leak(state: SteadyNetworkState, estimated_tables: Tensor) -> bool:
    """Whether a feature seems to mean what it meant before, and may be a leak instead.

    Where a feature is partly misread, the stable model may have learned it, which rows
    with the same frequency of misreadings cannot show. Nor can rows of which fewer
    contradict the feature than its table has cells off the diagonal. Such a leak has
    the sign of the environments seen; so an estimate with this sign may be the leak,
    and one against it is not.
    """
    known = get_unstable_features_of_replica(state)
    seen = pool_value_tables_of_environments(state, len(known))
    if seen is None:
        return False
    counts = state.tables[: int(state.places), : len(known)].double().sum(0)
    for j, (here, before) in enumerate(zip(estimated_tables, seen, strict=True)):
        is_hidden = known[j].view.does_view_change_rows()
        apart = measure_distance_of_nearest_centres(known[j].feature)
        contradicting = float(counts[j].sum() - counts[j].amax(0).sum())
        is_leak_known = contradicting >= len(here) * (len(here) - 1)
        if (is_hidden or apart > MISREAD) and is_leak_known:
            continue
        # The value of each class is the one that it shows more often than others do.
        lifts = [table - table.mean(0) for table in (before.to(here), here)]
        value_of_class = lifts[0].argmax(1, keepdim=True)
        if float(lifts[1].gather(1, value_of_class).mean()) > 0:
            return True
    return False


def pool_value_tables_of_environments(
    state: SteadyNetworkState, n_features: int
) -> Tensor | None:
    """Return the tables of all environments with labels so far, if there are any."""
    counts = state.tables[: int(state.places), :n_features].double().sum(0)
    return (
        tables.convert_counts_to_probabilities(counts) if bool(counts.any()) else None
    )


def correct_stable_logits_by_features(
    state: SteadyNetworkState, logits: Tensor, values: Tensor
) -> Tensor:
    """Return stable logits [n, k] of one replica: without leak, calibrated, with prior.

    The frequencies of the classes are those of all rows so far.
    """
    for j, feature in enumerate(values):
        logits = logits - state.correction[j][feature]
    frequencies = tables.convert_counts_to_probabilities(state.moments.counts)
    if state.calibration.any():
        logits = tables.calibrate_logits(logits, state.calibration)
    else:  # a state of an earlier version has a factor only
        logits = state.temperature * logits
    return logits + frequencies.log().to(logits)


def compare_likelihoods_of_feature_values(
    logits: Tensor, values: Tensor, table: Tensor
) -> tuple[float, float]:
    """Return the mean log likelihood of values if they say nothing, and with tables."""
    classes = logits.shape[1]
    even = torch.zeros_like(table)
    for j, feature in enumerate(values):
        counts = torch.bincount(feature, minlength=classes).double()
        even[j] = tables.convert_counts_to_probabilities(counts)
    log_f = logits.double().log_softmax(-1)
    fits = [
        float(
            (log_f + tables.compute_class_log_likelihoods(t.log(), values))
            .logsumexp(-1)
            .mean()
        )
        for t in (even, table)
    ]
    return fits[0], fits[1]


def measure_gain_of_adapting(
    logits: Tensor, values: Tensor, targets: Tensor, known_tables: Tensor | None
) -> Tensor:
    """Return rows, log likelihood and accuracy, stable and adapted without labels."""
    if not len(values):
        return torch.zeros(5)
    estimate = tables.estimate_value_tables_by_em(logits, values, known_tables)
    evidence = tables.compute_class_log_likelihoods(estimate.draws, values)
    adapted = (logits + evidence).softmax(-1).mean(0).log()
    numbers = [float(len(targets))]
    for scores in (logits.double().log_softmax(-1), adapted):
        likelihood = scores.gather(1, targets[:, None]).mean()
        right = (scores.argmax(-1) == targets).double().mean()
        numbers += [float(likelihood), float(right)]
    return torch.tensor(numbers)


def _find_reason_not_to_adapt(
    state: SteadyNetworkState, logits: Tensor, values: Tensor
) -> int:
    """Return the code of the reason not to adapt, or 0."""
    if not len(values):
        return 1
    if len(logits) < FEWEST_ROWS:
        return 2
    if measure_log_likelihood_gain_over_chance(state) < LEAST_INFORMATION:
        return 3
    error = float(state.leak[1])
    if 2 * error > WORST_LEAK:
        return 4
    weights = state.gains[:, 0]
    gain = (weights * (state.gains[:, 3] - state.gains[:, 1])).sum()
    return 5 if float(gain) < 0 else 0


def measure_log_likelihood_gain_over_chance(state: SteadyNetworkState) -> float:
    """Return the log likelihood that the stable model gains over class frequencies.

    It is that of all held-out rows of environments with unstable features. Accuracy
    would not do: a model that is right in half of the rows may still know which.
    """
    frequencies = tables.convert_counts_to_probabilities(state.moments.counts)
    chance = float((frequencies * frequencies.log()).sum())
    rows, likelihood = state.gains[:, :2].double().unbind(-1)
    return float((rows * (likelihood - chance)).sum())


def choose_value_log_tables_for_prediction(
    state: SteadyNetworkState, trust: str
) -> Tensor:
    """Return log tables [draw, feature, class, value] to predict with, of one replica.

    Those of an adaptation, else by trust: none, or the mean over environments.
    """
    draws = state.adaptation.draws
    found, places = int(state.found), int(state.places)
    if trust == "invariant" or not found or draws.any():
        return draws
    evidence = torch.zeros_like(draws)
    for j in range(found):
        counts = state.tables[:places, j].double() + 0.5
        mean = (counts / counts.sum(-1, keepdim=True)).log().mean(0).log_softmax(-1)
        if trust == "average" or _is_agreement_with_class_consistent(
            state.tables[:places, j]
        ):
            evidence[:, j] = mean.to(evidence)
    return evidence


def _is_agreement_with_class_consistent(value_counts: Tensor) -> bool:
    """Whether a new environment can be expected to agree more, or less, than chance.

    By the prediction interval of a random-effects meta-analysis of the log odds.
    """
    k = value_counts.shape[-1]
    right = value_counts.diagonal(dim1=1, dim2=2).sum(1).double() + 0.5
    wrong = value_counts.sum((1, 2)).double() + 1 - right
    chance = torch.tensor(1 / (k - 1)).log()
    summary = combine_effects_of_environments(
        (right / wrong).log() - chance, 1 / right + 1 / wrong
    )
    low, high = summary.compute_prediction_interval()
    return bool(low > 0) or bool(high < 0)
