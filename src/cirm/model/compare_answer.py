"""What a comparison of two tables found, in one or two sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cirm.model.compare_columns import format_two_shares_in_percent
from cirm.model.compare_relations import LEAST_AUC
from cirm.wording import capitalise_first_letter, join_names_in_backticks

Report = Mapping[str, Any]
FEWEST_ROWS = 5  # of a table, to test anything
MOST_NAMED = 3  # columns that the answer names of each kind


def summarise_table_comparison(report: Report) -> str:
    """Return what changed, the most important first, or that nothing did."""
    first, second = report["names"]
    rows = " and ".join(f"{count:,}" for count in report["rows"])
    if report["same_rows"]:
        return (
            f"{capitalise_first_letter(first)} and {second} contain the same rows, "
            "so there is nothing to compare. Give two tables with different rows."
        )
    if not report["inputs"]:
        return (
            f"There are too few rows ({rows}) to compare the tables. Give at least "
            f"{FEWEST_ROWS} rows in each."
        )
    found = [
        *_describe_base_rate_change(report),
        *_describe_columns_with_changed_meaning(report),
    ]
    found += _describe_columns_in_other_units(
        report
    ) + _describe_changes_of_input_columns(report)
    if not found:
        return (
            f"No difference was found between {first} and {second} ({rows} rows): "
            f"{_join_clauses_with_and(_describe_parts_without_change(report))}."
        )
    text = f"{capitalise_first_letter('; '.join(found))}."
    if rest := _describe_parts_without_change(report):
        text += f" {capitalise_first_letter(_join_clauses_with_and(rest))}."
    return text


def list_large_changes_of_columns(report: Report) -> list[Report]:
    """Return significant changes of inputs that are large enough, largest first."""
    units = {one["column"] for one in report["units"]}
    large = [
        one
        for one in report["inputs"]
        if one["significant"] and one["large"] and one["column"] not in units
    ]
    return sorted(large, key=lambda one: -one["distance"])


def _describe_base_rate_change(report: Report) -> list[str]:
    change = report["base_rate"]
    if not change or not change["significant"]:
        return []
    if change["kind"] == "values":
        return [f"the target {change['sentence']}"]
    verb = "rose" if change["second"] > change["first"] else "fell"
    shares = format_two_shares_in_percent(change["first"], change["second"])
    return [f"the base rate of `{change['label']}` {verb} from {shares}"]


def _describe_columns_with_changed_meaning(report: Report) -> list[str]:
    columns = (report["meaning"] or {}).get("columns", ())
    units = {one["column"] for one in report["units"]}
    changed = [one["column"] for one in columns if one["column"] not in units]
    if not changed:
        return []
    what, verb = (
        ("relation", "differs") if len(changed) == 1 else ("relations", "differ")
    )
    return [f"the {what} of {_join_names_of_columns(changed)} to the target {verb}"]


def _describe_columns_in_other_units(report: Report) -> list[str]:
    names = [one["column"] for one in report["units"]]
    if not names:
        return []
    verb = "seems" if len(names) == 1 else "seem"
    return [f"{_join_names_of_columns(names)} {verb} to be in another unit"]


def _describe_changes_of_input_columns(report: Report) -> list[str]:
    large = list_large_changes_of_columns(report)
    sentences = [one["sentence"] for one in large[:MOST_NAMED]]
    if more := len(large) - MOST_NAMED:
        plural = "s" * (more != 1)
        sentences += [f"{more} more column{plural} changed"] if more > 0 else []
    joint = report["joint"]
    is_apart = joint and joint["significant"] and joint["auc"] >= LEAST_AUC
    # A change of meaning implies it: the columns then go together in another way.
    if is_apart and not large and not _describe_columns_with_changed_meaning(report):
        sentences.append(
            "the relations between the inputs differ (a classifier tells the tables "
            f"apart with a ROC AUC of {joint['auc']:.2f})"
        )
    return sentences


def _describe_parts_without_change(report: Report) -> list[str]:
    """Say what did not change, of what an answer should always speak of."""
    rest = []
    if not (
        _describe_changes_of_input_columns(report)
        or _describe_columns_in_other_units(report)
    ):
        rest.append("no input changed much")
    rate, meaning = report["base_rate"], report["meaning"]
    if rate and not rate["significant"]:
        what = "target" if rate["kind"] == "values" else "base rate"
        rest.append(f"the {what} did not change significantly")
    if meaning and not meaning["tested"]:
        rest.append(
            "whether columns relate differently to the target could not be tested"
        )
    elif meaning and not _describe_columns_with_changed_meaning(report):
        rest.append("no column was found whose relation to the target differs")
    return rest


def _join_names_of_columns(names: list[str]) -> str:
    return join_names_in_backticks(names, MOST_NAMED + 1, "more columns")


def _join_clauses_with_and(clauses: list[str]) -> str:
    *head, last = clauses
    return f"{', '.join(head)}, and {last}" if head else last
