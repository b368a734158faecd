"""`cirm data`: download and import data sets, list the cache, draw coloured images."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cirm.cli import options
from cirm.cli.output import print_rows_as_table
from cirm.cli.output_files import check_output_paths_before_work

if TYPE_CHECKING:
    from cirm.data.image_sets import DownloadableImageSet

app = typer.Typer(
    help="Download and import data sets, list the cache, draw coloured images.",
    no_args_is_help=True,
)


def fetch_data_sets(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Data sets that `cirm data list` shows, for example mnist or "
            "gas-turbine.",
            show_default=False,
        ),
    ],
) -> None:
    """Download data sets, verify them, and keep them in the cache.

    If one of them fails, the others are still downloaded.
    """
    for name in names:
        check_downloadable_data_set_name(name)
    failures: list[ValueError | OSError] = []
    for name in names:
        try:
            fetch_data_set(name)
        except (ValueError, OSError) as error:
            failures.append(error)
    for failure in failures[:-1]:
        typer.echo(f"cirm: {failure}", err=True)
    if failures:
        raise failures[-1]  # `main` prints it like the others, and exits


def fetch_data_set(name: str) -> None:
    """Download one data set and print where it is."""
    from cirm.cli.progress import show_download_progress
    from cirm.data.downloads import download_image_set
    from cirm.data.image_sets import IMAGE_SETS
    from cirm.data.public_downloads import download_public_dataset

    echo = functools.partial(typer.echo, err=True)
    with show_download_progress() as add_bar:
        if name in IMAGE_SETS:
            path = download_image_set(IMAGE_SETS[name], add_bar, echo)
        else:
            path, rows = download_public_dataset(name, add_bar, echo)
    if name in IMAGE_SETS:
        print_location_of_image_set(IMAGE_SETS[name], path)
    else:
        print_public_dataset_location(name, path, rows)


def import_data_set_folder(
    name: Annotated[
        str,
        typer.Argument(
            help="Data set that the files contain, for example mnist or gas-turbine.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            help=(
                "Folder with the original files of the data set: for mnist and "
                "similar data sets, four IDX files, plain or compressed (.gz)."
            ),
            show_default=False,
        ),
    ],
) -> None:
    """Check the files of a data set, convert them, and put them into the cache.

    The original files are not changed. If the folder has only a part of the data
    set, this part is imported, and the output says so.
    """
    from cirm.cli.progress import describe_interruption, show_progress_of_single_step

    with show_progress_of_single_step(
        f"importing {name}",
        lambda: describe_interruption("nothing was imported"),
    ):
        from cirm.data.image_sets import IMAGE_SETS, import_image_set_into_cache
        from cirm.data.public import import_public_dataset

        check_downloadable_data_set_name(name)
        rows: dict[str, int] = {}
        if name in IMAGE_SETS:
            path = import_image_set_into_cache(IMAGE_SETS[name], folder)
        else:
            path, rows = import_public_dataset(name, folder)
    if name in IMAGE_SETS:
        print_location_of_image_set(IMAGE_SETS[name], path)
    else:
        print_public_dataset_location(name, path, rows)


def check_downloadable_data_set_name(name: str) -> None:
    """Raise an error unless a data set of this name can be fetched or imported."""
    from cirm.data import DATASETS, PUBLIC
    from cirm.data.image_sets import IMAGE_SETS

    if name not in (*IMAGE_SETS, *PUBLIC):
        drawn = (
            f"{name!r} is drawn from other data and needs no download, but the images "
            "that --source names do. "
        )
        known = f"There is no data set {name!r} to download or import. "
        raise ValueError(
            f"{drawn if name in DATASETS else known}Choose one of "
            f"{', '.join((*IMAGE_SETS, *PUBLIC))}."
        )


def list_data_sets() -> None:
    """List the data sets, their licences, and which are in the cache."""
    from cirm.data.image_sets import (
        IMAGE_SETS,
        get_cached_image_folder,
        get_data_cache_folder,
    )

    rows = [["digits", "CC BY 4.0", "UCI", "built in", "1,438", "359"]]
    for source in IMAGE_SETS.values():
        size = format_size_of_folder(get_cached_image_folder(source.name))
        counts = [f"{count:,}" for count in source.counts]
        rows.append([source.name, source.licence, source.origin, size, *counts])
    headings = ("name", "licence", "origin", "in the cache", "train", "test")
    print_rows_as_table("Image data sets", headings, rows, n_text_columns=4)
    print_public_datasets()
    typer.echo(f"The cache is in {get_data_cache_folder()}")


def write_picture_of_colored_images(
    source: Annotated[
        str,
        typer.Option(
            help=(
                "Images to colour: digits (built in), a data set in the "
                "cache, or a folder of IDX files."
            )
        ),
    ] = "digits",
    scheme: Annotated[
        str | None,
        typer.Option(
            help="What to colour: b01 (the digit), b11 (the background), or gray "
            "(nothing).",
            show_default="b01 and b11",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help=(
                "Another setting of the data set, for example environments=3; can "
                "be given several times. `cirm list datasets colored` shows all "
                "settings."
            ),
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the images and colours.")] = 0,
    out: Annotated[
        Path,
        typer.Option(
            help="File to write the figure to: .png, .pdf or .svg.",
        ),
    ] = Path("coloured.png"),
    overwrite: options.Overwrite = False,
) -> None:
    """Draw coloured images of the training environments and of the unseen one."""
    check_output_paths_before_work({"--out": out}, overwrite=overwrite)
    from cirm.cli.progress import show_progress_of_single_step

    with show_progress_of_single_step("drawing"):
        from cirm.data.colored import Colored
        from cirm.paper.example_images import (
            collect_example_images,
            write_example_figure,
        )
        from cirm.settings import (
            parse_name_value_assignments,
            replace_settings_from_text,
        )

        texts = parse_name_value_assignments(settings or [], "--set")
        panels = []
        for each in [scheme] if scheme else ["b01", "b11"]:
            chosen = {**texts, "source": source, "scheme": each}
            dataset = replace_settings_from_text(Colored(), chosen, "colored")
            panels.append(collect_example_images(dataset, seed))
        write_example_figure(panels, out)
    typer.echo(f"Wrote {out.resolve()}")


def print_location_of_image_set(source: DownloadableImageSet, path: Path) -> None:
    """Print where a data set is, and whether it has been verified."""
    train, test = source.counts
    verified = "verified by SHA-256"
    if source.unverified_files:
        verified = f"verified by SHA-256, except {', '.join(source.unverified_files)}"
    typer.echo(
        f"{source.name}: {train:,} training and {test:,} test images in "
        f"{path}; {verified}"
    )


def print_public_datasets() -> None:
    """Print a table of the public data sets: licence, environments and size."""
    from cirm.data import PUBLIC
    from cirm.data.image_sets import get_cached_image_folder
    from cirm.data.public import get_public_dataset_class

    rows = []
    for name in PUBLIC:
        dataset = get_public_dataset_class(name)
        origin = dataset.origin
        folder = get_cached_image_folder(name)
        size = format_size_of_folder(folder)
        whole = [len(origin.rows), sum(origin.rows.values())]
        numbers = [f"{number:,}" for number in whole]
        if folder.is_dir():
            rows_there = dataset().count_examples_by_environment()
            if rows_there != origin.rows:
                there = len(rows_there), sum(rows_there.values())
                numbers = [
                    f"{part:,} of {number:,}"
                    for part, number in zip(there, whole, strict=True)
                ]
        way = "fetch" if origin.address else "import"
        rows.append([name, origin.licence, origin.authors, way, size, *numbers])
    headings = ("name", "licence", "origin", "get by", "in the cache")
    print_rows_as_table(
        "Public data sets with environments",
        (*headings, "environments", "examples"),
        rows,
        n_text_columns=5,
    )


def print_public_dataset_location(name: str, path: Path, rows: dict[str, int]) -> None:
    """Print where a public data set is, and whether it is complete."""
    from cirm.data.public import (
        describe_completeness_of_dataset,
        get_public_dataset_class,
    )

    origin = get_public_dataset_class(name).origin
    found = describe_completeness_of_dataset(origin, rows)
    typer.echo(f"{name}: {found}; in {path}")
    if rows != origin.rows:
        typer.echo(
            "To replace it by the whole data set, remove this folder, then fetch or "
            "import the data set again."
        )
    typer.echo(f"Use it with `cirm run --dataset {name}`.")


def format_size_of_folder(path: Path) -> str:
    """Format the size of a folder; "no" if there is none."""
    if not path.is_dir():
        return "no"
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return f"{size / 1e6:.0f} MB"


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "fetch": (fetch_data_sets, "cirm data fetch mnist fashion-mnist"),
    "import": (import_data_set_folder, "cirm data import mnist downloads"),
    "list": (list_data_sets, "cirm data list"),
    "show": (
        write_picture_of_colored_images,
        "cirm data show --scheme b11 --out coloured.png",
    ),
}
for command, (function, example) in COMMANDS.items():
    options.add_cli_command(
        app, function, options.format_examples_for_command_help(example), name=command
    )
