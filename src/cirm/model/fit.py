"""Fitting a model to its first environments, and updating it with later ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from torch import Tensor, nn

from cirm.data.rows import (
    SAMPLE,
    EncodedRows,
    Progress,
    ReadOptions,
    ignore_progress,
    infer_schema,
    read_rows,
)
from cirm.data.sources import Data, open_sources
from cirm.data.supplied import TaskName
from cirm.environments import Stage, Stream
from cirm.learners import DEFAULT_LEARNER
from cirm.learners.base import Learner
from cirm.model import warnings as remarks
from cirm.model.diagnostics import diagnosed, failures
from cirm.model.metrics import answered, compute_metrics, interval
from cirm.model.model import Model, Plan, Visit, planned
from cirm.model.reliance import ROWS, reliance
from cirm.randomness import Randomness
from cirm.training import DivergenceError, Terms

LEAST_HELD = 5  # fewer rows would tell nothing
MEASURED = 100_000  # rows that are scored before and after learning


def fit(
    data: Data,
    target: str = "",
    *,
    environment: str = "",
    task: TaskName = "auto",
    learner: str = DEFAULT_LEARNER,
    settings: Mapping[str, Any] | None = None,
    preset: str = "",
    network: nn.Module | None = None,
    seed: int = 0,
    device: str = "cpu",
    order: str = "joint",
    held_out: float = 0.1,
    classes: Sequence[str] = (),
    categories: Sequence[str] = (),
    ids: Sequence[str] = (),
    ignore: Sequence[str] = (),
    side: int = 32,
    channels: int = 3,
    progress: Progress = ignore_progress,
) -> Model:
    """A model of the user's first environments.

    `data` is a CSV, TSV, Parquet or NPZ file, a folder of images, a DataFrame, or
    several; each is an environment, or the column `environment` names them. Those of
    one call are learned together, or one after another if `order` is "sequential".
    The part `held_out` of each is not trained on, to tell what to expect.
    """
    check_wishes(held_out, channels)
    found = open_sources(data, (channels, side, side))
    wishes = ReadOptions(
        target,
        environment,
        task,
        tuple(classes),
        tuple(categories),
        tuple(ids),
        tuple(ignore),
    )
    survey = infer_schema(found, wishes, progress)
    schema = survey.schema
    made, chosen, shape = planned(
        learner, schema.task, schema.treatment.shape, settings or {}, preset, network
    )
    free = not preset and not set(made.epoch_settings) & set(settings or {})
    plan = Plan(learner, chosen, shape, seed, free, held_out)
    state = made.init(Randomness((seed,)).at("init"))
    model = Model(plan, schema, made, state, (), _now()).on(device)
    rows = read_rows(found, schema, progress)
    return learned(model, rows, order, tuple(remarks.leaks(survey)), progress)


def update(
    model: Model,
    data: Data,
    *,
    environment: str = "",
    order: str = "joint",
    fill_missing: bool = False,
    accept_units: bool = False,
    again: bool = False,
    progress: Progress = ignore_progress,
) -> Model:
    """The model after learning from new environments; the old one stays as it is.

    Refused, unless asked for: a lacking column (`fill_missing` takes it for missing),
    numbers that look like another unit (`accept_units`), and rows that were learned
    before (`again`).
    """
    found = open_sources(data, model.schema.treatment.shape)
    rows = read_rows(found, model.schema, progress, fill_missing, environment)
    said = []
    for name, own in rows.rows.items():
        inputs = rows.store.take(own[:SAMPLE])
        odd = remarks.units(model.schema, inputs)
        if odd and not accept_units:
            raise ValueError(
                f"environment {name!r}, {odd[0]} (--accept-units, in Python "
                "accept_units=True, learns it as it is)"
            )
        odd += remarks.far(model.schema, inputs)
        odd += remarks.unknown(model.schema, inputs)
        said += [f"environment {name!r}: {text}" for text in odd]
    if not again:
        _check_new(model, rows)
    return learned(model, rows, order, tuple(said), progress)


def learned(
    model: Model,
    rows: EncodedRows,
    order: str,
    said: tuple[str, ...],
    progress: Progress,
) -> Model:
    """The model after the stages of some rows, in an order such as "sequential"."""
    names = list(rows.rows)
    whole = [
        rows.environment(name, rows.rows[name][:1], model.schema) for name in names
    ]
    for stage in Stream.from_order(whole, order):
        own = [environment.name for environment in stage]
        model = _stage(model, rows, own, (*rows.notes, *said), progress)
        said = ()
    return model


def _stage(
    model: Model,
    rows: EncodedRows,
    names: list[str],
    notes: tuple[str, ...],
    tell: Progress,
) -> Model:
    """The model after one stage."""
    source = Randomness((model.plan.seed,)).at("stage", model.stages)
    split = {n: _split(rows.rows[n], model.plan.held_out, source.at(n)) for n in names}
    stage, held = (
        tuple(rows.environment(n, split[n][part], model.schema) for n in names)
        for part in (0, 1)
    )
    before = {n: _measured(model, rows, rows.rows[n]) for n in names if model.visits}
    learner = model.learner.pace(stage) if model.plan.paced else model.learner
    began = time.perf_counter()
    after = replace(model, state=_observed(learner, model.state, stage, source, tell))
    seconds = round(time.perf_counter() - began, 3)
    tell("judging", 1)
    numbers = diagnosed(after, stage, held, source)
    visits = [
        Visit(
            name=name,
            stage=model.stages,
            rows=len(rows.rows[name]),
            held_out=len(rows.rows[name]) - len(split[name][0]),
            when=_now(),
            epochs=learner.descent.epochs,
            seconds=seconds,
            mark=rows.mark(name),
            before=before.get(name, {}),
            after=_measured(after, rows, split[name][1]),
            reliance=reliance(after, rows.store.take(rows.rows[name][:ROWS])),
            diagnostics=numbers[name],
            notes=(
                *notes,
                *_short(own.targets, model),
                *failures(after, numbers[name]),
            ),
        )
        for name, own in zip(names, stage, strict=True)
    ]
    return replace(after, visits=(*model.visits, *visits))


def _observed(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    stage: Stage,
    source: Randomness,
    tell: Progress,
) -> Any:  # noqa: ANN401
    """The state after a stage; a learner that diverges is named with its place."""
    names = ", ".join(environment.name for environment in stage)

    def watch(step: int, steps: int, numbers: Terms) -> None:
        tell(f"learning {names}", step / steps)

    try:
        return learner.observe(state, stage, source, watch)
    except DivergenceError as error:
        raise DivergenceError(
            f"environment {names}: {error.args[0]}; try a smaller rate or penalty"
        ) from None


def check_wishes(held_out: float, channels: int) -> None:
    """Refuse to hold out what leaves nothing to learn from, and odd images."""
    if not 0 <= held_out <= 0.5:
        raise ValueError(f"held_out: it must be from 0 to 0.5; got {held_out}")
    if channels not in (1, 3):
        raise ValueError(f"channels: they must be 1 or 3; got {channels}")


def _split(rows: Tensor, part: float, source: Randomness) -> tuple[Tensor, Tensor]:
    """Rows to learn from and rows to judge by: others, if enough can be held out."""
    count = int(part * len(rows))
    if count < LEAST_HELD:
        return rows, rows
    mixed = source.at("held out").permutation(len(rows))[0]
    return rows[mixed[count:].sort().values], rows[mixed[:count]]


def _measured(model: Model, rows: EncodedRows, own: Tensor) -> dict[str, float]:
    own = own[:: -(-len(own) // MEASURED)]
    answer, targets = answered(model, rows, own), rows.targets[own]
    if not answer.mean.isfinite().all():
        raise DivergenceError(
            "predictions must stay finite; try a smaller rate or penalty"
        )
    found = compute_metrics(model, answer, targets)
    if not model.task.classes:
        found["interval"] = interval(answer, targets)
    return found


def _check_new(model: Model, rows: EncodedRows) -> None:
    for visit in model.visits:
        for name in rows.rows:
            if visit.mark == rows.mark(name):
                raise ValueError(
                    f"environment {name!r}: its rows must be new to the model; got "
                    f"those learned on {visit.when[:10]} as {visit.name!r} (--again "
                    "lets them count twice)"
                )


def _short(targets: Tensor, model: Model) -> list[str]:
    """What is to be said of an environment's targets [n]."""
    if model.task.classes and len(targets.unique()) == 1:
        only = model.task.classes[int(targets.flatten()[0])]
        return [f"it has one class only, {only!r}: its accuracy tells little"]
    return []


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
