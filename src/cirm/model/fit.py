"""Fit a model to its first environments, and update it with later ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cirm.data.open_sources import open_sources_and_text_encoder, open_sources_for_model
from cirm.data.periods import (
    add_time_periods_to_schema,
    divide_new_sources_into_time_periods,
    divide_sources_into_time_periods,
)
from cirm.data.rows import (
    EncodedRows,
    check_inputs_are_not_constant,
    read_rows,
    release_free_memory_to_system,
    split_held_out_rows,
)
from cirm.data.schema import SCHEMA_ROWS, TaskName
from cirm.data.schema_inference import ReadOptions, infer_schema
from cirm.data.sources import Data, Progress, ignore_progress_message
from cirm.early_stopping import EarlyStoppingDescent
from cirm.environments import Stage, Stream
from cirm.learners import DEFAULT_LEARNER
from cirm.learners.base import Learner
from cirm.model.adapt import undo_adaptation_of_model
from cirm.model.conformal import count_rows_by_confidence, measure_nonconformity
from cirm.model.data_notes import list_notes_on_training_data
from cirm.model.equations import explain_unsolvable_equations
from cirm.model.estimates import collect_score_statistics
from cirm.model.evaluate import (
    compute_diagnostics_by_environment,
    score_model_on_past_environments,
    warn_of_constant_values,
)
from cirm.model.explain import IMPORTANCE_ROWS, compute_column_importance
from cirm.model.facts import TrainingHistoryEntry, format_current_time
from cirm.model.file import MOST_EARLIER
from cirm.model.metrics import compute_metrics
from cirm.model.model import (
    Model,
    NetworkLike,
    build_learner_column_settings,
    build_learner_for_inputs,
)
from cirm.model.numpy_predict import limit_blas_threads
from cirm.model.rare_classes import (
    ClassWeight,
    check_threshold_rule_fits_model,
    choose_class_weights,
    choose_positive_class,
    get_threshold_rule_of_model,
    set_threshold_by_held_out,
    warn_of_constant_predictions,
    weight_examples_of_stage,
)
from cirm.model.stage_scores import (
    measure_nonconformity_after_adapting,
    predict_rows_to_score,
)
from cirm.model.verdict import warn_of_score_drop
from cirm.model.versions import keep_earlier_version_in_model
from cirm.model.warnings import (
    check_rows_were_not_seen_in_training,
    list_warnings_of_environment_inputs,
    warn_of_leaking_columns,
    warn_of_single_class,
)
from cirm.randomness import Randomness
from cirm.training import DivergenceError, Terms

if TYPE_CHECKING:
    from cirm.data.encoders import EncoderLike
    from cirm.learners import LearnerLike


def fit(
    data: Data,
    target: str = "",
    *,
    environment: str = "",
    time: str = "",
    every: str = "",
    task: TaskName = "auto",
    learner: LearnerLike = DEFAULT_LEARNER,
    settings: Mapping[str, Any] | None = None,
    preset: str = "",
    network: NetworkLike | None = None,
    seed: int = 0,
    device: str = "cpu",
    order: str = "joint",
    held_out: float = 0.1,
    classes: Sequence[str] = (),
    categories: Sequence[str] = (),
    ids: Sequence[str] = (),
    ignore: Sequence[str] = (),
    names: bool = True,
    unstable: Sequence[str] = (),
    stable: Sequence[str] = (),
    weight: str = "",
    class_weight: ClassWeight = None,
    threshold: str = "",
    positive: str = "",
    side: int | None = None,
    channels: int = 3,
    encoder: EncoderLike = None,
    texts: Sequence[str] = (),
    progress: Progress = ignore_progress_message,
) -> Model:
    """Fit a new model to one or more environments.

    The first environment decides how columns are encoded and scaled. Later
    environments, given here or to `update`, are read in the same way.

    Args:
        data: The training data: a path to a CSV, TSV, Parquet or NPZ file or to a
            folder of images, a table of pandas, polars or pyarrow, a list of files, or
            a dictionary from the names of environments to these. Each file is an
            environment, named after the file, unless `environment` is given.
        target: Column to predict. Archives and folders of images have their own.
        environment: Column that names the environment of each row.
        time: Column of dates, instead of `environment`: each period is an environment,
            in order of time. The dates are not used as an input.
        every: How long a period is: "day", "week", "month" (if empty), "quarter" or
            "year".
        task: "classification", "regression", or "auto" to infer it from the target.
        learner: The learning algorithm: a key (`cirm list learners` shows them), the
            name of an entry point of the group `cirm.learners`, an import path
            "package.module:Class", a subclass of `Learner`, or an instance. An instance
            keeps its own settings, number of epochs and network.
        settings: Settings of the learner, its optimiser and its network by name, such
            as {"epochs": 20, "hidden": (100,)}. They override the preset's. Without a
            number of epochs, that number follows the number of rows.
        preset: Name of a group of settings that the learner offers.
        network: The network: a name ("mlp", "cnn", "linear", or one that an installed
            package offers), or your own torch module, whose last layer must be linear.
            Training starts from a copy of its weights; `ModuleNetwork` can freeze parts
            of it. By default a multi-layer perceptron, as the settings describe it.
        seed: Seed of all random draws. The same seed gives the same model.
        device: Torch device to train on, such as "cpu" or "cuda".
        order: "joint" to train on all environments together, "sequential" to train on
            one after another, or the number of environments in each stage, as "2+1".
        held_out: Fraction of each environment, from 0 to 0.5, that is not used for
            training but to measure how good the model is.
        classes: All classes, in order. Needed only if some of them first occur in
            later data.
        categories: Columns of numbers that are codes of categories.
        ids: Columns that identify a row. They are repeated in predictions and not
            used as inputs.
        ignore: Columns to leave out.
        names: Whether the model may store names of categories that are neither rare
            nor like free text. All others are known by a digest, which changes no
            prediction.
        unstable: Columns whose meaning differs between environments, as you know. The
            learner must have such a setting, as "steady" does.
        stable: Columns whose meaning is the same in all environments, as you know.
        weight: Column with the weight of each row: 2 counts like the row twice, and 0
            like no row. It is not used as an input.
        class_weight: How much a row of each class counts in training: a weight for
            each class, or "balanced" for weights that make all classes count alike in
            these data. Later environments are learned with the same weights.
        threshold: Of two classes, from which probability of the positive one on it is
            predicted: a number, or a rule that chooses one on held-out rows
            ("recall=0.9", "precision=0.5", "rate=0.05" or "cost=5:1"). By default the
            more likely class is predicted.
        positive: The class that the threshold is about. By default the rarer one.
        side: Width and height in pixels to which images are resized. By default 32, or
            what the encoder was made for.
        channels: Colour channels of images: 1 (grey) or 3. Encoders get 3.
        encoder: A frozen encoder that turns images or columns of text into features:
            "efficientnet-lite0" (images), "minilm" (text), "torchvision:NAME",
            "timm:NAME", an import path "package.module:name", your own torch module,
            or a function of a batch. Features are computed once and kept by content.
            By default the pixels are the features, and text becomes hashed words.
        texts: Columns of free text. By default those that look like sentences.
        progress: Called with a description of the current step and how far it is, as
            a fraction or as a number of rows.

    Returns:
        The trained model. Its `history` has an entry for each environment, with
        metrics and warnings.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the data or an option are invalid. The message names the file,
            row and column, or the option.
        DivergenceError: If the loss is no longer finite.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit
        >>> table = pd.DataFrame({"age": range(40), "ill": ["no", "yes"] * 20})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> model = fit(table, "ill", learner="erm", settings=settings, held_out=0.2)
        >>> entry = model.history[0]
        >>> entry.rows, entry.held_out, sorted(entry.metrics_after)[0]
        (40, 8, 'accuracy')
    """
    if not 0 <= held_out <= 0.5:
        raise ValueError(
            f"--held-out is {held_out} (in Python held_out=). Give a fraction of the "
            "rows from 0 to 0.5."
        )
    if channels not in (1, 3):
        raise ValueError(
            f"--channels is {channels} (in Python channels=). Use 1 for grey or 3 for "
            "colour images."
        )
    shape = (channels, side or 0, side or 0)
    sources, text_encoder = open_sources_and_text_encoder(data, shape, encoder)
    sources = divide_sources_into_time_periods(sources, environment, time, every)
    options = ReadOptions(
        target,
        environment,
        task,
        tuple(classes),
        tuple(categories),
        tuple(ids),
        tuple(ignore),
        names=names,
        weight=weight,
        texts=tuple(texts),
        encoder=text_encoder,
    )
    draft = infer_schema(sources, options, progress)
    schema = add_time_periods_to_schema(draft.schema, sources)
    values = {
        **(settings or {}),
        **build_learner_column_settings(learner, schema, unstable, stable),
    }
    built, plan = build_learner_for_inputs(
        learner, schema.task, schema.treatment.shape, values, preset, network
    )
    notes = (*list_notes_on_training_data(draft), *warn_of_leaking_columns(draft))
    count = draft.count
    del draft  # with its rows
    rows = read_rows(sources, schema, progress, n_expected_rows=count)
    check_inputs_are_not_constant(rows, sources[0].where)
    plan = replace(
        plan,
        seed=seed,
        held_out=held_out,
        positive=choose_positive_class(positive, schema.task.classes, rows),
        class_weight=choose_class_weights(class_weight, schema.task.classes, rows),
    )
    state = built.init(Randomness((seed,)).at("init"))
    model = Model(
        plan=plan,
        schema=schema,
        learner=built,
        state=state,
        history=(),
        created=format_current_time(),
    ).to(device)
    check_threshold_rule_fits_model(model, threshold)
    return _train_on_stages(model, rows, order, notes, progress, threshold)


def update(
    model: Model,
    data: Data,
    *,
    environment: str = "",
    time: str = "",
    every: str = "",
    order: str = "joint",
    fill_missing: bool = False,
    accept_units: bool = False,
    again: bool = False,
    keep: int = 0,
    weight: str = "",
    threshold: str = "",
    progress: Progress = ignore_progress_message,
) -> Model:
    """Continue training with new environments, without the data of earlier ones.

    Args:
        model: The model to continue. It does not change. If it was adapted, training
            continues from the model before that.
        data: The new data, in any of the forms that `fit` accepts.
        environment: Column that names the environment of each row. By default the
            column that was used at the first fit, or one environment per file.
        time: Column of dates whose periods are the environments. By default the column
            that was used at the first fit, if the data have it.
        every: How long a period is. By default as at the first fit.
        order: "joint" to train on all new environments together, "sequential" to train
            on one after another, or the number of environments in each stage, as "2+1".
        fill_missing: Whether to treat columns that the data lack as missing values.
            Otherwise they raise an error.
        accept_units: Whether to train on numbers that are almost certainly in another
            unit than in the first environment. Otherwise they raise an error.
        again: Whether to train on rows that the model was trained on before.
            Otherwise they raise an error.
        keep: Number of earlier versions that the updated model keeps in its file, of
            64 MiB together, so that `rollback` can return to them. By default none,
            since `model` itself does not change.
        weight: Column with the weight of each row. By default the column that was used
            at the first fit, if the data have it.
        threshold: A new threshold, as for `fit`. By default the rule of the model is
            applied anew, to the held-out rows of the new environments.
        progress: Called with a description of the current step and how far it is, as
            a fraction or as a number of rows.

    Returns:
        The updated model. Its `history` has an entry for each new environment, with
        metrics before and after training on it.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the data are invalid, or suspicious and not accepted. The
            message names file, row and column.
        DivergenceError: If the loss is no longer finite.

    Example:
        >>> import pandas as pd
        >>> from cirm import fit, update
        >>> table = pd.DataFrame({"age": range(40), "ill": ["no", "yes"] * 20})
        >>> settings = {"epochs": 3, "hidden": (4,)}
        >>> first = fit(table[:20], "ill", learner="erm", settings=settings)
        >>> second = update(first, table[20:])
        >>> len(first.history), len(second.history)
        (1, 2)
    """
    if not 0 <= keep <= MOST_EARLIER:
        raise ValueError(
            f"--keep, the number of earlier versions to keep, is {keep} (in Python "
            f"keep=). Give a number from 0 to {MOST_EARLIER}."
        )
    before = model
    sources = divide_new_sources_into_time_periods(
        open_sources_for_model(data, model.schema),
        model.schema,
        environment,
        time,
        every,
    )
    check_threshold_rule_fits_model(model, threshold)
    rows = read_rows(
        sources,
        model.schema,
        progress,
        fill_missing,
        environment or time,
        weight_column=weight,
    )
    notes = []
    if model.adaptation is not None:
        notes.append(
            f"the model was adapted to {model.adaptation.name!r}. Training continues "
            "from the model before it was adapted, and the scores before training "
            "are those of that model."
        )
        model = undo_adaptation_of_model(model)
    for name, indices in rows.rows.items():
        indices = indices[:SCHEMA_ROWS]
        inputs = rows.store.take(indices)
        missing = rows.find_missing_numbers(indices, model.schema)
        notes += list_warnings_of_environment_inputs(
            model.schema, name, inputs.numpy(), missing, accept_units
        )
    if not again:
        check_rows_were_not_seen_in_training(model, rows)
    after = _train_on_stages(model, rows, order, tuple(notes), progress, threshold)
    return keep_earlier_version_in_model(before, after, keep)


def _train_on_stages(
    model: Model,
    rows: EncodedRows,
    order: str,
    notes: tuple[str, ...],
    progress: Progress,
    threshold: str,
) -> Model:
    """Return the model after training on the stages that an order arranges."""
    if rows.store.is_lazy:
        release_free_memory_to_system()
    first_rows = [
        rows.build_environment(name, indices[:1], model.schema)
        for name, indices in rows.rows.items()
    ]
    files = rows.hash_files()
    for stage in Stream.from_order(first_rows, order):
        own = {e.name: files[e.name] for e in stage}
        notes = (*rows.notes, *notes)
        model = _train_on_stage(model, rows, own, notes, progress, threshold)
        notes = ()
    return model


def _train_on_stage(
    model: Model,
    rows: EncodedRows,
    files: Mapping[str, dict[str, str]],
    notes: tuple[str, ...],
    progress: Progress,
    threshold: str,
) -> Model:
    """Return the model after a stage of environments, given with their files."""
    names = list(files)
    source = Randomness((model.plan.seed,)).at("stage", model.stages)
    fraction = model.plan.held_out
    splits = {
        n: split_held_out_rows(rows.rows[n], fraction, source.at(n)) for n in names
    }
    stage, held_out = (
        tuple(rows.build_environment(n, splits[n][part], model.schema) for n in names)
        for part in (0, 1)
    )
    stage = weight_examples_of_stage(model, stage)
    later = names if model.history else []
    before = {n: predict_rows_to_score(model, rows, rows.rows[n]) for n in later}
    arrivals = {
        n: collect_score_statistics(model, scored.predictions.mean, *scored[1:])
        for n, scored in before.items()
    }
    fallen = {
        n: warn_of_score_drop(model, n, scored.predictions.mean, scored.targets)
        for n, scored in before.items()
    }
    can_adjust, learner = model.plan.adaptive_epochs, model.learner
    learner = learner.adjust_epochs_to_data(stage) if can_adjust else learner
    adapted = {
        n: measure_nonconformity_after_adapting(model, rows, rows.rows[n])
        for n in before
    }
    start = time.perf_counter()
    state, epochs = _train_learner(learner, model.state, stage, source, progress)
    seconds = round(time.perf_counter() - start, 3)
    after = replace(model, state=state)
    progress("evaluating", 1)
    scored = {n: predict_rows_to_score(after, rows, splits[n][1]) for n in names}
    held = [n for n in names if len(splits[n][0]) < len(rows.rows[n])]
    after, kept = set_threshold_by_held_out(after, [scored[n] for n in held], threshold)
    diagnostics = compute_diagnostics_by_environment(after, stage, held_out, source)
    constant = {
        n: warn_of_constant_predictions(after, rows, rows.rows[n], scored[n])
        for n in names
    }
    for name in names:
        if constant[name]:  # held-out rows alone may lack a rare class
            diagnostics[name]["constant"] = 1.0
    past = score_model_on_past_environments(model, after) if model.history else {}
    entries = [
        TrainingHistoryEntry(
            name=name,
            stage=model.stages,
            rows=len(rows.rows[name]),
            held_out=len(rows.rows[name]) - len(splits[name][0]),
            time=format_current_time(),
            epochs=epochs,
            seconds=seconds,
            fingerprint=rows.fingerprint(name),
            metrics_before=(
                compute_metrics(model, *before[name]) if name in before else {}
            ),
            arrival=arrivals.get(name, {}),
            rule=get_threshold_rule_of_model(model if model.history else after),
            metrics_after=compute_metrics(after, *scored[name]),
            importance=compute_column_importance(
                after, rows.store.take(rows.rows[name][:IMPORTANCE_ROWS])
            ),
            diagnostics=diagnostics[name],
            files=files[name],
            past=past,
            notes=(
                *notes,
                *kept,
                *fallen.get(name, ()),
                *warn_of_single_class(model.task.classes, environment.targets),
                *constant[name],
                *warn_of_constant_values(after, diagnostics[name]),
            ),
            confident=(
                count_rows_by_confidence(scored[name][0].mean.numpy())
                if model.task.classes
                else ()
            ),
            nonconformity=measure_nonconformity(
                model, *before.get(name, scored[name])[:2]
            ),
            nonconformity_adapted=adapted.get(name),
        )
        for name, environment in zip(names, stage, strict=True)
    ]
    return replace(after, history=(*model.history, *entries))


def _train_learner(
    learner: Learner[Any],
    state: Any,  # noqa: ANN401  whatever the learner remembers
    stage: Stage,
    source: Randomness,
    progress: Progress,
) -> tuple[Any, int]:
    """Return the state after a stage, and the number of epochs that it took."""
    names = ", ".join(environment.name for environment in stage)
    done = 0

    def report_training_step(step: int, n_steps: int, numbers: Terms) -> None:
        nonlocal done
        done = step
        progress(f"training on {names}", step / n_steps)

    progress(f"training on {names}", 0.0)
    try:
        with explain_unsolvable_equations(f"place {names}"), limit_blas_threads():
            state = learner.observe(state, stage, source, report_training_step)
    except DivergenceError as error:
        raise DivergenceError(
            f"place {names}: {error.args[0]}. Use a smaller learning rate, such as "
            "--set rate=0.0001, or a smaller penalty."
        ) from None
    if done and isinstance(learner.descent, EarlyStoppingDescent):
        return state, learner.descent.count_epochs(done, stage)
    return state, learner.descent.epochs
