"""Files that a reproduction writes: summary, tables, figures and page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from cirm.data.colored import Colored
from cirm.data.image_sets import IMAGE_SETS, get_cached_image_folder
from cirm.paper import projections
from cirm.paper.example_images import (
    ORIGINAL_LABELS,
    ColoredWithoutClasses,
    collect_example_images,
    render_example_figure,
    render_example_images,
)
from cirm.paper.experiment import PaperExperiment
from cirm.paper.reproduction import (
    combine_experiment_summaries,
    explain_why_trial_data_are_missing,
)
from cirm.records import write_bytes_atomically, write_text_atomically
from cirm.report import paper_plots
from cirm.report.drawing import render_svg_file
from cirm.report.page import PngPicture
from cirm.report.paper_page import (
    ExperimentReport,
    FigureWithCaption,
    build_paper_page,
    render_paper_tables_as_latex,
    render_paper_tables_as_markdown,
    render_sweep_of_experiment,
)


def write_experiment_files(
    report: ExperimentReport, folder: Path, pictures: Iterable[PngPicture]
) -> None:
    """Write summary.json, tables.md, tables.tex, the sweeps and report.html."""
    summary = report.summary
    write_text_atomically(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_text_atomically(
        folder / "tables.md", render_paper_tables_as_markdown(summary)
    )
    write_text_atomically(folder / "tables.tex", render_paper_tables_as_latex(summary))
    for data in report.data:
        drawing = render_sweep_of_experiment(report, data)
        if drawing:
            write_text_atomically(
                folder / get_file_name_of_sweep_figure(data.title),
                render_svg_file(drawing) + "\n",
            )
    title, claims = str(summary["title"]), summary["claims"]
    page = build_paper_page(
        title, [report], claims, [*pictures], render_projection_figures()
    )
    write_text_atomically(folder / "report.html", page)


def write_overview_of_experiments(
    reports: Sequence[ExperimentReport], folder: Path, pictures: Iterable[PngPicture]
) -> None:
    """Write summary.json and report.html of several experiments together."""
    combined = combine_experiment_summaries(reports)
    write_text_atomically(
        folder / "summary.json", json.dumps(combined, indent=1) + "\n"
    )
    title = "Continual invariant risk minimisation, reproduced"
    page = build_paper_page(
        title, reports, combined["claims"], [*pictures], render_projection_figures()
    )
    write_text_atomically(folder / "report.html", page)


def get_file_name_of_sweep_figure(title: str) -> str:
    """Return the name of the file of a row's sweep."""
    words = "".join(c if c.isalnum() else " " for c in title.lower()).split()
    return f"sweep-{'-'.join(words)}.svg"


def render_example_images_of_sources(
    experiments: Sequence[PaperExperiment],
) -> dict[str, PngPicture]:
    """Draw examples of each source and scheme that is in the cache, by name."""
    datasets: dict[str, Colored] = {}
    for experiment in experiments:
        for trial in (t for row in experiment.rows for t in row.trials[:1]):
            if trial.dataset == "colored" and not explain_why_trial_data_are_missing(
                trial
            ):
                dataset = Colored(**trial.data)
                name = f"{Path(dataset.source).name}-{dataset.scheme}"
                datasets.setdefault(name, dataset)
    return {name: render_example_images(dataset) for name, dataset in datasets.items()}


def write_paper_figures(folder: Path) -> None:
    """Write example images and projections, each as a file, and a page of them."""
    pictures = render_example_images_in_both_colourings()
    for name, picture in pictures.items():
        write_bytes_atomically(folder / f"samples-{name}.png", picture.png)
    for index, drawing in enumerate(render_projection_figures(), 1):
        write_text_atomically(
            folder / f"projection-{index}.svg", render_svg_file(drawing.figure)
        )
    graph = render_causal_graph_figure()
    write_text_atomically(folder / "causal-graph.svg", render_svg_file(graph.figure))
    drawings = [graph, *render_projection_figures()]
    page = build_paper_page("Figures", [], [], [*pictures.values()], drawings)
    write_text_atomically(folder / "report.html", page)


def render_example_images_in_both_colourings() -> dict[str, PngPicture]:
    """Draw both colourings of each source in the cache, or of the built-in digits."""
    cached = [name for name in IMAGE_SETS if get_cached_image_folder(name).is_dir()]
    pictures = {}
    for source in cached or ["digits"]:
        both = [
            collect_example_images(Colored(source, scheme), 0)
            for scheme in ("b01", "b11")
        ]
        caption = f"{source}: the two colour schemes; the unseen environment is last."
        pictures[source] = PngPicture(render_example_figure(both), caption)
        if source in ORIGINAL_LABELS:
            pictures[f"{source}-irmg"] = render_original_coloring_examples(source)
    return pictures


def render_original_coloring_examples(source: str) -> PngPicture:
    """Draw the environments of Ahuja et al., "Invariant Risk Minimization Games".

    The figure is coloured. In Fashion-MNIST there are no bags.
    """
    classes, name, left_out = ORIGINAL_LABELS[source]
    dataset = ColoredWithoutClasses(
        source, "b01", labels=",".join(map(str, classes)), left_out=left_out
    )
    note = f"the label is 1 for {name}, and flipped in 25 % of the images"
    panel = collect_example_images(dataset, 0)._replace(
        title=f"{source}, as in IRMG", note=note
    )
    caption = (
        f"{source}, coloured as in Invariant Risk Minimization Games (IRMG). The last "
        "environment is the unseen one."
    )
    return PngPicture(render_example_figure([panel]), caption)


def render_causal_graph_figure() -> FigureWithCaption:
    """Draw the causal graph of coloured images."""
    return FigureWithCaption(
        paper_plots.plot_causal_graph(),
        "The digit determines the colour, by way of the noisy label, and both "
        "determine the image. The environment acts on the colour: how often the "
        "colour contradicts the label differs between the training environments, and "
        "is reversed in the test environment.",
    )


def render_projection_figures() -> list[FigureWithCaption]:
    """Draw the figures of sequential projection."""
    return [
        FigureWithCaption(
            paper_plots.plot_simplex_projections(
                *projections.project_onto_mean_families()
            ),
            "Each set contains all distributions over three outcomes for which a "
            "statistic has a given mean. The belief is projected onto one set after "
            "another: it moves to the distribution p in the set that has the "
            "smallest KL(p || belief). It ends where the sets meet.",
        ),
        FigureWithCaption(
            paper_plots.plot_support_projections(
                *projections.project_onto_allowed_outcomes()
            ),
            "Each set allows some outcomes (shaded). After each projection, only "
            "those outcomes remain that all sets so far allow.",
        ),
        FigureWithCaption(
            paper_plots.plot_belief_densities(projections.compute_belief_densities()),
            "q⁺ minimises KL(p || q⁻) + KL(p || q*). It lies between the belief so "
            "far, q⁻, and the best distribution of the current environment, q*. Its "
            "support is their intersection, and it is the q⁻ of the next environment.",
        ),
    ]
