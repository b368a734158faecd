"""`cirm fit` and `cirm update`: train a model, and continue training it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cirm.cli import options
from cirm.cli.options import (
    AcceptUnits,
    Address,
    CategoryColumns,
    DataFiles,
    Device,
    EngineName,
    EnvironmentColumn,
    FillMissing,
    FitOrder,
    IgnoredColumns,
    Json,
    KeyFile,
    LearnerSettings,
    ModelEncoder,
    ModelFile,
    ModelLearner,
    OptionalDataFiles,
    Overwrite,
    PeriodLength,
    Preset,
    ReportFile,
    TaskKind,
    ThresholdRuleText,
    TimeColumn,
    WeightColumn,
    Workers,
)
from cirm.cli.output_files import (
    check_file_can_be_written,
    check_model_file_is_unchanged,
    check_output_paths_before_work,
    check_signed_model_has_key,
    write_model_file_and_page,
)
from cirm.learners import DEFAULT_LEARNER

TASKS = ("auto", "classification", "regression")
FIT_EXAMPLES = options.format_examples_for_command_help(
    "cirm fit clinic-a.csv --target outcome --model triage.cirm",
    "cirm fit clinics.csv --target outcome --environment site --order sequential "
    "--model triage.cirm --overwrite",
    "cirm fit --each clinics --target outcome --model models",
)
UPDATE_EXAMPLES = options.format_examples_for_command_help(
    "cirm update clinic-b.csv --model triage.cirm",
    "cirm update clinic-c.csv --model triage.cirm --out triage-2.cirm",
)


def fit_model(
    model: Annotated[
        Path,
        typer.Option(
            help="Model file to write, for example triage.cirm; with --each or "
            "--each-set, the folder that models are written to.",
            show_default=False,
        ),
    ],
    data: OptionalDataFiles = None,
    target: Annotated[
        str,
        typer.Option(
            help="Column to predict. Not needed for NPZ files and folders of images, "
            "which contain their own targets.",
            show_default=False,
        ),
    ] = "",
    environment: EnvironmentColumn = "",
    time: TimeColumn = "",
    every: PeriodLength = "",
    learner: Annotated[
        str,
        typer.Option(help=f"Learning method: {options.LEARNER_HELP}."),
    ] = DEFAULT_LEARNER,
    task: TaskKind = "auto",
    settings: LearnerSettings = None,
    preset: Preset = "",
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    device: Device = "cpu",
    order: FitOrder = "joint",
    held_out: Annotated[
        float,
        typer.Option(
            help="Fraction of the rows of each place, from 0 to 0.5, that is held out "
            "from training to score the model."
        ),
    ] = 0.1,
    classes: Annotated[
        str,
        typer.Option(
            help="All classes, separated by commas, including those that first occur "
            "at later places. Example: well,ill,unknown.",
            show_default="the classes in the data",
        ),
    ] = "",
    category: CategoryColumns = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            help="Column that identifies rows: copied to the predictions but not "
            "used as an input; can be given several times.",
            show_default=False,
        ),
    ] = None,
    ignore: IgnoredColumns = None,
    no_names: Annotated[
        bool,
        typer.Option(
            "--no-names",
            help="Store hashes of category names instead of the names. Predictions "
            "stay the same. Names that are rare or look like free text are "
            "never stored, even without this option.",
        ),
    ] = False,
    unstable: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that you know to mean something different at each place; can "
            "be given several times.",
            show_default=False,
        ),
    ] = None,
    stable: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that you know to mean the same at all places; can be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    trust: Annotated[
        str,
        typer.Option(
            help="How to use unstable columns at an unknown place: invariant (not at "
            "all), interval (by their mean effect, if the places seen so far "
            "agree), or average (always by their mean effect).",
            show_default="invariant, if the learner has this setting",
        ),
    ] = "",
    weight: WeightColumn = "",
    class_weight: Annotated[
        str,
        typer.Option(
            metavar="WEIGHTS",
            help="How much a row of each class counts in training: balanced, or "
            "weights such as yes=5,no=1. `cirm update` uses the same weights.",
            show_default="every row counts once",
        ),
    ] = "",
    threshold: ThresholdRuleText = "",
    positive: Annotated[
        str,
        typer.Option(
            metavar="CLASS",
            help=(
                "The positive class, of two classes: the one whose probability "
                "--threshold applies to."
            ),
            show_default="the rarer one",
        ),
    ] = "",
    side: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Width and height, in pixels, to resize images to.",
            show_default="32, or the size that the encoder expects",
        ),
    ] = None,
    channels: Annotated[
        int, typer.Option(help="Colour channels of images: 1 (grey) or 3 (RGB).")
    ] = 3,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Frozen encoder that turns images or columns of text into features: "
            f"{options.ENCODERS}.",
            show_default="none: images are used as pixels, text as counts of words",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Column of free text; can be given several times.",
            show_default="columns that look like sentences",
        ),
    ] = None,
    each: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Fit one model to each file of this folder, and write them to the "
            "folder of --model. Models that exist already are skipped.",
            show_default=False,
        ),
    ] = None,
    each_set: Annotated[
        list[str] | None,
        typer.Option(
            "--each-set",
            metavar="NAME=A,B",
            help="Fit one model with each of these values of a setting, for example "
            "epochs=10,20; can be given several times.",
            show_default=False,
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
    overwrite: Overwrite = False,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Train a model on data of one or more places and write it to a file.

    Prints how each column is used and how well the model does on held-out rows. The
    first place alone decides how columns are scaled and encoded, so that a
    value means the same at every place. With --each or --each-set, many models are
    fitted at once, by --workers processes or on a Ray cluster (--engine ray).
    """
    from cirm.cli.progress import show_progress_of_steps

    files = data or []
    assignments = add_trust_option_to_learner_settings(settings or [], trust)
    chosen: dict[str, Any] = {
        "target": target,
        "environment": environment,
        "time": time,
        "every": every,
        "task": check_task_option(task),
        "held_out": held_out,
        "classes": [part.strip() for part in classes.split(",") if part.strip()],
        "categories": category or [],
        "ids": ids or [],
        "ignore": ignore or [],
        "names": not no_names,
        "unstable": unstable or [],
        "stable": stable or [],
        "weight": weight,
        "class_weight": options.parse_class_weight(class_weight),
        "threshold": threshold,
        "positive": positive,
        "side": side,
        "channels": channels,
        "encoder": encoder,
        "texts": text or [],
    }
    if each or each_set:
        from cirm.cli.fit_each import FitManyOptions, fit_many_models
        from cirm.cli.progress import show_progress_of_single_step

        wanted = FitManyOptions(files, each, each_set or [], model, overwrite)
        wanted.check_fit_options(report)
        with show_progress_of_single_step("preparing the models"):
            from cirm.runs.engines import JobEngine
            from cirm.runs.fit_jobs import FitModelJob

            options.read_signing_key(key)  # raises an error now if it cannot be used
            base = FitModelJob(
                "file",
                learner,
                order,
                (seed,),
                preset=preset,
                options={**chosen, "device": options.check_torch_device(device)},
                key_file=str(key.resolve()) if key else "",
            )
            jobs = wanted.plan_jobs(base, assignments)
            place = JobEngine(engine, workers, address)
        fit_many_models(jobs, wanted, place, as_json)
        return
    check_data_argument_is_given(files)
    check_output_paths_before_work(
        {"--model": model, "--report": report},
        files,
        overwrite,
        "`cirm update` to continue training it",
    )
    secret = options.read_signing_key(key)
    with show_progress_of_steps(f"no model was written to {model}") as progress:
        from cirm.model.fit import fit as fit_model

        options.limit_torch_to_one_thread()
        trained = fit_model(
            options.open_standard_input_for_dash(files),
            learner=learner,
            settings=parse_setting_options(learner, assignments),
            preset=preset,
            seed=seed,
            device=options.check_torch_device(device),
            order=order,
            **chosen,
            progress=progress,
        )
        content = write_model_file_and_page(trained, model, report, secret)
    print_fit_result_and_next_steps(
        content, as_json, report, is_task_detected=task == "auto"
    )


def update_model(
    data: DataFiles,
    model: ModelFile,
    environment: EnvironmentColumn = "",
    time: TimeColumn = "",
    every: PeriodLength = "",
    device: Device = "cpu",
    order: FitOrder = "joint",
    fill_missing: FillMissing = False,
    accept_units: AcceptUnits = False,
    weight: WeightColumn = "",
    threshold: ThresholdRuleText = "",
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Train on the rows even if the model was already trained on them.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write the updated model to.", show_default="the model file"
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=100,
            help="Number of earlier versions to keep in the model file (64 MiB in "
            "total at most), so that `cirm rollback` can return to them; 0 "
            "keeps none.",
        ),
    ] = 3,
    overwrite: Overwrite = False,
    learner: ModelLearner = None,
    encoder: ModelEncoder = None,
    key: KeyFile = None,
    as_json: Json = False,
    report: ReportFile = None,
) -> None:
    """Continue training a model on new places; earlier data are not needed.

    The model file is replaced only when training has finished, and stays unchanged if
    anything fails. `cirm rollback` returns to the model before.
    """
    from cirm.cli.progress import show_progress_of_steps

    if out is not None and out.exists() and out.samefile(model):
        out = None
    check_output_paths_before_work(
        {"--out": out, "--report": report}, [*data, model], overwrite
    )
    check_file_can_be_written(model, "--model")
    secret = options.read_signing_key(key)
    with show_progress_of_steps(f"{model} is unchanged") as progress:
        from cirm.model.container import read_model_checksum
        from cirm.model.fit import update as update_model

        old = options.load_model(model, device, learner, secret, encoder)
        check_signed_model_has_key(model, secret)
        checksum = read_model_checksum(model)
        new = update_model(
            old,
            options.open_standard_input_for_dash(data),
            environment=environment,
            time=time,
            every=every,
            order=order,
            fill_missing=fill_missing,
            accept_units=accept_units,
            again=again,
            keep=keep,
            weight=weight,
            threshold=threshold,
            progress=progress,
        )
        if out is None:
            check_model_file_is_unchanged(model, checksum)
        content = write_model_file_and_page(new, out or model, report, secret)
    print_fit_result_and_next_steps(content, as_json, report)


def print_fit_result_and_next_steps(
    content: Mapping[str, Any],
    as_json: bool,
    report: Path | None,
    is_task_detected: bool = False,
) -> None:
    """Print what was learned and what to do next."""
    from cirm.cli.model_output import print_result_of_training
    from cirm.cli.output import print_lines_to_stderr, print_result_json_and_page_path

    path, is_first = content["model"], content["history"][-1]["stage"] == 0
    if not as_json:
        print_result_of_training(content, is_first, is_task_detected)
    print_result_json_and_page_path(content, as_json, report)
    print_lines_to_stderr(f"Wrote the model to {path}")
    if is_first:
        new = "NEW.csv" if content["columns"] else "NEW"  # arrays and images
        print_lines_to_stderr(
            f"Next: `cirm predict {new} --model {path}` predicts new rows; `cirm "
            f"update {new} --model {path}` learns from another place."
        )


def parse_setting_options(learner: str, assignments: list[str]) -> dict[str, Any]:
    """Parse settings of a learner, such as epochs=10."""
    from cirm.learners import parse_learner_settings
    from cirm.settings import parse_name_value_assignments

    return parse_learner_settings(
        learner, parse_name_value_assignments(assignments, "--set")
    )


def add_trust_option_to_learner_settings(
    assignments: list[str], trust: str
) -> list[str]:
    """Return settings with that of --trust, if it is given."""
    return [*assignments, f"trust={trust}"] if trust else assignments


def check_data_argument_is_given(data: Sequence[Path]) -> None:
    """Raise an error if a model has no data to be fitted to."""
    if not data:
        raise ValueError(
            "fit: no data are given. Give one or more files, for example `cirm fit "
            "clinic-a.csv --target outcome --model triage.cirm`, or a folder with "
            "--each."
        )


def check_task_option(task: str) -> Any:  # noqa: ANN401  one of the literal names
    """Return the task if there is one of this name."""
    if task not in TASKS:
        raise ValueError(
            f"--task: there is no task {task!r}. Use one of {', '.join(TASKS)}."
        )
    return task
