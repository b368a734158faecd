"""Predictions computed by NumPy: fully connected networks, and `steady` on tables.

NumPy starts in a tenth of torch's time, and computes these few operations as fast.
`build_numpy_predictor` returns None for anything else, which is left to torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cirm.learners import NETWORK_LEARNERS
from cirm.model.facts import ModelTrainingPlan
from cirm.model.outputs import Array, ArrayPredictions, compute_prediction_mean_and_std

ROWS_AT_ONCE = (
    2048  # rows predicted at once, so that what is computed stays in the cache
)
NETWORK_ROWS_AT_ONCE = 512  # the same for networks, which need four times the space
PART_ROWS = 16_384  # the most rows of a thread's task, which allocates its space once
MOST_THREADS = 4  # more would wait for one another and for reading the files
BASIS = ("centre", "scale", "limit", "knots", "slopes", "pairs", "factors")
"""The parts of the basis of `steady`; a state with others is left to torch."""


class NumpyPredictor(Protocol):
    """Computes outputs from rows."""

    def compute_outputs(self, rows: NDArray[np.float32]) -> Array:
        """Return outputs [samples, n, k] of rows [n, d]."""


class FullyConnectedNetwork(NamedTuple):
    """A network of fully connected layers.

    Attributes:
        layers: Weights [in, out] and biases [out] of each layer.
        activation: What follows each layer but the last: "elu", "relu" or "linear".
    """

    layers: list[tuple[Array, Array]]
    activation: str

    def compute_outputs(self, rows: NDArray[np.float32]) -> Array:
        """Return outputs [1, n, k] of rows [n, d]."""
        outputs = np.empty((len(rows), self.layers[-1][1].size), np.float32)
        size = min(NETWORK_ROWS_AT_ONCE, len(rows))
        # Whole arrays, since NumPy is slower with a number, or one row for all.
        biases = [np.tile(bias, (size, 1)) for _, bias in self.layers]
        zeros = [np.zeros_like(bias) for bias in biases]
        sums, below = ([np.empty_like(bias) for bias in biases] for _ in range(2))
        for start in range(0, len(rows), size):
            values: Array = rows[start : start + size]
            n = len(values)
            for index, (weight, _) in enumerate(self.layers):
                values = np.matmul(values, weight, out=sums[index][:n])
                values += biases[index][:n]
                if index == len(self.layers) - 1:
                    outputs[start : start + size] = values
                elif self.activation == "elu":
                    low = np.minimum(values, zeros[index][:n], out=below[index][:n])
                    np.maximum(values, np.expm1(low, out=low), out=values)
                elif self.activation == "relu":
                    np.maximum(values, zeros[index][:n], out=values)
        return outputs[None]


class AverageOfNetworksPredictor(NamedTuple):
    """The weighted mean of the outputs of several networks."""

    networks: list[FullyConnectedNetwork]
    weights: list[float]

    def compute_outputs(self, rows: NDArray[np.float32]) -> Array:
        """Return outputs [1, n, k] of rows [n, d]."""
        pairs = zip(self.networks, self.weights, strict=True)
        parts = [np.float32(w) * one.compute_outputs(rows) for one, w in pairs]
        return np.add.reduce(parts)


class SteadyTablePredictor(NamedTuple):
    """The generalised linear model of `steady` for the columns of a table.

    The basis functions are those of `cirm.learners.steady.columns_basis`, without the
    hinges and products that are not used, whose factors stand in the coefficients.

    Attributes:
        scale: Factor of each feature, [d, 1].
        shift: What is added to each scaled feature, [d, 1].
        limit: Largest absolute value of each feature, [d, 1].
        bent: Features that have hinges, [b].
        knots: Where hinges of these features start, [hinges, b, 1].
        pairs: Features whose products are used, [2, m].
        coefficients: Of features, hinges and products, [samples * k, p].
        levels: What is added to each output, [samples * k, 1].
        outputs: Number of outputs k.
    """

    scale: Array
    shift: Array
    limit: Array
    bent: Array
    knots: Array
    pairs: Array
    coefficients: Array
    levels: Array
    outputs: int

    def compute_outputs(self, rows: NDArray[np.float32]) -> Array:
        """Return outputs [samples, n, k] of rows [n, d]."""
        starts = range(0, len(rows), ROWS_AT_ONCE)
        blocks = [
            self._compute_outputs_of_few_rows(rows[s : s + ROWS_AT_ONCE])
            for s in starts
        ]
        return np.concatenate(blocks, 1)

    def _compute_outputs_of_few_rows(self, rows: NDArray[np.float32]) -> Array:
        """Return outputs [samples, n, k] of rows [n, d]; rows are last in between."""
        d, bent = len(self.scale), len(self.bent)
        basis = np.empty((self.coefficients.shape[1], len(rows)), np.float32)
        features = np.multiply(rows.T, self.scale, out=basis[:d])
        features += self.shift
        np.clip(features, -self.limit, self.limit, out=features)
        chosen, end = features[self.bent], d
        for knots in self.knots:
            own = np.subtract(chosen, knots, out=basis[end : end + bent])
            np.maximum(own, 0, out=own)
            end += bent
        np.multiply(features[self.pairs[0]], features[self.pairs[1]], out=basis[end:])
        flat = self.coefficients @ basis
        flat += self.levels
        return np.moveaxis(flat.reshape(-1, self.outputs, len(rows)), 1, 2)


def build_numpy_predictor(
    plan: ModelTrainingPlan, state: Mapping[str, Array]
) -> NumpyPredictor | None:
    """Return what predicts by the state of a plan; None if that takes torch."""
    if plan.network["kind"] == "mlp" and plan.learner in NETWORK_LEARNERS:
        return _build_network_predictor(plan, state["params"])
    if plan.network["kind"] == "mlp" and plan.learner == "irmg":
        return _build_predictor_of_network_average(plan, state)
    if "leads" in state and not state["leads"].any():  # columns predict, not directions
        state = {name.removeprefix("columns."): state[name] for name in state}
    basis = {name.removeprefix("basis.") for name in state if name.startswith("basis.")}
    if plan.learner != "steady" or basis != set(BASIS):
        return None
    return _build_steady_table_predictor(state)


def _build_network_predictor(
    plan: ModelTrainingPlan, params: Array
) -> FullyConnectedNetwork:
    layers = _split_parameters_into_layers(params, plan.network["sizes"])
    return FullyConnectedNetwork(layers, plan.network["activation"])


def _build_predictor_of_network_average(
    plan: ModelTrainingPlan, state: Mapping[str, Array]
) -> AverageOfNetworksPredictor | None:
    """Return the players' average, in which those of the past count as one."""
    if state["representation"].size:
        return None
    players, past = state["players"], state["past"]
    share = 1 / (len(players) + bool(len(past)))
    weights = [share] * len(players) + [share / max(len(past), 1)] * len(past)
    networks = [_build_network_predictor(plan, own) for own in (*players, *past)]
    return AverageOfNetworksPredictor(networks, weights)


def _split_parameters_into_layers(
    params: Array, sizes: list[int]
) -> list[tuple[Array, Array]]:
    """Return weights [in, out] and biases [out] in flat parameters [p]."""
    ends = np.cumsum([n for a, b in pairwise(sizes) for n in (a * b, b)])
    if params.shape != (ends[-1],) or params.dtype != np.float32:
        raise ValueError("the parameters of the network do not match its layers")
    parts = np.split(params, ends[:-1])
    weights = (w.reshape(s) for w, s in zip(parts[::2], pairwise(sizes), strict=True))
    return list(zip(weights, parts[1::2], strict=True))


def _build_steady_table_predictor(state: Mapping[str, Array]) -> SteadyTablePredictor:
    """Return the predictor of the columns engine, adapted if the state is."""
    centre, scale, limit, knots, slopes, pairs, factors = (
        state[f"basis.{name}"] for name in BASIS
    )
    prefix = "adaptation.predictor" if int(state["adaptation.rows"]) else "predictor"
    coefficients, levels = (
        state[f"{prefix}.{name}"] for name in ("coefficients", "levels")
    )
    if coefficients.dtype != np.float64:
        raise ValueError("the coefficients are not double-precision numbers")
    samples, outputs, p = coefficients.shape
    d, hinges = len(centre), len(knots)
    bent, used = np.flatnonzero(slopes.any(0)), np.flatnonzero(factors)
    sizes = np.cumsum([d, d * hinges, len(factors)])
    own, bends, products, constant = np.split(
        coefficients.reshape(samples * outputs, p), sizes, axis=1
    )
    bends = bends.reshape(len(own), hinges, d) * slopes
    parts = [own, bends[:, :, bent].reshape(len(own), hinges * len(bent))]
    parts.append((products * factors)[:, used])
    single = np.float32  # the precision of the inputs
    return SteadyTablePredictor(
        scale[:, None].astype(single),
        (-centre * scale)[:, None].astype(single),
        limit[:, None].astype(single),
        bent,
        knots[:, bent, None].astype(single),
        pairs[used].T,
        np.concatenate(parts, 1).astype(single),
        (levels.reshape(-1, 1) + constant).astype(single),
        outputs,
    )


def predict_inputs_by_numpy(
    predictor: NumpyPredictor,
    inputs: NDArray[np.float32],
    n_classes: int,
    logit_shifts: Array | None = None,
) -> ArrayPredictions:
    """Return predictions for inputs [n, *shape], computed by one thread per core.

    Args:
        predictor: What computes outputs.
        inputs: Encoded rows.
        n_classes: Number of classes; 0 for regression.
        logit_shifts: What is added to the logit of each class, [classes].
    """
    rows = inputs.reshape(len(inputs), -1)
    threads = count_available_threads()
    # Whole blocks, so that the number of threads changes no digit.
    blocks = -(-len(rows) // (ROWS_AT_ONCE * threads))
    size = min(max(blocks, 1) * ROWS_AT_ONCE, PART_ROWS)
    starts = range(0, len(rows), size)

    def predict_chunk_of_inputs(start: int) -> ArrayPredictions:
        outputs = predictor.compute_outputs(rows[start : start + size])
        return compute_prediction_mean_and_std(outputs, n_classes, logit_shifts)

    threads = min(threads, len(starts))
    if threads < 2:
        pieces = [predict_chunk_of_inputs(start) for start in starts]
    else:
        with limit_blas_threads(), ThreadPoolExecutor(threads) as pool:
            pieces = list(pool.map(predict_chunk_of_inputs, starts))
    return ArrayPredictions(*map(np.concatenate, zip(*pieces, strict=True)))


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Make the products of NumPy compute on the thread that calls them.

    On a busy machine, the threads of a product mostly wait for one another.
    """
    with _find_thread_pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _find_thread_pools() -> Any:  # noqa: ANN401  threadpoolctl has no types
    """Return the thread pools of loaded libraries, NumPy's among them.

    Looking for them takes as long as predicting thousands of rows.
    """
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def count_available_threads() -> int:
    """Return the number of cores or OMP_NUM_THREADS, at most four."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return min(int(wanted), MOST_THREADS)
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), MOST_THREADS)
    return min(os.cpu_count() or 1, MOST_THREADS)
