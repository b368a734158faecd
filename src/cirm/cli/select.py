"""`cirm select`: settings of a learner, chosen without the test environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cirm.cli.options import Address, EngineName, Workers

if TYPE_CHECKING:
    from cirm.runs.plans import PreparedDataset
    from cirm.runs.search import Search

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
USAGE = "LEARNER [DATASET] [OPTIONS]"


def select(
    context: typer.Context,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="held-out, next, worst-group, leave-one-out, oracle, or all; repeat "
            "for more.",
            show_default="worst-group",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="How many settings to try.")] = 20,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="What to try, such as rate=1e-4..1e-2:log,dropout=0.5|0.75; repeat "
            "for more.",
            show_default="the learner's usual space",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set's setting, name=value; or simply --name value."),
    ] = None,
    order: Annotated[
        str, typer.Option(help="sequential, joint, or stage sizes such as 2+1.")
    ] = "sequential",
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds each trial has, from 0.")
    ] = 3,
    preset: Annotated[
        str, typer.Option(help="Named settings that the trials start from.")
    ] = "",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A fixed setting, name=value; repeat."),
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Part of each environment that is held out.")
    ] = 0.2,
    draw: Annotated[int, typer.Option(help="Seed of the draws of settings.")] = 0,
    reveal: Annotated[
        bool,
        typer.Option(
            "--reveal",
            help="After the choice, also run each pick and score it on the test "
            "environments.",
        ),
    ] = False,
    reveal_seeds: Annotated[
        int, typer.Option(min=0, help="Seeds for that; 0: those of the trials.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results.", show_default="runs/select-LEARNER-HASH"
        ),
    ] = None,
    engine: EngineName = "local",
    address: Address = "",
    workers: Workers = 0,
) -> None:
    """Choose a learner's settings by random search; the test environment stays unseen.

    The first trial has the settings as they are, without a draw. Options that are not
    listed here are settings of the data set, as for `cirm run`. A search that was
    interrupted continues when it is started again, and one with more trials or rules
    goes on from what it has.
    """
    from cirm.cli.picks import revealed, run_trials, show
    from cirm.runs.engines import Engine
    from cirm.runs.picks import summarise_search
    from cirm.runs.plans import prepare_dataset

    place = Engine(engine, workers, address)
    learner, dataset, texts = words_of(context.args, data or [])
    on = prepare_dataset(dataset, texts)
    search = planned(
        on, learner, rule or ["worst-group"], space or [], assignments or [],
        order=order, seeds=tuple(range(seeds)), trials=trials, preset=preset,
        held=hold_out, draw=draw,
    )  # fmt: skip
    folder = out or Path("runs") / f"select-{learner}-{search.key}"
    failures = run_trials(search, folder, place)
    found = summarise_search(search, folder)
    if reveal:
        later = tuple(range(reveal_seeds or seeds))
        failures |= revealed(search, on, found, later, folder, place)
    show(search, found, folder)
    if failures:
        for reason in dict.fromkeys(failures.values()):
            typer.echo(f"failed: {reason}", err=True)
        raise typer.Exit(1)


def words_of(
    arguments: Sequence[str], assignments: Sequence[str]
) -> tuple[str, str, dict[str, str]]:
    """The learner, the data set, and the data set's settings among the arguments."""
    from cirm.settings import parse_assignments

    names: list[str] = []
    options = parse_assignments(list(assignments), "--data")
    waiting = list(arguments)
    while waiting:
        word, equals, text = waiting.pop(0).partition("=")
        if not word.startswith("--"):
            names.append(word + equals + text)
        elif equals or waiting:
            options[word[2:].replace("-", "_")] = text if equals else waiting.pop(0)
        else:
            raise ValueError(
                f"select: a data set's setting must be --name value; got {word!r}"
            )
    if not 1 <= len(names) <= 2:
        raise ValueError(
            "select: there must be a learner and, after it, a data set or none, as in "
            f"`cirm select erm colored`; got {' '.join(names) or 'nothing'}"
        )
    return names[0], names[1] if len(names) > 1 else "colored", options


def planned(
    on: PreparedDataset,
    learner: str,
    rules: Sequence[str],
    spaces: Sequence[str],
    assignments: Sequence[str],
    **rest: Any,  # noqa: ANN401  fields of Search
) -> Search:
    """The search that a user asks for; what would fail when it runs is refused now."""
    from cirm.environments import Stream
    from cirm.evaluation.selection import RULES, find_inapplicable_rules
    from cirm.learners import parse_learner_settings
    from cirm.runs.search import Search, drop_test_environments
    from cirm.runs.search_space import parse_space
    from cirm.settings import parse_assignments

    problem = on.problem
    stages = len(Stream.from_order(problem.train, rest["order"]))
    asked = list(RULES) if "all" in rules else list(dict.fromkeys(rules))
    cannot = find_inapplicable_rules(
        asked, stages, len(problem.train), len(problem.test)
    )
    for rule, why in cannot.items():
        if "all" not in rules:
            raise ValueError(f"rule {rule}: {why}")
        typer.echo(f"Rule {rule} is left out: {why}.")
    fixed = parse_learner_settings(
        learner, parse_assignments(list(assignments), "--set")
    )
    space = {n: s for n, s in parse_space(learner, spaces).items() if n not in fixed}
    if not 0 < rest["held"] < 1:
        raise ValueError(
            f"--hold-out: it must be between 0 and 1; got {rest['held']:g}"
        )
    search = Search(
        drop_test_environments(on), learner, space=space, settings=fixed,
        rules=tuple(rule for rule in asked if rule not in cannot), **rest,
    )  # fmt: skip
    search.every()  # refuses settings that make no sense before anything runs
    return search
