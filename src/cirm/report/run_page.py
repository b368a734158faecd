"""The page of a run, its tables, and the sections with figures that pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cirm.records import Record, Run, Score
from cirm.report import axes, page, plots
from cirm.report.diagnostics import build_diagnostics_section
from cirm.report.drawing import CEILING, get_style_variant
from cirm.report.markup import Markup, join_escaped_markup
from cirm.report.measures import (
    build_transfer_measures_section,
    collect_transfer_measures,
)
from cirm.report.page import Picture, Section
from cirm.report.plots import PlotLine, ScorePair
from cirm.report.summary import (
    Point,
    Statistic,
    TrainingCurve,
    average_values_over_seeds,
    collect_adapted_sweep_scores,
    collect_stage_scores,
    collect_sweep_scores,
    collect_training_curves,
    group_records_by_learner,
    is_ceiling_learner,
    summarise_records,
)
from cirm.report.table import Cell, Column, Row, Table, build_statistic_cell
from cirm.report.text import (
    describe_adaptation,
    describe_metric,
    describe_settings_choices,
    describe_training_curve,
    format_bytes,
    format_seconds,
    list_adaptation_row_counts,
    list_headline_numbers,
    write_headline,
)
from cirm.wording import join_words

SPLITS = {"train": "training", "test": "unseen"}
ADAPTED_NOTE = (
    "Adapted: before scoring, the learner was adapted to this number of unlabelled "
    "rows of the unseen environment. All rows are scored."
)


@dataclass(frozen=True)
class FigureData:
    """What the figures of a page need.

    `learners` are those of summary.json; `chance` is the accuracy of guessing in
    percent, if it is known.
    """

    records: Sequence[Record]
    learners: Mapping[str, Mapping[str, Any]]
    chance: float | None = None

    @property
    def metric(self) -> str:
        """The metric that the page shows."""
        return next((str(e["metric"]) for e in self.learners.values()), "accuracy")

    @property
    def band_caption(self) -> str:
        """The part of a caption that explains the bands, if figures have any."""
        has_bands = any(entry["train"]["seeds"] > 1 for entry in self.learners.values())
        return "; bands show one standard deviation over seeds" if has_bands else ""

    def get_learner_style(self, learner: str) -> int:
        """Return the number of a learner's style, the same in every figure."""
        if is_ceiling_learner(learner):
            return CEILING
        return [name for name in self.learners if not is_ceiling_learner(name)].index(
            learner
        )

    def get_learner_name(self, learner: str) -> str:
        """Return a learner's name in figures."""
        if not is_ceiling_learner(learner):
            return learner
        is_only = sum(map(is_ceiling_learner, self.learners)) == 1
        return "ceiling, without colour" if is_only else f"ceiling: {learner}"

    def build_learner_line(self, learner: str, points: tuple[Point, ...]) -> PlotLine:
        """Return a learner's line."""
        return PlotLine(
            self.get_learner_name(learner), points, self.get_learner_style(learner)
        )

    def list_adapted_lines(self, learner: str) -> list[PlotLine]:
        """Return the lines of a learner after adaptation, in its colour."""
        own = collect_adapted_sweep_scores(self.records).get(learner, {})
        return [
            PlotLine(
                f"{self.get_learner_name(learner)}, adapted ({rows})",
                points,
                get_style_variant(self.get_learner_style(learner), number),
            )
            for number, (rows, points) in enumerate(own.items())
        ]

    def get_training_and_unseen_scores(self, learner: str) -> ScorePair:
        """Return a learner's training and unseen scores."""
        entry = self.learners[learner]
        train, test = Statistic(**entry["train"]), Statistic(**entry["test"])
        return ScorePair(
            self.get_learner_name(learner), train, test, self.get_learner_style(learner)
        )


def build_run_page(
    records: Sequence[Record],
    title: str,
    command: str = "",
    notes: Sequence[str] = (),
    pictures: Sequence[Picture] = (),
    *,
    chance: float | None = None,
    axis: str = "position of the unseen environment",
    trained: Sequence[float] = (),
) -> str:
    """Build the page of a run as one self-contained HTML document.

    Args:
        records: The records of the run.
        title: The title of the page.
        command: The command that made the run.
        notes: Further sentences below the results.
        pictures: Example images.
        chance: The accuracy of guessing in percent, if it is known.
        axis: The name of the quantity that the sweep varies.
        trained: The positions of the training environments on that axis.

    Returns:
        The document as text.

    Raises:
        ValueError: If the records have no score.

    Example:
        >>> score = Score("erm", "joint", 0, 0, "a", "train", "accuracy", 80.0)
        >>> "80.0" in build_run_page([score], "A run")
        True
    """
    scores = [record for record in records if isinstance(record, Score)]
    if not scores:
        raise ValueError(
            f"the records of {title!r} contain no scores, so there is nothing to "
            "report. Start the run first, or give the records of another run."
        )
    summary = summarise_records(records)
    view = FigureData(records, summary["learners"], chance)
    unseen = {score.environment for score in scores if score.split == "test"}
    content = [
        Section(
            "", [page.render_headline_numbers(list_headline_numbers(summary, chance))]
        ),
        _build_results_section(summary, view, notes),
        build_example_image_section(pictures),
        build_sweep_section(view, axis, trained),
        build_stage_scores_section(view),
        build_generalisation_gap_section(view),
        build_diagnostics_section(records, view.metric),
        build_transfer_measures_section(
            collect_transfer_measures(records), view.metric
        ),
        build_training_curve_section(view),
        _build_memory_section(view),
        _build_settings_section(view, command),
    ]
    lead = write_headline(summary, chance, len(unseen))
    return page.render_page(title, lead, content)


def build_results_table(summary: Mapping[str, Any]) -> Table:
    """Build the table of a run: scores of each learner and what they cost.

    Example:
        >>> score = Score("erm", "joint", 0, 0, "a", "train", "accuracy", 80.0)
        >>> table = build_results_table(summarise_records([score]))
        >>> [str(cell) for cell in table.rows[0][:2]]
        ['erm', '80.0']
    """
    learners = summary["learners"]
    metrics = [entry["metric"] for entry in learners.values()]
    unit = describe_metric(metrics[0]) if metrics else "score"
    splits = [s for s in SPLITS if any(e[s]["seeds"] for e in learners.values())]
    adapted = list_adaptation_row_counts(learners)
    rows: list[Row] = []
    for learner, entry in learners.items():
        memory = entry["memory"].values()
        known = entry.get("adapted", {})  # summaries of old versions have none
        scores = [
            build_statistic_cell(statistic, entry["metric"]) if statistic else ""
            for statistic in (
                *(entry[split] for split in splits),
                *(known.get(rows) for rows in adapted),
            )
        ]
        examples = sum(part.get("examples", 0) for part in memory)
        size = format_bytes(sum(part.get("bytes", 0) for part in memory))
        seconds = format_seconds(entry["seconds"])
        rows.append([learner, *scores, seconds, f"{examples:,}", size])
    headings = [f"{SPLITS[split]} {unit}" for split in splits]
    headings += [f"unseen, {describe_adaptation(rows)}" for rows in adapted]
    columns = ["learner", *headings, "seconds", "examples kept", "size of the state"]
    choices = [(learner, entry["selection"]) for learner, entry in learners.items()]
    notes = (
        [_describe_number_of_seeds(learners), describe_settings_choices(choices)]
        if rows
        else []
    )
    if adapted:
        notes[0] += f" {ADAPTED_NOTE}"
    return Table("Results", columns, rows, notes)


def build_coefficient_table(records: Sequence[Record]) -> Table | None:
    """Build the table of the errors of linear coefficients; None without any."""
    scores = [
        record
        for record in records
        if isinstance(record, Score) and record.metric == "coefficients"
    ]
    kinds = list(dict.fromkeys(score.environment for score in scores))
    rows: list[Row] = []
    for learner, own in group_records_by_learner(scores, Score).items():
        errors = [
            average_values_over_seeds(s for s in own if s.environment == k)
            for k in kinds
        ]
        rows.append(
            [learner, *(build_statistic_cell(error, "error") for error in errors)]
        )
    title = "Squared error of the coefficients"
    return Table(title, ["learner", *kinds], rows) if rows else None


def build_memory_table(learners: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """Build the table of what each learner's state holds; None if it is not known."""
    rows = [
        [
            learner,
            kind,
            *(f"{counts.get(name, 0):,}" for name in ("examples", "parameters")),
            format_bytes(counts.get("bytes", 0)),
        ]
        for learner, entry in learners.items()
        for kind, counts in entry["memory"].items()
    ]
    columns = ["learner", "part", "raw examples", "parameters", "size"]
    return Table("Memory", columns, rows, row_headings=2) if rows else None


def build_example_image_section(pictures: Sequence[Picture]) -> Section | None:
    """Build the section with example images; None without any."""
    if not pictures:
        return None
    return Section(
        "Example images", [page.render_picture(picture) for picture in pictures]
    )


def build_sweep_section(
    view: FigureData, axis: str, trained: Sequence[float] = ()
) -> Section | None:
    """Build the section with the score over the whole sweep; None without a sweep."""
    draw = prepare_sweep_figure(view, axis, trained)
    if draw is None:
        return None
    caption = "Each point is an unseen environment, scored after the last stage"
    if list_adaptation_row_counts(view.learners):
        caption += (
            "; adapted: after adapting to this number of unlabelled rows of that "
            "environment"
        )
    figure = _render_figure_in_two_widths(draw, caption + view.band_caption)
    return Section("Scores across unseen environments", [figure])


def build_sweep_figure(
    records: Sequence[Record],
    chance: float | None = None,
    axis: str = "position of the unseen environment",
    trained: Sequence[float] = (),
) -> Markup | None:
    """Build the figure of a run's sweep on its own; None without a sweep."""
    view = FigureData(records, summarise_records(records)["learners"], chance)
    draw = prepare_sweep_figure(view, axis, trained)
    return draw() if draw else None


def prepare_sweep_figure(
    view: FigureData, axis: str, trained: Sequence[float] = ()
) -> partial[Markup] | None:
    """Prepare the figure of the sweep, to be drawn in any width; None without one."""
    sweep = collect_sweep_scores(view.records)
    if not sweep:
        return None
    lines = []
    for name, points in sweep.items():
        lines.append(view.build_learner_line(name, points))
        lines += view.list_adapted_lines(name)
    return partial(
        plots.plot_scores_over_sweep,
        lines,
        axis=axis,
        metric=view.metric,
        chance=view.chance,
        trained=trained,
    )


def build_stage_scores_section(view: FigureData) -> Section | None:
    """Build the section with the scores after each stage; None with a single stage."""
    stream = collect_stage_scores(view.records)
    points = (p for tracks in stream.values() for t in tracks for p in t.points)
    if max((point.x for point in points), default=1) < 2:
        return None
    drawings = [
        plots.plot_scores_after_stages(
            view.get_learner_name(name),
            tracks,
            style=view.get_learner_style(name),
            metric=view.metric,
            chance=view.chance,
        )
        for name, tracks in stream.items()
    ]
    caption = (
        f"{describe_metric(view.metric).capitalize()}, after each stage. Grey lines: "
        "training environments; the later an environment arrives, the darker its "
        "line; rings mark the stages before its arrival. Coloured lines: unseen "
        "environments."
    )
    return Section(
        "Scores after each stage", [page.render_figures_side_by_side(caption, drawings)]
    )


def build_generalisation_gap_section(view: FigureData) -> Section | None:
    """Build the section on training and unseen scores; None without unseen ones."""
    pairs = [view.get_training_and_unseen_scores(name) for name in view.learners]
    if all(pair.test.mean is None for pair in pairs):
        return None
    draw = partial(
        plots.plot_training_against_unseen_scores,
        pairs,
        metric=view.metric,
        chance=view.chance,
    )
    caption = (
        "The further a learner is from the diagonal, the more it relies on features "
        "that do not carry over to the unseen environments"
    )
    figure = _render_figure_in_two_widths(draw, caption)
    return Section("Training scores and unseen scores", [figure])


def build_training_curve_section(view: FigureData) -> Section | None:
    """Build the section with a figure for each training curve; None without any."""
    drawings = [
        _render_figure_in_two_widths(
            _prepare_training_curve_figure(view, metric, traces)
        )
        for metric, traces in collect_training_curves(view.records).items()
    ]
    text = (
        f"Means over seeds{view.band_caption}. A dotted vertical line marks the start "
        "of a stage."
    )
    return Section("Training curves", [text, *drawings]) if drawings else None


def _prepare_training_curve_figure(
    view: FigureData, metric: str, traces: Mapping[str, TrainingCurve]
) -> partial[Markup]:
    lines = [
        view.build_learner_line(name, trace.points) for name, trace in traces.items()
    ]
    means = [point.mean for line in lines for point in line.points]
    # Quantities that fall by orders of magnitude are flat on a linear axis.
    log = bool(means) and min(means) > 0 and max(means) > 100 * min(means)
    starts = {trace.starts for trace in traces.values()}
    return partial(
        plots.plot_training_curves,
        lines,
        metric=describe_training_curve(metric),
        starts=starts.pop() if len(starts) == 1 else (),
        log=log,
    )


def _render_figure_in_two_widths(draw: partial[Markup], caption: str = "") -> Markup:
    """Render a figure as drawn for a wide page and for a phone."""
    wide, narrow = draw(width=axes.WIDE), draw(width=axes.NARROW)
    return page.render_figure(f"{caption}." if caption else "", wide, narrow)


def _build_results_section(
    summary: Mapping[str, Any], view: FigureData, notes: Sequence[str]
) -> Section:
    """The scores of each learner, with a drawing in the place of the costs."""
    table = build_results_table(summary)
    scores = len(table.columns) - 3
    low, high, chance = 0.0, 100.0, [] if view.chance is None else [view.chance]
    if view.metric != "accuracy":
        means = [e[split]["mean"] for e in view.learners.values() for split in SPLITS]
        high, chance = max([m for m in means if m is not None], default=0.0) or 1.0, []
    rows = []
    for row in table.rows:
        pair = view.get_training_and_unseen_scores(row[0].text)
        swatch = plots.plot_legend_swatch(pair.style)
        name = replace(row[0], markup=join_escaped_markup(swatch, row[0].text))
        span = plots.plot_training_to_unseen_score(
            pair, low=low, high=high, references=chance
        )
        rows.append([name, *row[1:scores], Cell(markup=span)])
    scale = f"from {low:.3g} to {high:.3g}{', dotted: chance' if chance else ''}"
    columns = [*table.columns[:scores], Column(scale)]
    seeds, selection = table.notes
    if scores > 2:
        seeds += " Ring: training score; filled mark: unseen score."
    content = Table(table.title, columns, rows, [seeds, selection])
    return Section("Results", [content, page.render_notes_as_list(notes)])


def _describe_number_of_seeds(learners: Mapping[str, Mapping[str, Any]]) -> str:
    seeds = [max(e["train"]["seeds"], e["test"]["seeds"]) for e in learners.values()]
    few, many = min(seeds), max(seeds)
    if many < 2:
        return (
            "Scores after the last stage. With one seed there is no standard deviation."
        )
    count = str(few) if few == many else f"{few} to {many}"
    return f"Mean ± standard deviation over {count} seeds, after the last stage."


def _build_memory_section(view: FigureData) -> Section | None:
    table = build_memory_table(view.learners)
    if table is None:
        return None
    keepers = [
        learner
        for learner, entry in view.learners.items()
        if any(counts.get("examples") for counts in entry["memory"].values())
    ]
    verb = "keeps" if len(keepers) == 1 else "keep"
    text = (
        f"{join_words(keepers)} {verb} raw examples"
        if keepers
        else "No learner keeps raw examples"
    )
    text += "; the table shows what the state of one seed contains at the end."
    return Section("Data kept from earlier environments", [text, table])


def _build_settings_section(view: FigureData, command: str) -> Section:
    content = [page.render_shell_command(command)]
    for learner, entry in view.learners.items():
        lines = page.render_settings_as_lines(
            {
                "settings": entry["selection"],
                "order": entry["order"],
                **entry["settings"],
            }
        )
        seconds = f"{format_seconds(entry['seconds'])} s"
        content.append(page.render_collapsible_block(learner, lines, seconds))
    datasets = {str(r.dataset): r.dataset for r in view.records if isinstance(r, Run)}
    content += [
        page.render_collapsible_block(
            "data set", page.render_settings_as_lines(dataset)
        )
        for dataset in datasets.values()
    ]
    return Section("Settings, and the command to run this again", content)
