"""The page of a run, its tables, and the sections with figures that pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cirm.records import Record, RunRecord, ScoreRecord
from cirm.report import axes, page, plots
from cirm.report.diagnostics import build_learner_diagnostics_section
from cirm.report.drawing import CEILING, get_line_style_variant
from cirm.report.markup import EscapedHtml, escape_and_join_html
from cirm.report.measures import (
    build_transfer_measures_section,
    collect_transfer_measures,
)
from cirm.report.page import PageSection, PngPicture
from cirm.report.plots import LearnerPlotLine, TrainingAndUnseenScore
from cirm.report.summary import (
    AverageTrainingCurve,
    MeanAndStd,
    SummaryCurvePoint,
    average_values_over_seeds,
    collect_adapted_sweep_scores,
    collect_scores_after_each_stage,
    collect_scores_along_sweep,
    collect_training_curves,
    group_records_by_learner,
    is_learner_on_grey_images,
    summarise_records,
)
from cirm.report.table import (
    ReportCell,
    ReportColumn,
    ReportTable,
    Row,
    build_mean_and_std_cell,
)
from cirm.report.text import (
    describe_adaptation_to_rows,
    describe_metric_with_unit,
    describe_settings_choices,
    describe_training_curve,
    format_bytes,
    format_seconds,
    list_adaptation_row_counts,
    list_headline_numbers_of_run,
    write_headline_of_run,
)
from cirm.wording import join_words

SPLITS = {"train": "training", "test": "unseen"}
ADAPTED_NOTE = (
    "Adapted: before scoring, the learner was adapted to this number of unlabelled "
    "rows of the unseen environment. All rows are scored."
)


@dataclass(frozen=True)
class RunFigureData:
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
        if is_learner_on_grey_images(learner):
            return CEILING
        return [
            name for name in self.learners if not is_learner_on_grey_images(name)
        ].index(learner)

    def get_learner_name(self, learner: str) -> str:
        """Return a learner's name in figures."""
        if not is_learner_on_grey_images(learner):
            return learner
        is_only = sum(map(is_learner_on_grey_images, self.learners)) == 1
        return "ceiling, without colour" if is_only else f"ceiling: {learner}"

    def build_plot_line_of_learner(
        self, learner: str, points: tuple[SummaryCurvePoint, ...]
    ) -> LearnerPlotLine:
        """Return a learner's line."""
        return LearnerPlotLine(
            self.get_learner_name(learner), points, self.get_learner_style(learner)
        )

    def list_plot_lines_after_adapting(self, learner: str) -> list[LearnerPlotLine]:
        """Return the lines of a learner after adaptation, in its colour."""
        own = collect_adapted_sweep_scores(self.records).get(learner, {})
        return [
            LearnerPlotLine(
                f"{self.get_learner_name(learner)}, adapted ({rows})",
                points,
                get_line_style_variant(self.get_learner_style(learner), number),
            )
            for number, (rows, points) in enumerate(own.items())
        ]

    def get_training_and_unseen_scores(self, learner: str) -> TrainingAndUnseenScore:
        """Return a learner's training and unseen scores."""
        entry = self.learners[learner]
        train, test = MeanAndStd(**entry["train"]), MeanAndStd(**entry["test"])
        return TrainingAndUnseenScore(
            self.get_learner_name(learner), train, test, self.get_learner_style(learner)
        )


def build_run_page(
    records: Sequence[Record],
    title: str,
    command: str = "",
    notes: Sequence[str] = (),
    pictures: Sequence[PngPicture] = (),
    *,
    chance: float | None = None,
    axis: str = "position of the unseen environment",
    trained_at: Sequence[float] = (),
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
        trained_at: The positions of the training environments on that axis.

    Returns:
        The document as text.

    Raises:
        ValueError: If the records have no score.

    Example:
        >>> score = ScoreRecord("erm", "joint", 0, 0, "a", "train", "accuracy", 80.0)
        >>> "80.0" in build_run_page([score], "A run")
        True
    """
    scores = [record for record in records if isinstance(record, ScoreRecord)]
    if not scores:
        raise ValueError(
            f"the records of {title!r} contain no scores, so there is nothing to "
            "report. Start the run first, or give the records of another run."
        )
    summary = summarise_records(records)
    view = RunFigureData(records, summary["learners"], chance)
    unseen = {score.environment for score in scores if score.split == "test"}
    content = [
        PageSection(
            "",
            [
                page.render_headline_numbers(
                    list_headline_numbers_of_run(summary, chance)
                )
            ],
        ),
        _build_run_results_section(summary, view, notes),
        build_example_image_section(pictures),
        build_sweep_section_of_run(view, axis, trained_at),
        build_stage_scores_section(view),
        build_generalisation_gap_section(view),
        build_learner_diagnostics_section(records, view.metric),
        build_transfer_measures_section(
            collect_transfer_measures(records), view.metric
        ),
        build_training_curve_section(view),
        _build_learner_memory_section(view),
        _build_run_settings_section(view, command),
    ]
    lead = write_headline_of_run(summary, chance, len(unseen))
    return page.render_html_page(title, lead, content)


def build_run_results_table(summary: Mapping[str, Any]) -> ReportTable:
    """Build the table of a run: scores of each learner and what they cost.

    Example:
        >>> score = ScoreRecord("erm", "joint", 0, 0, "a", "train", "accuracy", 80.0)
        >>> table = build_run_results_table(summarise_records([score]))
        >>> [str(cell) for cell in table.rows[0][:2]]
        ['erm', '80.0']
    """
    learners = summary["learners"]
    metrics = [entry["metric"] for entry in learners.values()]
    unit = describe_metric_with_unit(metrics[0]) if metrics else "score"
    splits = [s for s in SPLITS if any(e[s]["seeds"] for e in learners.values())]
    adapted = list_adaptation_row_counts(learners)
    rows: list[Row] = []
    for learner, entry in learners.items():
        memory = entry["memory"].values()
        known = entry.get("adapted", {})  # summaries of old versions have none
        scores = [
            build_mean_and_std_cell(statistic, entry["metric"]) if statistic else ""
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
    headings += [f"unseen, {describe_adaptation_to_rows(rows)}" for rows in adapted]
    columns = ["learner", *headings, "seconds", "examples kept", "size of the state"]
    choices = [(learner, entry["selection"]) for learner, entry in learners.items()]
    notes = (
        [_describe_number_of_seeds(learners), describe_settings_choices(choices)]
        if rows
        else []
    )
    if adapted:
        notes[0] += f" {ADAPTED_NOTE}"
    return ReportTable("Results", columns, rows, notes)


def build_coefficient_error_table(records: Sequence[Record]) -> ReportTable | None:
    """Build the table of the errors of linear coefficients; None without any."""
    scores = [
        record
        for record in records
        if isinstance(record, ScoreRecord) and record.metric == "coefficients"
    ]
    kinds = list(dict.fromkeys(score.environment for score in scores))
    rows: list[Row] = []
    for learner, own in group_records_by_learner(scores, ScoreRecord).items():
        errors = [
            average_values_over_seeds(s for s in own if s.environment == k)
            for k in kinds
        ]
        rows.append(
            [learner, *(build_mean_and_std_cell(error, "error") for error in errors)]
        )
    title = "Squared error of the coefficients"
    return ReportTable(title, ["learner", *kinds], rows) if rows else None


def build_learner_memory_table(
    learners: Mapping[str, Mapping[str, Any]],
) -> ReportTable | None:
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
    return ReportTable("Memory", columns, rows, row_headings=2) if rows else None


def build_example_image_section(pictures: Sequence[PngPicture]) -> PageSection | None:
    """Build the section with example images; None without any."""
    if not pictures:
        return None
    return PageSection(
        "Example images",
        [page.render_inline_png_picture(picture) for picture in pictures],
    )


def build_sweep_section_of_run(
    figure_data: RunFigureData, axis: str, trained_at: Sequence[float] = ()
) -> PageSection | None:
    """Build the section with the score over the whole sweep; None without a sweep."""
    draw = prepare_sweep_figure(figure_data, axis, trained_at)
    if draw is None:
        return None
    caption = "Each point is an unseen environment, scored after the last stage"
    if list_adaptation_row_counts(figure_data.learners):
        caption += (
            "; adapted: after adapting to this number of unlabelled rows of that "
            "environment"
        )
    figure = _render_figure_in_two_widths(draw, caption + figure_data.band_caption)
    return PageSection("Scores across unseen environments", [figure])


def render_sweep_figure_of_run(
    records: Sequence[Record],
    chance: float | None = None,
    axis: str = "position of the unseen environment",
    trained_at: Sequence[float] = (),
) -> EscapedHtml | None:
    """Build the figure of a run's sweep on its own; None without a sweep."""
    view = RunFigureData(records, summarise_records(records)["learners"], chance)
    draw = prepare_sweep_figure(view, axis, trained_at)
    return draw() if draw else None


def prepare_sweep_figure(
    figure_data: RunFigureData, axis: str, trained_at: Sequence[float] = ()
) -> partial[EscapedHtml] | None:
    """Prepare the figure of the sweep, to be drawn in any width; None without one."""
    sweep = collect_scores_along_sweep(figure_data.records)
    if not sweep:
        return None
    lines = []
    for name, points in sweep.items():
        lines.append(figure_data.build_plot_line_of_learner(name, points))
        lines += figure_data.list_plot_lines_after_adapting(name)
    return partial(
        plots.plot_scores_over_sweep,
        lines,
        axis=axis,
        metric=figure_data.metric,
        chance=figure_data.chance,
        trained_at=trained_at,
    )


def build_stage_scores_section(figure_data: RunFigureData) -> PageSection | None:
    """Build the section with the scores after each stage; None with a single stage."""
    stream = collect_scores_after_each_stage(figure_data.records)
    points = (p for tracks in stream.values() for t in tracks for p in t.points)
    if max((point.x for point in points), default=1) < 2:
        return None
    drawings = [
        plots.plot_scores_after_stages(
            figure_data.get_learner_name(name),
            tracks,
            style=figure_data.get_learner_style(name),
            metric=figure_data.metric,
            chance=figure_data.chance,
        )
        for name, tracks in stream.items()
    ]
    caption = (
        f"{describe_metric_with_unit(figure_data.metric).capitalize()}, after each "
        "stage. Grey lines: training environments; the later an environment arrives, "
        "the darker its line; rings mark the stages before its arrival. Coloured "
        "lines: unseen environments."
    )
    return PageSection(
        "Scores after each stage", [page.render_figures_side_by_side(caption, drawings)]
    )


def build_generalisation_gap_section(figure_data: RunFigureData) -> PageSection | None:
    """Build the section on training and unseen scores; None without unseen ones."""
    pairs = [
        figure_data.get_training_and_unseen_scores(name)
        for name in figure_data.learners
    ]
    if all(pair.test.mean is None for pair in pairs):
        return None
    draw = partial(
        plots.plot_training_against_unseen_scores,
        pairs,
        metric=figure_data.metric,
        chance=figure_data.chance,
    )
    caption = (
        "The further a learner is from the diagonal, the more it relies on features "
        "that do not carry over to the unseen environments"
    )
    figure = _render_figure_in_two_widths(draw, caption)
    return PageSection("Training scores and unseen scores", [figure])


def build_training_curve_section(figure_data: RunFigureData) -> PageSection | None:
    """Build the section with a figure for each training curve; None without any."""
    drawings = [
        _render_figure_in_two_widths(
            _prepare_training_curve_figure(figure_data, metric, traces)
        )
        for metric, traces in collect_training_curves(figure_data.records).items()
    ]
    text = (
        f"Means over seeds{figure_data.band_caption}. A dotted vertical line marks the "
        "start of a stage."
    )
    return PageSection("Training curves", [text, *drawings]) if drawings else None


def _prepare_training_curve_figure(
    figure_data: RunFigureData, metric: str, traces: Mapping[str, AverageTrainingCurve]
) -> partial[EscapedHtml]:
    lines = [
        figure_data.build_plot_line_of_learner(name, trace.points)
        for name, trace in traces.items()
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


def _render_figure_in_two_widths(
    draw: partial[EscapedHtml], caption: str = ""
) -> EscapedHtml:
    """Render a figure as drawn for a wide page and for a phone."""
    wide, narrow = draw(width=axes.WIDE), draw(width=axes.NARROW)
    return page.render_html_figure(f"{caption}." if caption else "", wide, narrow)


def _build_run_results_section(
    summary: Mapping[str, Any], figure_data: RunFigureData, notes: Sequence[str]
) -> PageSection:
    """The scores of each learner, with a drawing in the place of the costs."""
    table = build_run_results_table(summary)
    scores = len(table.columns) - 3
    low, high, chance = (
        0.0,
        100.0,
        [] if figure_data.chance is None else [figure_data.chance],
    )
    if figure_data.metric != "accuracy":
        means = [
            e[split]["mean"] for e in figure_data.learners.values() for split in SPLITS
        ]
        high, chance = max([m for m in means if m is not None], default=0.0) or 1.0, []
    rows = []
    for row in table.rows:
        pair = figure_data.get_training_and_unseen_scores(row[0].text)
        swatch = plots.plot_legend_swatch(pair.style)
        name = replace(row[0], markup=escape_and_join_html(swatch, row[0].text))
        span = plots.plot_training_to_unseen_score(
            pair, low=low, high=high, references=chance
        )
        rows.append([name, *row[1:scores], ReportCell(markup=span)])
    scale = f"from {low:.3g} to {high:.3g}{', dotted: chance' if chance else ''}"
    columns = [*table.columns[:scores], ReportColumn(scale)]
    seeds, selection = table.notes
    if scores > 2:
        seeds += " Ring: training score; filled mark: unseen score."
    content = ReportTable(table.title, columns, rows, [seeds, selection])
    return PageSection("Results", [content, page.render_notes_as_list(notes)])


def _describe_number_of_seeds(learners: Mapping[str, Mapping[str, Any]]) -> str:
    seeds = [max(e["train"]["seeds"], e["test"]["seeds"]) for e in learners.values()]
    few, many = min(seeds), max(seeds)
    if many < 2:
        return (
            "Scores after the last stage. With one seed there is no standard deviation."
        )
    count = str(few) if few == many else f"{few} to {many}"
    return f"Mean ± standard deviation over {count} seeds, after the last stage."


def _build_learner_memory_section(figure_data: RunFigureData) -> PageSection | None:
    table = build_learner_memory_table(figure_data.learners)
    if table is None:
        return None
    keepers = [
        learner
        for learner, entry in figure_data.learners.items()
        if any(counts.get("examples") for counts in entry["memory"].values())
    ]
    verb = "keeps" if len(keepers) == 1 else "keep"
    text = (
        f"{join_words(keepers)} {verb} raw examples"
        if keepers
        else "No learner keeps raw examples"
    )
    text += "; the table shows what the state of one seed contains at the end."
    return PageSection("Data kept from earlier environments", [text, table])


def _build_run_settings_section(
    figure_data: RunFigureData, command: str
) -> PageSection:
    content = [page.render_shell_command(command)]
    for learner, entry in figure_data.learners.items():
        lines = page.render_settings_as_html_lines(
            {
                "settings": entry["selection"],
                "order": entry["order"],
                **entry["settings"],
            }
        )
        seconds = f"{format_seconds(entry['seconds'])} s"
        content.append(page.render_collapsible_html_block(learner, lines, seconds))
    datasets = {
        str(r.dataset): r.dataset
        for r in figure_data.records
        if isinstance(r, RunRecord)
    }
    content += [
        page.render_collapsible_html_block(
            "data set", page.render_settings_as_html_lines(dataset)
        )
        for dataset in datasets.values()
    ]
    return PageSection("Settings, and the command that repeats this run", content)
