"""Our numbers beside the paper's: tables, a document of results, and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cirm.records import Record, RunRecord, ScoreRecord, TrainingCurveRecord
from cirm.report import page
from cirm.report.markup import EscapedHtml, escape_and_join_html, render_html_element
from cirm.report.page import PageSection, PngPicture
from cirm.report.run_page import (
    RunFigureData,
    build_example_image_section,
    build_generalisation_gap_section,
    build_stage_scores_section,
    build_sweep_section_of_run,
    build_training_curve_section,
    prepare_sweep_figure,
)
from cirm.report.summary import (
    average_values_over_seeds,
    describe_how_settings_were_chosen,
    summarise_records,
)
from cirm.report.table import (
    LATEX_MARKS,
    MARKS,
    WIDE,
    ReportCell,
    ReportColumn,
    ReportTable,
    Row,
    build_mean_and_std_cell,
    drop_empty_rows_and_columns,
    escape_markdown,
    render_table_as_latex,
    render_table_as_markdown,
    transpose_table,
)
from cirm.report.text import describe_settings_choices, format_seconds
from cirm.wording import join_names_in_backticks, join_words

Claims = Sequence[Mapping[str, Any]]
Summary = Mapping[str, Any]
SOURCES = {"mean": "ours", "paper": "paper", "elsewhere": "IRM's runs"}
BELOW = " The upper line of each cell is our number, the lower line the paper's."
RESIDUALS = ("consensus", "constraint")
SPREAD = "Mean ± standard deviation over seeds."
LATEX_SPREAD = "Mean (standard deviation)."
LIMIT = (
    "our number and the paper's differ by at most twice the largest of three values: "
    "our standard deviation, the paper's, and 2 points (0.02 for errors)"
)
VERDICTS = {
    "match": "match",
    "better": "better",
    "differs": "different",
    "no-data": "not measured",
}
ANSWERS = {True: "holds", False: "does not hold", None: "not known"}
ANSWER_VERDICTS = {True: "match", False: "differs", None: "no-data"}


class DatasetRecords(NamedTuple):
    """The records of learners on the same data.

    `trained` holds the positions of the training environments on the sweep's axis.
    """

    title: str
    records: Sequence[Record]
    trained: Sequence[float] = ()


class FigureWithCaption(NamedTuple):
    """A figure that is not made from records, with its caption."""

    figure: EscapedHtml
    caption: str


@dataclass(frozen=True)
class ExperimentReport:
    """One experiment: its summary as in summary.json, and its data.

    `chance` is the accuracy of guessing in percent; `axis` is what sweeps vary.
    """

    summary: Summary
    data: Sequence[DatasetRecords]
    chance: float | None = None
    axis: str = "position of the unseen environment"

    def build_figure_data(self, data: DatasetRecords) -> RunFigureData:
        """Return what figures need of one row's data."""
        learners = summarise_records(data.records)["learners"]
        return RunFigureData(data.records, learners, self.chance)


def summarise_learners_of_row(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Summarise each learner as in summary.json, with what only tables show.

    That is the errors of coefficients, and the mean score of inferred environments.
    """
    learners: dict[str, dict[str, Any]] = summarise_records(records)["learners"]
    scores = [record for record in records if isinstance(record, ScoreRecord)]
    truth = [score for score in scores if score.split == "truth"]
    inferred = [score for score in scores if score.split == "inferred"]
    for name, entry in learners.items():
        groups = [score for score in inferred if score.learner == name]
        entry["inferred"] = average_values_over_seeds(groups)._asdict()
        for kind in ("causal", "noncausal"):
            rows = [s for s in truth if (s.learner, s.environment) == (name, kind)]
            entry[kind] = average_values_over_seeds(rows)._asdict()
    return learners


def build_paper_comparison_tables(summary: Summary) -> list[ReportTable]:
    """Build the tables of a summary in the paper's layout, ours beside the paper's.

    Rows and columns without any number are left out.
    """
    cells = {(c["row"], c["learner"], c["split"]): c for c in summary["cells"]}
    tables = []
    for layout in summary["tables"]:
        lines = [
            (line["headings"], [cells.get(tuple(place)) for place in line["places"]])
            for line in layout["lines"]
        ]
        numbers = [cell for _, some in lines for cell in some if cell]
        found = {key for key in SOURCES if any(cell.get(key) for cell in numbers)}
        keys = [key for key in SOURCES if key in found | {"mean"}]
        heads = max((len(headings) for headings, _ in lines), default=1)
        columns: list[ReportColumn | str] = [*layout["corner"], *[""] * heads][:heads]
        columns += [
            ReportColumn(n[-1], "right", tuple(n[:-1])) for n in layout["columns"]
        ]
        rows: list[Row] = [
            [
                *headings,
                *(_build_cell_with_published_value(cell, keys) for cell in some),
            ]
            for headings, some in lines
        ]
        sources = [SOURCES[key] for key in keys] if keys != ["mean"] else []
        table = ReportTable(layout["title"], columns, rows, (), heads, sources)
        tables.append(drop_empty_rows_and_columns(table))
    return [table for table in tables if table.rows]


def transpose_table_if_wide(table: ReportTable) -> ReportTable:
    """Return the table, transposed if it is wide and has few rows."""
    is_low = len(table.value_columns) > WIDE and len(table.rows) < 4
    return transpose_table(table) if is_low else table


def render_paper_tables_as_markdown(summary: Summary) -> str:
    """Render all tables of a summary in Markdown, with a legend and what is missing."""
    tables = map(transpose_table_if_wide, build_paper_comparison_tables(summary))
    notes = [
        f"- {escape_markdown(note)}\n" for note in describe_missing_numbers(summary)
    ]
    parts = [*map(render_table_as_markdown, tables), f"{write_table_legend(summary)}\n"]
    return "\n".join([*parts, *(["".join(notes)] if notes else [])])


def render_paper_tables_as_latex(summary: Summary) -> str:
    """Render all tables of a summary in LaTeX, in the paper's layout."""
    lines = [
        "% needs \\usepackage{booktabs} and \\usepackage{graphicx}",
        f"% made by: {' '.join(str(summary['command']).split())}",
    ]
    for table in build_paper_comparison_tables(summary):
        legend = LATEX_SPREAD
        if SOURCES["paper"] in table.sources:
            legend += (
                f" Without a mark, {LIMIT}; {LATEX_MARKS['better']} ours is better by "
                f"more than this limit; {LATEX_MARKS['differs']} ours differs by more "
                f"than this limit; {LATEX_MARKS['no-data']} not measured."
            )
        titled = replace(table, title=f"{summary['title']}: {table.title}")
        lines.append(render_table_as_latex(titled, legend))
    return "\n".join(lines)


def write_table_legend(summary: Summary) -> str:
    """Say what the numbers are and, if there are verdicts, what their marks mean."""
    if not any(cell["verdict"] for cell in summary["cells"]):
        return SPREAD
    return (
        f"{SPREAD} {MARKS['match']} match: {LIMIT}. {MARKS['better']} our number is "
        f"better by more than this limit. {MARKS['differs']} our number differs by "
        f"more than this limit. {MARKS['no-data']} not measured."
    )


def describe_missing_numbers(summary: Summary) -> list[str]:
    """Say why numbers are missing, each reason once with the rows and learners."""
    reasons: dict[str, dict[str, dict[str, None]]] = {}
    for cell in summary["cells"]:
        if "note" in cell:
            rows = reasons.setdefault(cell["note"], {})
            rows.setdefault(cell["row"], {})[cell["learner"]] = None
    return [
        "; ".join(
            f"{row} ({_join_learner_names(names)})" for row, names in rows.items()
        )
        + f": {reason}"
        for reason, rows in reasons.items()
    ]


def count_paper_verdicts(reports: Sequence[ExperimentReport]) -> dict[str, int]:
    """Count the paper's numbers by verdict, over all parts.

    Those that repeat numbers of a table count only if there are no others.
    """
    counted = [part for part in reports if not part.summary.get("repeats")] or reports
    cells = [
        cell for part in counted for cell in part.summary["cells"] if cell["paper"]
    ]
    return {v: sum(cell["verdict"] == v for cell in cells) for v in MARKS}


def write_comparison_lead_paragraph(
    reports: Sequence[ExperimentReport], claims: Claims
) -> str:
    """Say in two sentences how our numbers compare and which claims hold."""
    counts = count_paper_verdicts(reports)
    total = sum(counts.values())
    if not total:
        return "The paper reports none of these numbers."
    if total == counts["no-data"]:
        return "None of the paper's numbers has been measured yet."
    text = (
        f"Of {total} numbers in the paper, {counts['match']} match ours, "
        f"{counts['better']} of ours are better and {counts['differs']} differ"
    )
    if counts["no-data"]:
        text += f"; {counts['no-data']} were not measured"
    answers = [
        _describe_claims_that_hold(claims, holds=True),
        _describe_claims_that_hold(claims, holds=False),
    ]
    return ". ".join([text, *filter(None, answers)]) + "."


def build_claims_table(claims: Claims) -> ReportTable | None:
    """Build the table of the paper's claims; None if none could be judged."""
    rows: list[Row] = []
    for number, claim in enumerate(claims, 1):
        if claim["figures"]:
            name, holds = f"{number}. {claim['claim']}", claim["holds"]
            ours = ReportCell(
                ANSWERS[holds], verdict=ANSWER_VERDICTS[holds], marked=False
            )
            details = "\n".join(claim["figures"])
            rows.append([name, ours, ANSWERS[claim["in_paper"]], details])
    names = ("claim", "our numbers", "the paper's numbers", "details of our numbers")
    columns = map(ReportColumn, names)
    return ReportTable("The paper's claims", columns, rows) if rows else None


def render_sweep_of_experiment(
    report: ExperimentReport, data: DatasetRecords
) -> EscapedHtml | None:
    """Draw the score over the sweep as a figure of its own; None without a sweep."""
    figure_data = report.build_figure_data(data)
    draw = prepare_sweep_figure(figure_data, report.axis, data.trained)
    return draw() if draw else None


def render_results_document(
    reports: Sequence[ExperimentReport],
    claims: Claims,
    images: Mapping[str, Sequence[tuple[str, str]]],
    made_by: str,
) -> str:
    """Render experiments as one Markdown document.

    `images` are titles and files by experiment; `made_by` is the command.
    """
    lines = ["# Results", "", f"Made by `{made_by}`; do not edit.", ""]
    lines += [write_comparison_lead_paragraph(reports, claims), ""]
    table = build_claims_table(claims)
    if table:
        lines.append(render_table_as_markdown(replace(table, title="")))
    for part in reports:
        summary = part.summary
        lines += [f"## {summary['title']}", "", f"    {summary['command']}", ""]
        lines += [
            _describe_origin_of_numbers(summary),
            "",
            render_paper_tables_as_markdown(summary),
        ]
        for title, path in images.get(str(summary["experiment"]), ()):
            lines += [f"![{title}]({path})", ""]
    return "\n".join(lines).rstrip() + "\n"


def build_paper_page(
    title: str,
    reports: Sequence[ExperimentReport],
    claims: Claims,
    pictures: Sequence[PngPicture] = (),
    drawings: Sequence[FigureWithCaption] = (),
) -> str:
    """Build the page of one or more experiments as one HTML document."""
    counts = count_paper_verdicts(reports)
    facts = [(str(counts[verdict]), word) for verdict, word in VERDICTS.items()]
    numbers = page.render_headline_numbers(facts if any(counts.values()) else ())
    content: list[PageSection | None] = [PageSection("", [numbers])]
    for part in reports:
        content += _build_experiment_sections(part, is_alone=len(reports) == 1)
    content += [
        _build_claims_section(claims) if reports else None,
        build_example_image_section(pictures),
        _build_projection_figures_section(drawings),
        _build_experiment_settings_section(reports) if reports else None,
    ]
    lead = (
        write_comparison_lead_paragraph(reports, claims)
        if reports
        else "The figures of the paper, drawn again."
    )
    return page.render_html_page(title, lead, content)


def _build_cell_with_published_value(
    cell: Mapping[str, Any] | None, keys: Sequence[str]
) -> ReportCell:
    """A cell with our number, and those of the other sources."""
    if cell is None:
        return ReportCell()
    numbers = []
    for key in keys:
        statistic = cell if key == "mean" else cell.get(key)
        has_number = statistic is not None and statistic["mean"] is not None
        numbers.append(
            build_mean_and_std_cell(statistic, cell["metric"])
            if has_number
            else ReportCell()
        )
    ours, *others = numbers
    return replace(ours, verdict=cell["verdict"], others=tuple(others))


def _join_learner_names(names: Mapping[str, None]) -> str:
    return join_words(list(names)) if len(names) < 4 else f"{len(names)} learners"


def _describe_claims_that_hold(claims: Claims, holds: bool) -> str:
    """A sentence on the claims that hold, or on those that do not; empty if none."""
    numbers = [str(n) for n, claim in enumerate(claims, 1) if claim["holds"] is holds]
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"Claim {numbers[0]} {ANSWERS[holds]}"
    return f"Claims {join_words(numbers)} {'hold' if holds else 'do not hold'}"


def _describe_origin_of_numbers(summary: Summary) -> str:
    """Seeds, source code, settings and time of an experiment's numbers."""
    cells = [cell for cell in summary["cells"] if cell["seeds"]]
    if not cells:
        return "Nothing was measured."
    counts = sorted({cell["seeds"] for cell in cells})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seconds = {(c["row"], c["learner"]): c["seconds"] or 0.0 for c in cells}
    commits = join_names_in_backticks(summary["commits"]) or "not known"
    settings = describe_settings_choices((c["learner"], c["selection"]) for c in cells)
    return (
        f"Seeds 0 to N - 1 with N = {seeds}; source code {commits}; "
        f"{format_seconds(sum(seconds.values()))} s of computing time. {settings}"
    )


def _build_experiment_sections(
    report: ExperimentReport, is_alone: bool
) -> list[PageSection]:
    """The tables of an experiment, then the figures of its data."""
    tables = [
        transpose_table_if_wide(table)
        for table in build_paper_comparison_tables(report.summary)
    ]
    content: list[str | ReportTable] = []
    for table in tables:
        content += [f"{table.title}.{BELOW if table.sources else ''}", table]
    content.append(
        page.render_html_paragraph(write_table_legend(report.summary), "small")
    )
    content.append(page.render_notes_as_list(describe_missing_numbers(report.summary)))
    if not is_alone:
        details = [_render_dataset_figures(report, data) for data in report.data]
        return [PageSection(str(report.summary["title"]), [*content, *details])]
    has_paper = any(count_paper_verdicts([report]).values())
    heading = "Our numbers and the paper's" if has_paper else "Our numbers"
    sections = [PageSection(heading, content)]
    for data in report.data[:1]:
        sections += _build_dataset_sections(report, data)
    others = [_render_dataset_figures(report, data) for data in report.data[1:]]
    return sections + (
        [PageSection("Plots of the other rows", others)] if others else []
    )


def _build_dataset_sections(
    report: ExperimentReport, data: DatasetRecords
) -> list[PageSection]:
    """The figures of one row's data."""
    view = report.build_figure_data(data)
    sections = [
        build_sweep_section_of_run(view, report.axis, data.trained),
        build_stage_scores_section(view),
        build_generalisation_gap_section(view),
        _build_admm_residual_section(view),
    ]
    return [section for section in sections if section]


def _render_dataset_figures(
    report: ExperimentReport, data: DatasetRecords
) -> EscapedHtml:
    """The figures of one row's data in a block that opens with a click."""
    pieces = [
        escape_and_join_html(
            render_html_element("h3", section.heading),
            page.render_section_content(section.content),
        )
        for section in _build_dataset_sections(report, data)
    ]
    learners = len(report.build_figure_data(data).learners)
    return page.render_collapsible_html_block(
        data.title, escape_and_join_html(*pieces), f"{learners} learners"
    )


def _build_admm_residual_section(figure_data: RunFigureData) -> PageSection | None:
    """How far ADMM is from its constraints; None where no learner uses it."""
    records = [
        record
        for record in figure_data.records
        if not isinstance(record, TrainingCurveRecord) or record.metric in RESIDUALS
    ]
    section = build_training_curve_section(replace(figure_data, records=records))
    if section is None:
        return None
    text = (
        "How far ADMM is from meeting its constraints. Consensus: how much the "
        "solutions of the environments differ. Constraint: how far their gradients "
        f"are from zero. Means over seeds{figure_data.band_caption}."
    )
    return PageSection("Residuals of ADMM", [text, *section.content[1:]])


def _build_claims_section(claims: Claims) -> PageSection | None:
    table = build_claims_table(claims)
    if table is None:
        return None
    text = (
        "Each claim is tested on our means and on those in the paper. Chance is 50 %: "
        "a learner close to it in training and test has learned nothing."
    )
    return PageSection(table.title, [text, table])


def _build_projection_figures_section(
    drawings: Sequence[FigureWithCaption],
) -> PageSection | None:
    figures = [page.render_html_figure(caption, figure) for figure, caption in drawings]
    return PageSection("Theory", figures) if figures else None


def _build_experiment_settings_section(
    reports: Sequence[ExperimentReport],
) -> PageSection:
    """The command of each experiment, and the settings of its learners and data."""
    content: list[EscapedHtml] = []
    for part in reports:
        content.append(page.render_shell_command(str(part.summary["command"])))
        commits = join_words(list(part.summary["commits"]))
        if commits:
            content.append(
                page.render_html_paragraph(f"Source code: {commits}.", "small")
            )
        content += _render_experiment_settings(part)
    return PageSection("Settings, and the command that repeats this run", content)


def _render_experiment_settings(report: ExperimentReport) -> list[EscapedHtml]:
    """A block by learner, or by learner and data where its settings differ."""
    blocks: dict[str, dict[EscapedHtml, list[str]]] = {}
    datasets: dict[EscapedHtml, None] = {}
    for data in report.data:
        for run in (record for record in data.records if isinstance(record, RunRecord)):
            chosen = {
                "settings": describe_how_settings_were_chosen(run),
                "order": run.order,
            }
            block = page.render_settings_as_html_lines({**chosen, **run.settings})
            titles = blocks.setdefault(run.learner, {}).setdefault(block, [])
            titles += [data.title] if data.title not in titles else []
            datasets[page.render_settings_as_html_lines(run.dataset)] = None
    details = []
    for learner, titles_by_block in blocks.items():
        for block, titles in titles_by_block.items():
            others = f" and {len(titles) - 1} others" if len(titles) > 1 else ""
            place = f": {titles[0]}{others}" if len(titles_by_block) > 1 else ""
            details.append(
                page.render_collapsible_html_block(f"{learner}{place}", block)
            )
    if datasets:
        details.append(
            page.render_collapsible_html_block("data", escape_and_join_html(*datasets))
        )
    return details
