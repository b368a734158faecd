"""Adapt a model to a new environment, of which only rows without targets are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cirm.data.open_sources import open_sources_for_model
from cirm.data.rows import MEMORY_BYTES, EncodedRows, InputRowStore, read_rows
from cirm.data.schema import Schema
from cirm.data.sources import Data, Progress, ignore_progress_message
from cirm.model.equations import explain_unsolvable_equations
from cirm.model.facts import ModelAdaptation, format_current_time
from cirm.model.model import ADAPTIVE_LEARNER, Model
from cirm.model.warnings import list_warnings_of_environment_inputs
from cirm.randomness import Randomness

MOST_ROWS = 100_000  # as a fit uses of a place; more hardly change 200 coefficients


def adapt(
    model: Model,
    data: Data,
    *,
    fill_missing: bool = False,
    accept_units: bool = False,
    progress: Progress = ignore_progress_message,
) -> Model:
    """Adapt a model to a new environment by rows whose targets are not known.

    What the learner found to differ between environments is estimated anew for this
    one. The adapted model predicts row by row, as any other, and can be saved.

    Args:
        model: A trained model, whose learner can adapt. It does not change. If it was
            adapted before, that is undone first.
        data: Rows of one environment, in any of the forms that `predict` accepts. A
            target column is ignored. Of more than 100,000 rows as many are drawn.
        fill_missing: Whether to treat columns that the data lack as missing values.
            Otherwise they raise an error.
        accept_units: Whether to use numbers that look like another unit than in the
            first environment. Otherwise they raise an error.
        progress: Called with a description of the current step and how far it is, as
            a fraction or as a number of rows.

    Returns:
        The adapted model. Its `adaptation` names the environment and the number of
        rows; `explain` says what was estimated anew, and what was not and why.
        `update` continues from the unadapted model.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the learner cannot adapt, or the data are invalid, suspicious
            and not accepted, or of several environments.

    Example:
        >>> import pandas as pd
        >>> from cirm import adapt, fit
        >>> table = pd.DataFrame({"age": range(80), "ill": ["no", "yes"] * 40})
        >>> model = fit([table[:40]], "ill", learner="steady", unstable=["age"])
        >>> adapted = adapt(model, table[["age"]][40:])
        >>> adapted.adaptation.name, adapted.adaptation.rows
        ('table', 40)
        >>> adapted.explain()["adaptation"]["refusals"][0]
        '`age` was not adapted: it is not known yet whether adapting this column
        helps. Update the model with labelled rows of another place first.'
    """
    if not model.learner.adapts:
        raise ValueError(
            f"The model was trained with the learner {model.plan.learner}, which "
            "cannot adapt to rows without targets. Fit a model with the learner "
            f"{ADAPTIVE_LEARNER}, which can adapt."
        )
    schema = model.schema
    sources = open_sources_for_model(data, schema)
    rows = read_rows(sources, schema, progress, fill_missing, has_targets=False)
    progress("adapting", 1)
    _check_rows_are_of_one_environment(rows, schema)
    (name,) = rows.rows
    indices = _choose_adaptation_rows(rows.store)
    inputs, missing = (
        rows.store.take(indices),
        rows.find_missing_numbers(indices, schema),
    )
    notes = [
        *rows.notes,
        *list_warnings_of_environment_inputs(
            schema, name, inputs.numpy(), missing, accept_units
        ),
    ]
    inputs = _draw_rows_in_any_order(inputs)
    if len(inputs) < rows.store.count:
        notes.append(
            f"{len(inputs):,} of the {rows.store.count:,} rows, drawn at random, "
            "were used to adapt the model."
        )
    if any(schema.target.name in next(s.iterate_frames()).columns for s in sources):
        notes.append(
            f"the target column {schema.target.name!r} was not used for adapting."
        )
    adaptation = ModelAdaptation(name, len(inputs), format_current_time(), tuple(notes))
    return replace(adapt_learner_to_inputs(model, inputs), adaptation=adaptation)


@torch.no_grad()
def adapt_learner_to_inputs(model: Model, inputs: Tensor) -> Model:
    """Return a model whose learner has adapted to inputs [n, *shape]."""
    inputs = _sort_input_rows_by_value(inputs)[None].to(model.learner.descent.device)
    with explain_unsolvable_equations("adapting"):
        return replace(model, state=model.learner.adapt(model.state, inputs))


def undo_adaptation_of_model(model: Model) -> Model:
    """Return the model without its adaptation."""
    state = model.learner.forget_adaptation(model.state)
    return replace(model, adaptation=None, state=state)


def _check_rows_are_of_one_environment(rows: EncodedRows, schema: Schema) -> None:
    names = list(rows.rows)
    if not schema.environment:  # then files of the same name are several, too
        names = [name for name in names for _ in rows.sources[name]]
    if len(names) > 1:
        raise ValueError(
            f"The rows come from {len(names)} places ({names[0]!r}, {names[1]!r}"
            f"{', ...' * (len(names) > 2)}), but a model can be adapted to only one "
            "place at a time. Give the rows of one place."
        )


def _choose_adaptation_rows(store: InputRowStore) -> Tensor:
    """Return the indices of all rows, or of as many as fit into memory."""
    size = math.prod(store.shape) * np.dtype(np.float32).itemsize
    most = max(1, MEMORY_BYTES // size)
    if store.count <= most:
        return torch.arange(store.count)
    return Randomness((0,), ("adapt",)).permutation(store.count)[0][:most]


def _draw_rows_in_any_order(inputs: Tensor) -> Tensor:
    """Return at most `MOST_ROWS` inputs, the same ones in whatever order they are."""
    if len(inputs) <= MOST_ROWS:
        return inputs
    order = Randomness((0,), ("adapt",)).permutation(len(inputs))[0]
    return _sort_input_rows_by_value(inputs)[order[:MOST_ROWS]]


def _sort_input_rows_by_value(inputs: Tensor) -> Tensor:
    """Return inputs [n, *shape] in an order that does not depend on that of the rows.

    Sums depend on the order of their terms in the last digit, so without this the same
    rows in another order would not give exactly the same model.
    """
    rows = np.ascontiguousarray(inputs.flatten(1).numpy())
    keys = rows.view(np.dtype((np.void, rows[0].nbytes)))[:, 0]
    return inputs[torch.from_numpy(np.argsort(keys, kind="stable"))]
