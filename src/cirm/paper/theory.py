"""What the paper proves or cites, checked by numbers: `cirm reproduce theory`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cirm.paper.admm_rate import ADMMConvergenceCurve, measure_admm_convergence_rates
from cirm.paper.environment_count import (
    BOUND,
    STARTS,
    InvariantPredictorCount,
    count_invariant_predictors_by_environment_count,
)
from cirm.records import write_text_atomically
from cirm.report import paper_plots
from cirm.report.drawing import render_svg_file
from cirm.report.paper_page import FigureWithCaption, build_paper_page

SPREAD = 0.05  # standard deviation of BVIRM's features, around a predictor of length 1


def write_theory_files(folder: Path) -> None:
    """Write theory.json, the figures as files, and a page of them."""
    rates = measure_admm_convergence_rates()
    counts = count_invariant_predictors_by_environment_count()
    spread = count_invariant_predictors_by_environment_count(SPREAD)
    content = summarise_theory_measurements(rates, counts, spread)
    write_text_atomically(folder / "theory.json", json.dumps(content, indent=1) + "\n")
    figures = {
        "admm-rate": render_admm_rate_figure(rates),
        "environments": render_invariant_predictor_counts(counts),
    }
    for name, drawing in figures.items():
        write_text_atomically(folder / f"{name}.svg", render_svg_file(drawing.figure))
    page = build_paper_page("Theory", [], [], [], [*figures.values()])
    write_text_atomically(folder / "report.html", page)


def summarise_theory_measurements(
    rates: list[ADMMConvergenceCurve],
    birm: list[InvariantPredictorCount],
    bvirm: list[InvariantPredictorCount],
) -> dict[str, Any]:
    """Return the measured numbers as plain values."""
    return {
        "admm": [curve._asdict() for curve in rates],
        "environments": {
            "starts": STARTS,
            "bound": BOUND,
            "birm": [count._asdict() for count in birm],
            "bvirm": [count._asdict() for count in bvirm],
            "spread": SPREAD,
        },
    }


def render_admm_rate_figure(rates: list[ADMMConvergenceCurve]) -> FigureWithCaption:
    """Draw the gaps of ADMM over its steps."""
    return FigureWithCaption(
        paper_plots.plot_admm_rates(rates),
        "How fast stochastic ADMM converges on linear problems. Solid lines: how far "
        "the risk is above its minimum, plus how far the solution is from meeting "
        "the consensus and gradient constraints, averaged over runs. Dotted lines: "
        "the rate that the theorem predicts, 1/sqrt(t) for convex and log(t)/t for "
        "strongly convex problems, scaled so that the line just stays above the "
        "second half of the curve.",
    )


def render_invariant_predictor_counts(
    counts: list[InvariantPredictorCount],
) -> FigureWithCaption:
    """Draw how many invariant predictors are found by the number of environments."""
    return FigureWithCaption(
        paper_plots.plot_invariance_counts(counts, BOUND, STARTS),
        "Grey: how many of the random starts find a linear predictor (rank 1, three "
        "dimensions) that is invariant in all training environments. Coloured: how "
        "many of these predictors are not invariant in a new environment. To the "
        "right of the dotted line, the theorem says that there are none.",
    )
