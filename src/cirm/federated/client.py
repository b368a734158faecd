"""The Flower app of a site.

The site is described by its node configuration: `name`, `dataset` and `settings` as
`cirm run` has them, `environment` if the data set has several, and `folder`, where the
site keeps its parameters and multipliers.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cirm import __version__
from cirm.data import get_dataset_class
from cirm.environments import Environment
from cirm.federated.parcel import opened, packed
from cirm.federated.site import Answer, Course, Site, Unopened
from cirm.federated.study import Study, Visit
from cirm.federated.wire import read_all
from cirm.settings import parse_assignments, parse_settings


def join(message: Message, context: Context) -> Message:
    """Say who the site is: its name, and what its data are like."""
    try:
        environment = own_site(context.node_config, (0,)).environment
    except ValueError as error:
        return _reply(message, {}, {"reason": str(error)})
    facts = {
        "name": environment.name,
        "examples": len(environment),
        "features": list(environment.features),
        "classes": list(environment.task.classes),
        "version": __version__,
    }
    return _reply(message, {}, facts)


def visit(message: Message, context: Context) -> Message:
    """Take steps; at a meeting say where they led."""
    return _answered(message, context, lambda site: site.visited)


def slope(message: Message, context: Context) -> Message:
    """Say where the features should move, at what is shared now."""
    return _answered(message, context, lambda site: site.met)


def own_site(told: Mapping[str, Any], seeds: tuple[int, ...]) -> Site:
    """The site that a node configuration describes.

    Why there is none stays in the site's own log: it may quote paths and data.
    """
    try:
        return site_of(told, seeds)
    except (ValueError, OSError) as error:
        _log(error)
        raise ValueError(
            "site: its data must be as --node-config says; its own log has the reason"
        ) from None


def site_of(told: Mapping[str, Any], seeds: tuple[int, ...]) -> Site:
    """The site that a node configuration describes."""
    name = str(told.get("name", ""))
    if not name.isidentifier():
        raise ValueError(
            "site: its name must be letters, digits and underscores, given by "
            f"--node-config; got {name!r}"
        )
    dataset = str(told.get("dataset", "arrays"))
    if dataset == "table":
        raise ValueError(
            f"site {name!r}: the data set must mean the same at all sites, and a table "
            "is encoded by its own values; got 'table': export numbers as arrays"
        )
    cls = get_dataset_class(dataset)
    words = shlex.split(str(told.get("settings", "")))
    texts = parse_assignments(words, f"site {name!r}: settings")
    problem = cls(**parse_settings(cls, texts, f"data set {dataset}")).draw(seeds)
    number = int(told.get("environment", 0))
    if not 0 <= number < len(problem.train):
        raise ValueError(
            f"site {name!r}: environment must be 0 to {len(problem.train) - 1}; "
            f"got {number}"
        )
    folder = Path(str(told.get("folder", "") or f"site-{name}"))
    return Site(problem.train[number].rename(name), folder)


def _answered(
    message: Message,
    context: Context,
    method: Callable[[Site], Callable[..., Answer]],
) -> Message:
    """The site's answer, or the reason why there is none."""
    torch.set_num_threads(1)
    notes: dict[str, Any] = {}
    try:
        contents, notes = opened(message.content)
        study, course = Study.read(notes["study"]), Course(*notes["course"])
        site = own_site(context.node_config, study.seeds)
        check_data(site.environment, study)
        arrived = read_all(contents, notes["shapes"], "server")
        asked = Visit(*notes["visit"])
        answer = method(site)(study, course, asked, arrived)
    except OSError as error:
        _log(error)
        reason = "site: its folder must be readable and writable; see its own log"
        return _reply(message, {}, {"reason": reason})
    except Unopened as error:
        return _reply(message, {}, {"reason": str(error), "unopened": True})
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        return _reply(message, {}, {"reason": f"{error.args[0]}"})
    told = {name: notes[name] for name in ("visit", "course")}
    return _reply(message, answer.tensors, {**told, "numbers": answer.numbers})


def check_data(environment: Environment, study: Study) -> None:
    """Refuse a study of other data than this environment's."""
    own, wanted = environment.features, study.features
    if own != wanted or environment.task != study.task:
        raise ValueError(
            f"site {environment.name!r}: data must have features {list(wanted)} and "
            f"classes {list(study.classes)}; got {list(own)} and "
            f"{list(environment.task.classes)}"
        )


def _log(error: Exception) -> None:
    """Say what must not leave the site where only the site sees it."""
    print(f"cirm: {error}", file=sys.stderr, flush=True)


def _reply(
    message: Message, tensors: Mapping[str, Any], notes: Mapping[str, Any]
) -> Message:
    return Message(packed(tensors, notes), reply_to=message)


app = ClientApp()
app.query("join")(join)
app.train("visit")(visit)
app.train("slope")(slope)
