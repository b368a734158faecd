"""The Flower app of a site.

The node configuration describes the site: `name`, `dataset` and `settings` as for
`cirm run`, `environment` if the data set has several, and `folder`, where the site
stores its parameters and multipliers.
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
from torch import Tensor

from cirm import __version__
from cirm.data import get_dataset_class
from cirm.federated.codec import (
    decode_and_check_tensors,
    decode_message_content,
    encode_message_content,
)
from cirm.federated.site import FederatedSite, StageNotStartedError, TensorsSentBySite
from cirm.federated.study import SiteAssignment
from cirm.settings import parse_name_value_assignments, parse_settings_by_type


def join_study(message: Message, context: Context) -> Message:
    """Answer with the site's name and the form of its data."""
    try:
        environment = create_site_and_hide_error_details(
            context.node_config, (0,)
        ).environment
    except ValueError as error:
        return _build_reply_message(message, {}, {"reason": str(error)})
    facts = {
        "name": environment.name,
        "examples": len(environment),
        "features": list(environment.features),
        "classes": list(environment.task.classes),
        "version": __version__,
    }
    return _build_reply_message(message, {}, facts)


def run_training_steps(message: Message, context: Context) -> Message:
    """Take the steps of a segment and answer with where they led."""
    return _run_site_method(message, context, FederatedSite.run_training_steps)


def compute_feature_gradient(message: Message, context: Context) -> Message:
    """Answer with the gradient of the features at the values shared now."""
    return _run_site_method(message, context, FederatedSite.compute_feature_gradient)


def create_site_and_hide_error_details(
    config: Mapping[str, Any], seeds: tuple[int, ...]
) -> FederatedSite:
    """Create the site that a node configuration describes.

    The reason of a failure stays in the site's own log: it may quote paths and data.
    """
    try:
        return create_site_from_config(config, seeds)
    except (ValueError, OSError) as error:
        _print_exception_only_at_site(error)
        raise ValueError(
            "site: the data of the site cannot be read or used. The reason is in the "
            "log of the site; correct the data there"
        ) from None


def create_site_from_config(
    config: Mapping[str, Any], seeds: tuple[int, ...]
) -> FederatedSite:
    """Create the site that a node configuration describes, or raise the reason."""
    name = str(config.get("name", ""))
    if not name.isidentifier():
        raise ValueError(
            f"site: the name {name!r} cannot be used. Give a name of letters, digits "
            "and underscores in --node-config."
        )
    dataset = str(config.get("dataset", "arrays"))
    if dataset == "table":
        raise ValueError(
            f"site {name!r}: the data set 'table' cannot be used, because every site "
            "would encode its columns differently. Save the inputs as numbers in an "
            "NPZ file, in the same way at all sites, and use the data set 'arrays'."
        )
    cls = get_dataset_class(dataset)
    words = shlex.split(str(config.get("settings", "")))
    texts = parse_name_value_assignments(words, f"site {name!r}: settings")
    problem = cls(
        **parse_settings_by_type(cls, texts, f"data set {dataset}")
    ).draw_problem(seeds)
    number = int(config.get("environment", 0))
    if not 0 <= number < len(problem.train):
        raise ValueError(
            f"site {name!r}: the data set has no environment {number}. Choose one "
            f"from 0 to {len(problem.train) - 1} with environment=NUMBER in "
            "--node-config."
        )
    folder = Path(str(config.get("folder", "") or f"site-{name}"))
    return FederatedSite(problem.train[number].rename(name), folder)


def _run_site_method(
    message: Message,
    context: Context,
    method: Callable[
        [FederatedSite, SiteAssignment, Mapping[str, Tensor]], TensorsSentBySite
    ],
) -> Message:
    """Reply with the site's answer, or with the reason why there is none."""
    torch.set_num_threads(1)
    try:
        arrays, notes = decode_message_content(message.content)
        assignment = SiteAssignment.from_dict(notes)
        site = create_site_and_hide_error_details(
            context.node_config, assignment.study.seeds
        )
        features, task = site.environment.features, site.environment.task
        assignment.study.check_data_format_of_site(
            site.environment.name, features, task.classes
        )
        received = decode_and_check_tensors(arrays, notes["shapes"], "server")
        answer = method(site, assignment, received)
    except OSError as error:
        _print_exception_only_at_site(error)
        reason = (
            "site: the folder of the site cannot be used. The reason is in the log "
            "of the site; correct the folder there"
        )
        return _build_reply_message(message, {}, {"reason": reason})
    except StageNotStartedError as error:
        return _build_reply_message(
            message, {}, {"reason": str(error), "not_started": True}
        )
    except (ValueError, KeyError, TypeError, ArithmeticError) as error:
        return _build_reply_message(message, {}, {"reason": f"{error.args[0]}"})
    facts = {name: notes[name] for name in ("segment", "stage")}
    return _build_reply_message(
        message, answer.tensors, {**facts, "metrics": answer.metrics}
    )


def _print_exception_only_at_site(error: Exception) -> None:
    """Print what must not leave the site where only the site sees it."""
    print(f"cirm: {error}", file=sys.stderr, flush=True)


def _build_reply_message(
    message: Message, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]
) -> Message:
    return Message(encode_message_content(tensors, notes), reply_to=message)


app = ClientApp()
app.query("join")(join_study)
app.train("steps")(run_training_steps)
app.train("gradient")(compute_feature_gradient)
