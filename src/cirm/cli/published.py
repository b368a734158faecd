"""What a reproduction leaves: a summary, tables, figures and a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cirm.paper.trials import Experiment, Row
    from cirm.report.blocks import Picture
    from cirm.report.findings import Drawing, Part
    from cirm.runs.archive import Archive

NOTES = Mapping[tuple[str, str], str]


def part_of(experiment: Experiment, archive: Archive, seeds: int, notes: NOTES) -> Part:
    """An experiment's summary and data, from the records of an archive."""
    from cirm.paper.reproduction import collect_rows, select_distinct_rows
    from cirm.paper.verdicts import judge_cells, summarise_verdicts
    from cirm.report.findings import Data, Part
    from cirm.report.reproduction import measured

    records = collect_rows(experiment, archive, range(seeds))
    numbers = {name: measured(rows) for name, rows in records.items() if rows}
    cells = judge_cells(experiment, numbers, notes)
    command = f"cirm reproduce {experiment.name} --seeds {seeds}"
    data = [
        Data(row.title, records[row.name], flips(row))
        for row in select_distinct_rows(experiment)
        if records[row.name]
    ]
    made = summarise_verdicts(experiment, cells, command, commits(experiment, archive))
    axis = {"axis": experiment.axis} if experiment.axis else {}
    return Part(made, data, experiment.chance, **axis)


def commits(experiment: Experiment, archive: Archive) -> list[str]:
    """The states of the source code behind an experiment's records."""
    entries = [e for t in experiment.trials() for e in archive.of(t.identity)]
    return list(dict.fromkeys(str(entry["commit"]) for entry in entries))


def seeds_in(archive: Archive) -> int:
    """One more than the largest seed of an archive."""
    entries = archive.entries.values()
    return max((max(entry["seeds"]) for entry in entries), default=-1) + 1


def flips(row: Row) -> tuple[float, ...]:
    """The colour flips of a row's training environments."""
    from cirm.data.colored import Colored

    trial = row.trials[0]
    return Colored(**trial.data).color_flips() if trial.dataset == "colored" else ()


def write_part(part: Part, folder: Path, pictures: Iterable[Picture]) -> None:
    """Write summary.json, tables.md, tables.tex, the sweeps and report.html."""
    from cirm.records import write_text
    from cirm.report import comparison, latex
    from cirm.report.figures import standalone
    from cirm.report.reproduction import reproduction_page, sweep_drawing

    summary = part.summary
    write_text(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_text(folder / "tables.md", comparison.markdown(summary))
    write_text(folder / "tables.tex", latex.latex(summary))
    for data in part.data:
        drawing = sweep_drawing(part, data)
        if drawing:
            write_text(folder / sweep_name(data.title), standalone(drawing) + "\n")
    title, claims = str(summary["title"]), summary["claims"]
    page = reproduction_page(title, [part], claims, [*pictures], drawings())
    write_text(folder / "report.html", page)


def write_overview(
    parts: Sequence[Part], folder: Path, pictures: Iterable[Picture]
) -> None:
    """Write summary.json and report.html of several experiments together."""
    from cirm.records import write_text
    from cirm.report.reproduction import reproduction_page

    made = together(parts)
    write_text(folder / "summary.json", json.dumps(made, indent=1) + "\n")
    title = "Continual invariant risk minimisation, reproduced"
    page = reproduction_page(title, parts, made["claims"], [*pictures], drawings())
    write_text(folder / "report.html", page)


def together(parts: Sequence[Part]) -> dict[str, Any]:
    """The cells of several experiments, and the claims that they decide."""
    from cirm.paper.claims import judge_claims
    from cirm.paper.verdicts import count_verdicts

    cells = [
        {"experiment": part.summary["experiment"], **cell}
        for part in parts
        for cell in part.summary["cells"]
    ]
    return {
        "experiment": "all",
        "verdicts": count_verdicts(cells),
        "cells": cells,
        "claims": judge_claims(cells),
    }


def sweep_name(title: str) -> str:
    """The name of the file of a row's sweep."""
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return f"sweep-{'-'.join(words)}.svg"


def samples(experiments: Sequence[Experiment]) -> dict[str, Picture]:
    """Coloured samples of each source and scheme that is at hand, by a name."""
    from cirm.cli.samples import picture
    from cirm.data.colored import Colored
    from cirm.paper.reproduction import explain_missing_data

    chosen: dict[str, Colored] = {}
    for experiment in experiments:
        for row in experiment.rows:
            trial = row.trials[0]
            if trial.dataset == "colored" and not explain_missing_data(trial):
                dataset = Colored(**trial.data)
                name = f"{Path(dataset.source).name}-{dataset.scheme}"
                chosen.setdefault(name, dataset)
    return {name: picture(dataset) for name, dataset in chosen.items()}


def write_figures(folder: Path) -> None:
    """Write the samples and the projections, each as a file, and a page of them."""
    from cirm.records import write_bytes, write_text
    from cirm.report.figures import standalone
    from cirm.report.reproduction import reproduction_page

    pictures = gallery()
    for name, shown in pictures.items():
        write_bytes(folder / f"samples-{name}.png", shown.png)
    for index, drawing in enumerate(drawings(), 1):
        write_text(folder / f"projection-{index}.svg", standalone(drawing.figure))
    page = reproduction_page("Figures", [], [], [*pictures.values()], drawings())
    write_text(folder / "report.html", page)


def gallery() -> dict[str, Picture]:
    """Both colourings of each source in the cache, or of the built-in digits."""
    from cirm.cli.samples import panel
    from cirm.data import cache
    from cirm.data import image_catalog as sources
    from cirm.data.colored import Colored
    from cirm.report.blocks import Picture
    from cirm.report.samples import content, figure

    found = [name for name in sources.SOURCES if cache.folder(name).is_dir()]
    shown = {}
    for source in found or ["digits"]:
        both = [panel(Colored(source, scheme), 0) for scheme in ("b01", "b11")]
        caption = f"{source}: the two colour schemes; the unseen environment is last."
        shown[source] = Picture(content(figure(both)), caption)
    return shown


def drawings() -> list[Drawing]:
    """The pictures of sequential projection."""
    from cirm.paper import projected as computed
    from cirm.report import projected
    from cirm.report.findings import Drawing

    return [
        Drawing(
            projected.simplex_figure(*computed.families()),
            "Each set holds the distributions of three outcomes with a given mean of "
            "a statistic. What is believed is projected onto one set after another, "
            "to the member p of least KL(p || the last one), and ends where they meet.",
        ),
        Drawing(
            projected.supports_figure(*computed.supports()),
            "Sets given by the outcomes they allow (shaded): after each projection "
            "only what all sets so far allow is left.",
        ),
        Drawing(
            projected.between_figure(computed.steps()),
            "q⁺ is the least of KL(p || q⁻) + KL(p || q*), between what was believed, "
            "q⁻, and what is best in the environment at hand, q*; it lives where both "
            "do, and is the q⁻ of the next environment.",
        ),
    ]
