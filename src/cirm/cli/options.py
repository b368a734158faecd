"""Options that several commands share, and the checks of their values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from cirm.evaluation.adaptation import RowCount
    from cirm.model.model import Model

T = TypeVar("T", bound=Any)
RUN_TRACES = (
    *("jobs", "records.json", "records.jsonl", "bench.json"),
    *("theory.json", "causal-graph.svg"),  # of `cirm reproduce`
    "figures/causal-graph.svg",  # of `cirm reproduce all`
)
"""Files and folders that show that a run has written into a folder before."""

RESULT_FILES = (
    *("summary.json", "report.html", "sweep.svg", "table.md", "tables.md"),
    *("tables.tex", "board.md", "bench.md", "bench.html"),
)
"""Files that runs write besides."""

STANDARD = Path("-")  # standard input, or standard output

DATA_ARGUMENT = typer.Argument(
    help="CSV, TSV, Parquet or NPZ files, folders of images, or - for CSV from "
    "standard input. Each is one place unless --environment is given.",
    show_default=False,
)
DataFiles = Annotated[list[Path], DATA_ARGUMENT]
OptionalDataFiles = Annotated[list[Path] | None, DATA_ARGUMENT]
ModelFile = Annotated[
    Path,
    typer.Option(
        "--model", help="Model file, for example triage.cirm.", show_default=False
    ),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(help="Model file, for example triage.cirm.", show_default=False),
]
EnvironmentColumn = Annotated[
    str,
    typer.Option(
        help="Column that names the place of each row, such as a hospital, a machine "
        "or a year.",
        show_default="one place per file",
    ),
]
TimeColumn = Annotated[
    str,
    typer.Option(
        "--time",
        metavar="COLUMN",
        help=(
            "Column of dates, to use instead of --environment: each period counts "
            "as a place, and periods are learned in order of time."
        ),
        show_default="no periods; after `cirm fit --time`, the same column",
    ),
]
PeriodLength = Annotated[
    str,
    typer.Option(
        "--every",
        metavar="PERIOD",
        help="How long a period of --time is: day, week, month, quarter or year.",
        show_default="month; after `cirm fit --every`, the same length",
    ),
]
Device = Annotated[
    str, typer.Option(help="Device to compute on, for example cpu or cuda.")
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as JSON on standard output instead of tables."
    ),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Also write the result as a self-contained HTML page.",
        show_default=False,
    ),
]
FitOrder = Annotated[
    str,
    typer.Option(
        help="How the model learns from the places given here: joint (all at once), "
        "sequential (one after another), or the sizes of stages, such as 2+1 "
        "(two at once, then a third).",
    ),
]
AcceptUnits = Annotated[
    bool,
    typer.Option(
        "--accept-units",
        help="Use a column as it is even if its values seem to be in a different unit "
        "than at the first place.",
    ),
]
TaskKind = Annotated[
    str,
    typer.Option(
        help="classification, regression, or auto to detect it from the target."
    ),
]
CategoryColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--category",
        help="Numeric column whose values are codes rather than quantities; can be "
        "given several times.",
        show_default=False,
    ),
]
IgnoredColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore",
        help="Column to leave out; can be given several times.",
        show_default=False,
    ),
]
PredictionSets = Annotated[
    bool,
    typer.Option(
        "--sets",
        help=(
            "Add a column named 'set' with the prediction set of each row: the "
            "classes that are plausible at a new place, separated by |."
        ),
    ),
]
Level = Annotated[
    float,
    typer.Option(
        help="Coverage that prediction sets and intervals should have at a new place, "
        "from 0.5 to 0.99.",
    ),
]
Abstain = Annotated[
    float | None,
    typer.Option(
        metavar="RATE",
        help=(
            "Leave the least certain predictions empty, so that at a new place at "
            "most this fraction of the remaining predictions is expected to be "
            "wrong, for example 0.1."
        ),
        show_default="predict every row",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that exist.")
]
FillMissing = Annotated[
    bool,
    typer.Option(
        "--fill-missing",
        help=(
            "Treat columns that are absent from the data as missing values instead "
            "of failing."
        ),
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        help="File with a secret key of 16 bytes or more. Model files are signed with "
        "this key when they are written, and a file that was not signed with it "
        "is rejected when it is read.",
        show_default=False,
    ),
]
ModelLearner = Annotated[
    str | None,
    typer.Option(
        "--learner",
        help=(
            "Learner that trained the model, as package.module:Class. Only needed "
            "if the learner is neither built in nor registered by an installed "
            "package (entry point)."
        ),
        show_default="as stored in the model file",
    ),
]
ENCODERS = (
    "efficientnet-lite0 (images), minilm (text), torchvision:NAME, timm:NAME, or "
    "package.module:name"
)
ModelEncoder = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help=f"Frozen encoder that the model was fitted with: {ENCODERS}. Only needed "
        "if the encoder is one of your own.",
        show_default="as stored in the model file",
    ),
]
WeightColumn = Annotated[
    str,
    typer.Option(
        "--weight",
        metavar="COLUMN",
        help="Column with the weight of each row: a weight of 2 counts a row twice, "
        "and 0 leaves it out.",
        show_default="each row counts once; after `cirm fit --weight`, the same column",
    ),
]
ThresholdRuleText = Annotated[
    str,
    typer.Option(
        "--threshold",
        metavar="RULE",
        help=(
            "With two classes, predict the positive one if its probability is at "
            "least this: a number, or a rule that chooses it on held-out rows "
            "(recall=0.9, precision=0.5, rate=0.05, or cost=5:1 for a missed "
            "positive row and a false alarm)."
        ),
        show_default=(
            "the more likely class is predicted; after `cirm fit --threshold`, the "
            "same threshold"
        ),
    ),
]
RunOrder = Annotated[
    str,
    typer.Option(
        help="How training environments arrive: sequential (one after another), joint "
        "(all at once), or the sizes of stages, such as 2+1 (two at once, then a "
        "third).",
    ),
]
LEARNER_HELP = (
    "a name that `cirm list learners` shows, or package.module:Class for a class of "
    "your own"
)
LearnerSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Setting of the learner, for example epochs=50 or network=cnn; can be "
        "given several times. `cirm list learners NAME` shows all settings.",
        show_default=False,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        help=(
            "Named group of settings to start from, such as 'paper'. `cirm list "
            "learners LEARNER` lists the groups of a learner."
        ),
        show_default="the learner's defaults",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(help="Where jobs run: local processes, or ray for a Ray cluster."),
]
Address = Annotated[
    str,
    typer.Option(
        help="Address of the Ray cluster: HOST:PORT or ray://HOST:PORT.",
        show_default="a running cluster, or a new one on this machine",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Number of jobs to run in parallel; 0 means one per core.",
    ),
]

BudgetText = Annotated[
    str,
    typer.Option(
        "--budget",
        metavar="TIME",
        help=(
            "Stop after this time, for example 30m, 2h or 90s. The most informative "
            "jobs run first; run the same command again to do the rest."
        ),
        show_default="no limit",
    ),
]


def format_examples_for_command_help(*commands: str) -> str:
    """Return the end of a command's help: example invocations, one per line."""
    heading = "Example:" if len(commands) == 1 else "Examples:"
    return "\n\n".join([heading, *(f"$ {command}" for command in commands)])


def add_cli_command(
    app: typer.Typer,
    function: Callable[..., None],
    examples: str,
    **settings: Any,  # noqa: ANN401  arguments of Typer.command
) -> None:
    """Add a command whose help is the function's docstring, without line breaks."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    app.command(help=text, epilog=examples, **settings)(function)


def parse_class_weight(text: str) -> str | dict[str, float]:
    """Parse weights of classes, such as balanced or yes=5,no=1."""
    if "=" not in text:
        return text
    weights = {}
    for part in text.split(","):
        name, _, value = part.strip().rpartition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise ValueError(
                f"--class-weight: {part.strip()!r} cannot be read. Write each class "
                "and its weight as a number, such as yes=5,no=1."
            ) from None
    return weights


def check_torch_device(device: str) -> str:
    """Return the device if PyTorch can compute on it."""
    from cirm import memory

    return memory.check_torch_device(device, "--device")


def load_model(
    path: Path, device: str, learner: str | None, key: bytes, encoder: str | None
) -> Model:
    """Load a model file, to compute with it on one thread of a device."""
    from cirm.model.file import load

    limit_torch_to_one_thread()
    device = check_torch_device(device)
    return load(path, device=device, learner=learner, key=key, encoder=encoder)


def read_signing_key(path: Path | None) -> bytes:
    """Return the secret in a file, without line breaks at its end; b"" without one."""
    if path is None:
        return b""
    from cirm.model.signature import LEAST_KEY, MOST_KEY

    if not path.is_file():
        raise ValueError(
            f"--key: there is no file {str(path)!r} with a key. Check the path."
        )
    with path.open("rb") as file:
        key = file.read(MOST_KEY + 3).rstrip(b"\r\n")
    if not LEAST_KEY <= len(key) <= MOST_KEY:
        raise ValueError(
            f"--key: the file {str(path)!r} must contain a secret of {LEAST_KEY} to "
            f"{MOST_KEY:,} bytes. Create one, for example with `openssl rand -hex 32`."
        )
    return key


def open_standard_input_for_dash(data: Sequence[Path]) -> list[Any]:
    """Return the inputs of a command, with standard input in place of -."""
    if STANDARD not in data:
        return list(data)
    from cirm.data.standard_input import StandardInputSource

    if data.count(STANDARD) > 1:
        raise ValueError("data: standard input (-) is given twice. Give - only once.")
    return [StandardInputSource() if path == STANDARD else path for path in data]


def create_result_folder(path: Path) -> None:
    """Create the folder of results before any work goes into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValueError(
            f"--out: the folder {str(path)!r} for the results cannot be created: "
            f"{reason}. Choose another folder."
        ) from None
    if any((path / name).exists() for name in RUN_TRACES):
        return  # results of an earlier run, which this one continues
    for name in RESULT_FILES:
        if (path / name).exists():
            raise ValueError(
                f"--out: the file {str(path / name)!r} already exists and was not "
                "written by an earlier run, so it is not replaced. Choose another "
                "folder."
            )


def select_choices_by_name(
    choices: Sequence[T], names: list[str] | None, option: str
) -> list[T]:
    """Return the choices that an option names, or all if it is not given."""
    known = [choice.name for choice in choices]
    for name in names or []:
        if name not in known:
            raise ValueError(
                f"{option}: {name!r} is not known. Use one of {', '.join(known)}."
            )
    return [choice for choice in choices if not names or choice.name in names]


def make_file_name_from_key(key: str) -> str:
    """Return a key such as package.module:Class as a part of a file name."""
    return re.sub(r"[^\w.-]+", "-", key)


def parse_dataset_options(arguments: list[str], command: str) -> dict[str, str]:
    """Parse settings of a data set, given as --name value or --name=value."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--"):
            raise ValueError(
                f"{command}: unexpected argument {name!r}. Give settings of the data "
                "set as --name value, for example --examples 500."
            )
        if not (equals or rest):
            raise ValueError(
                f"{command}: {name} has no value. Give settings of the data set as "
                "--name value, for example --examples 500."
            )
        options[name[2:].replace("-", "_")] = value if equals else rest.pop(0)
    return options


def parse_adaptation_row_count_option(texts: list[str]) -> tuple[RowCount, ...]:
    """Parse numbers of rows to adapt to."""
    from cirm.evaluation.adaptation import parse_adaptation_row_counts

    try:
        return parse_adaptation_row_counts(texts)
    except ValueError as error:
        raise ValueError(f"--{error}") from None


def limit_torch_to_one_thread() -> None:
    """Compute on one thread, so that results do not depend on the number of cores.

    Small networks are also faster on one thread than on several, and reading,
    predicting and writing already run in threads of their own.
    """
    import torch

    torch.set_num_threads(1)
