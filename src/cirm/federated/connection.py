"""The server's connection to the sites: who is online, open requests, answers.

A site has at most one open request. If it is not answered when an exchange ends, it
stays open and its answer counts when it comes; the others do not wait. After its
lifetime a request is dropped and the site is asked again, since it may have been
stopped. Answers that cannot be used are refused with a reason and change nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import Array, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor

from cirm import __version__
from cirm.federated.codec import (
    SAME_VERSION,
    decode_and_check_tensors,
    decode_message_content,
    encode_message_content,
)
from cirm.federated.ledger import MessageExchangeRecord
from cirm.federated.site import StageNotStartedError


class SiteDataInfo(NamedTuple):
    """What a site says about its data."""

    examples: int
    features: tuple[int, ...]
    classes: tuple[str, ...]


class SiteRequest(NamedTuple):
    """What is sent to a site, and the shapes of the tensors that it must return."""

    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]


class UnansweredSiteRequest(NamedTuple):
    """A request that was sent, the id of its message, and when."""

    kind: str
    message_id: str
    request: SiteRequest
    sent_at: float


class CheckedSiteReply(NamedTuple):
    """The tensors of an answer that was checked."""

    kind: str
    tensors: dict[str, Tensor]


@dataclass
class SiteMessenger:
    """Sites by name, over Flower's grid.

    An exchange waits `patience` seconds for a site; an open request is dropped after
    `lifetime` seconds.
    """

    grid: Grid
    patience: float
    lifetime: float
    log: Callable[[str], None] = print
    poll_interval: float = 0.2  # seconds
    nodes: dict[str, int] = field(default_factory=dict)
    sites: dict[str, SiteDataInfo] = field(default_factory=dict)
    needs_prior: set[str] = field(default_factory=set)
    open_requests: dict[str, UnansweredSiteRequest] = field(default_factory=dict)
    answers: dict[str, CheckedSiteReply] = field(default_factory=dict)
    joining: dict[str, int] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    online: set[int] = field(default_factory=set)

    def register_sites_and_receive_answers(
        self, exchange: MessageExchangeRecord
    ) -> None:
        """See who is online, ask new nodes to join, and take what has arrived."""
        self.online = set(self.grid.get_node_ids())
        self.joining = {k: n for k, n in self.joining.items() if n in self.online}
        self.known &= self.online  # a node that left and returns is asked again
        for node in sorted(self.online - self.known):
            if key := self._send_message(
                Message(encode_message_content({}, {}), node, "query.join")
            ):
                self.joining[key] = node
        self.known |= self.online
        waiting = {sent.message_id: name for name, sent in self.open_requests.items()}
        for reply in self.grid.pull_messages([*self.joining, *waiting]):
            key = reply.metadata.reply_to_message_id
            if key in self.joining:
                self._register_or_refuse_site(self.joining.pop(key), reply, exchange)
            elif key in waiting:
                self._check_and_store_answer(waiting[key], reply, exchange)
        for name, sent in list(self.open_requests.items()):
            age = time.monotonic() - sent.sent_at
            if self.nodes[name] not in self.online or age > self.lifetime:
                del self.open_requests[name]
                exchange.record_offline_site(name)

    def wait_for_sites(
        self, names: Sequence[str], min_sites: int, exchange: MessageExchangeRecord
    ) -> None:
        """Wait until enough of these sites have joined; give the rest some time."""
        last_log, deadline = "", time.monotonic() + self.patience
        while missing := [name for name in names if name not in self.sites]:
            is_over = time.monotonic() > deadline
            if len(names) - len(missing) >= min_sites and is_over:
                self.log(f"continuing without {', '.join(missing)}")
                return
            if last_log != (last_log := ", ".join(missing)):
                self.log(f"waiting for {last_log} to join")
            self.register_sites_and_receive_answers(exchange)
            time.sleep(self.poll_interval)

    def send_requests_and_receive_answers(
        self,
        kind: str,
        requests: Mapping[str, SiteRequest],
        exchange: MessageExchangeRecord,
    ) -> dict[str, CheckedSiteReply]:
        """Send requests and return the answers, also late ones to earlier steps."""
        self.register_sites_and_receive_answers(exchange)
        sent = [
            n
            for n, r in requests.items()
            if self._send_request_to_site(n, kind, r, exchange)
        ]
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            self.register_sites_and_receive_answers(exchange)
            is_idle = not self.open_requests  # also where nobody is online
            if not any(name in self.open_requests for name in sent) and (
                sent or self.answers or is_idle
            ):
                break
            time.sleep(self.poll_interval)
        exchange.late += [n for n in self.open_requests if n not in exchange.late]
        answers = {n: a for n, a in self.answers.items() if a.kind == kind}
        # A late gradient is of no use: the features have moved.
        self.answers = {
            name: answer
            for name, answer in self.answers.items()
            if answer.kind == "steps" and name not in answers
        }
        return answers

    def _send_request_to_site(
        self,
        name: str,
        kind: str,
        request: SiteRequest,
        exchange: MessageExchangeRecord,
    ) -> bool:
        """Send a request, and return whether the site was online and not busy."""
        if name in self.open_requests:
            return False
        node, key = self.nodes.get(name), ""
        content = encode_message_content(request.tensors, request.notes)
        if node is not None and node in self.online:
            key = self._send_message(Message(content, node, f"train.{kind}"))
        if not key:
            exchange.record_offline_site(name)
            return False
        self.open_requests[name] = UnansweredSiteRequest(
            kind, key, request, time.monotonic()
        )
        exchange.down[name] = _count_array_bytes(decode_message_content(content)[0])
        return True

    def _send_message(self, message: Message) -> str:
        """Send a message and return its id; an empty one if it could not be sent."""
        keys = list(self.grid.push_messages([message]))
        return keys[0] or "" if keys else ""

    def _register_or_refuse_site(
        self, node_id: int, reply: Message, exchange: MessageExchangeRecord
    ) -> None:
        """Add a site by what it says about itself, or refuse it."""
        try:
            _, notes = _unpack_site_reply(reply)
            if notes["version"] != __version__:
                raise ValueError(
                    f"the site runs cirm {notes['version']}, but the server runs cirm "
                    f"{__version__}; install the same version on both"
                )
            name, shape = str(notes["name"]), tuple(map(int, notes["features"]))
            classes = tuple(map(str, notes["classes"]))
            site = SiteDataInfo(int(notes["examples"]), shape, classes)
            before = self.nodes.get(name)
            if before is not None and before != node_id and before in self.online:
                raise ValueError(
                    f"another site already uses the name {name!r}; give each site its "
                    "own name"
                )
        except (ValueError, KeyError, TypeError) as error:
            exchange.refused[f"node {node_id}"] = f"the site cannot join: {error}"
            self.log(
                f"refused site at node {node_id}: {exchange.refused[f'node {node_id}']}"
            )
            return
        self.open_requests.pop(name, None)
        self.nodes[name], self.sites[name] = node_id, site
        self.needs_prior.add(name)
        self.log(f"{name} has joined, with {site.examples:,} examples")

    def _check_and_store_answer(
        self, name: str, reply: Message, exchange: MessageExchangeRecord
    ) -> None:
        """Check an answer and store it, or refuse it."""
        kind, _, request, _ = self.open_requests.pop(name)
        if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            exchange.record_offline_site(name)
            return
        arrays: dict[str, Array] = {}
        try:
            arrays, notes = _unpack_site_reply(reply)
            for key in ("segment", "stage"):
                if notes.get(key) != request.notes[key]:
                    raise ValueError(
                        f"the answer of the site came too late: it is for {key} "
                        f"{notes.get(key)}, but the server has gone on to {key} "
                        f"{request.notes[key]}"
                    )
            tensors = decode_and_check_tensors(arrays, request.shapes, f"site {name!r}")
            metrics = _check_metrics_of_site_answer(notes.get("metrics", {}))
        except ValueError as error:
            if isinstance(error, StageNotStartedError):
                self.needs_prior.add(name)
            exchange.refused[name] = str(error)
            if arrays:
                exchange.unused[name] = _count_array_bytes(arrays)
            return
        if kind == "steps":
            self.needs_prior.discard(name)
        exchange.up[name], exchange.metrics[name] = _count_array_bytes(arrays), metrics
        self.answers[name] = CheckedSiteReply(kind, tensors)


def _unpack_site_reply(reply: Message) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return arrays and notes of a reply; raise the reason if there is none."""
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        raise ValueError(f"the site could not answer: {lines[-1]}")
    arrays, notes = decode_message_content(reply.content)
    if "reason" in notes:
        kind = StageNotStartedError if notes.get("not_started") else ValueError
        raise kind(notes["reason"])
    return arrays, notes


def _count_array_bytes(arrays: Mapping[str, Array]) -> dict[str, int]:
    return {name: len(array.data) for name, array in arrays.items()}


def _check_metrics_of_site_answer(metrics: Any) -> dict[str, list[float]]:  # noqa: ANN401  from a site
    try:
        return {str(n): [float(v) for v in values] for n, values in metrics.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            "the training metrics that the site sent are not lists of numbers with "
            f"names. {SAME_VERSION}"
        ) from None
