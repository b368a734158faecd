"""The server's end of the line: who is there, what each was asked, what came back.

A site has at most one request open. One that is not answered when an exchange closes
stays open, and its answer counts when it comes; until then others go on. After its
lifetime it is given up, and the site is asked anew: it may have been stopped with the
request. What cannot be used is refused with its reason and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from torch import Tensor

from cirm import __version__
from cirm.federated.ledger import Entry
from cirm.federated.parcel import opened, packed
from cirm.federated.wire import read_all, written


class Facts(NamedTuple):
    """What a site says of itself."""

    examples: int
    features: tuple[int, ...]
    classes: tuple[str, ...]


class Request(NamedTuple):
    """What is sent to a site, and the shapes of what must come back."""

    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]
    wanted: Mapping[str, Sequence[int]]


@dataclass
class Asked:
    """A request that is open, with the name of its message, since when."""

    kind: str
    message: str
    request: Request
    since: float


@dataclass
class Answered:
    """A checked answer."""

    kind: str
    tensors: dict[str, Tensor]
    numbers: dict[str, list[float]]


@dataclass
class Link:
    """Sites by name over Flower's grid.

    An exchange waits `patience` seconds for a site; a request is given up after
    `lifetime`.
    """

    grid: Grid
    patience: float
    lifetime: float
    say: Callable[[str], None] = print
    pause: float = 0.2  # seconds between two looks at the line
    nodes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Facts] = field(default_factory=dict)
    unopened: set[str] = field(default_factory=set)
    asked: dict[str, Asked] = field(default_factory=dict)
    arrived: dict[str, Answered] = field(default_factory=dict)
    joining: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    online: set[int] = field(default_factory=set)

    def look(self, entry: Entry) -> None:
        """See who is there, ask newcomers who they are, take what has arrived."""
        self.online = set(self.grid.get_node_ids())
        self.joining = {k: n for k, n in self.joining.items() if n in self.online}
        new = sorted(self.online - self.seen)
        self.seen |= self.online
        for node in new:
            if key := self._push(Message(packed({}, {}), node, "query.join")):
                self.joining[key] = node
        waiting = {asked.message: name for name, asked in self.asked.items()}
        for reply in self.grid.pull_messages([*self.joining, *waiting]):
            key = reply.metadata.reply_to_message_id
            if key in self.joining:
                self._join(self.joining.pop(key), reply, entry)
            elif key in waiting:
                self._take(waiting[key], reply, entry)
        for name in list(self.asked):
            age = time.monotonic() - self.asked[name].since
            if self.nodes[name] not in self.online or age > self.lifetime:
                del self.asked[name]
                entry.absent += [name] if name not in entry.absent else []
        self.seen &= self.online  # who leaves and returns is asked again

    def wait_for(self, names: Sequence[str], least: int, entry: Entry) -> None:
        """Wait until so many of these sites have joined, for others with patience."""
        told, deadline = "", time.monotonic() + self.patience
        while missing := [name for name in names if name not in self.facts]:
            enough = len(names) - len(missing) >= least
            if least < len(names) and enough and time.monotonic() > deadline:
                self.say(f"going on without {', '.join(missing)}")
                return
            if told != (told := ", ".join(missing)):
                self.say(f"waiting for {told} to join")
            self.look(entry)
            time.sleep(self.pause)

    def ask(
        self, kind: str, requests: Mapping[str, Request], entry: Entry
    ) -> dict[str, Answered]:
        """Answers of one exchange by site, and late ones of earlier visits."""
        self.look(entry)
        asked = [name for name in requests if self._send(name, kind, requests, entry)]
        deadline = time.monotonic() + self.patience
        while time.monotonic() < deadline:
            self.look(entry)
            idle = not self.asked  # also where nobody is there
            if not any(n in self.asked for n in asked) and (
                asked or self.arrived or idle
            ):
                break
            time.sleep(self.pause)
        entry.late += [name for name in self.asked if name not in entry.late]
        answers = {n: a for n, a in self.arrived.items() if a.kind == kind}
        self.arrived = {n: a for n, a in self.arrived.items() if a.kind == "visit"}
        for name in answers:
            self.arrived.pop(name, None)
        return answers

    def _send(
        self, name: str, kind: str, requests: Mapping[str, Request], entry: Entry
    ) -> bool:
        """Whether a site was asked: it must be there and not busy."""
        if name in self.asked:
            return False
        node, key, request = self.nodes.get(name), "", requests[name]
        if node is not None and node in self.online:
            content = packed(request.tensors, request.notes)
            key = self._push(Message(content, node, f"train.{kind}"))
        if not key:
            if name not in entry.absent:
                entry.absent.append(name)
            return False
        self.asked[name] = Asked(kind, key, request, time.monotonic())
        entry.down[name] = {n: len(written(t)) for n, t in request.tensors.items()}
        return True

    def _push(self, message: Message) -> str:
        """Send a message; the name by which its reply is found, nothing if it fails."""
        keys = list(self.grid.push_messages([message]))
        return keys[0] or "" if keys else ""

    def _join(self, node: int, reply: Message, entry: Entry) -> None:
        """Enter a site by what it says of itself."""
        try:
            told = _told(reply)[1]
            if "reason" in told:
                raise ValueError(told["reason"])
            if told["version"] != __version__:
                raise ValueError(
                    f"cirm {told['version']} where {__version__} is needed"
                )
            name, shape = str(told["name"]), tuple(map(int, told["features"]))
            facts = Facts(
                int(told["examples"]), shape, tuple(map(str, told["classes"]))
            )
        except (ValueError, KeyError, TypeError) as error:
            entry.refused[f"node {node}"] = f"it must say who it is; got {error}"
            self.say(f"refused node {node}: {entry.refused[f'node {node}']}")
            return
        before = self.nodes.get(name)
        if before is not None and before != node and before in self.online:
            reason = f"names must differ; got {name!r} from a second node"
            entry.refused[f"node {node}"] = reason
            self.say(f"refused node {node}: {reason}")
            return
        self.asked.pop(name, None)
        self.nodes[name], self.facts[name] = node, facts
        self.unopened.add(name)
        self.say(f"{name} has joined, with {facts.examples:,} examples")

    def _take(self, name: str, reply: Message, entry: Entry) -> None:
        """Check an answer and keep it, or refuse it."""
        asked = self.asked.pop(name)
        if reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE:
            entry.absent += [name] if name not in entry.absent else []
            return
        contents: dict[str, bytes] = {}
        try:
            contents, told = _told(reply)
            if told.get("unopened"):
                self.unopened.add(name)
            if "reason" in told:
                raise ValueError(told["reason"])
            for key in ("visit", "course"):
                if told.get(key) != list(asked.request.notes[key]):
                    raise ValueError(
                        f"stale: its {key} must be {list(asked.request.notes[key])}; "
                        f"got {told.get(key)}"
                    )
            tensors = read_all(contents, asked.request.wanted, f"site {name!r}")
            numbers = _numbers(told.get("numbers", {}))
        except ValueError as error:
            entry.refused[name] = str(error)
            if contents:
                entry.unused[name] = {n: len(sent) for n, sent in contents.items()}
            return
        if asked.kind == "visit":
            self.unopened.discard(name)
        entry.up[name] = {n: len(content) for n, content in contents.items()}
        entry.numbers[name] = numbers
        self.arrived[name] = Answered(asked.kind, tensors, numbers)


def _told(reply: Message) -> tuple[dict[str, bytes], dict[str, Any]]:
    if reply.has_error():
        lines = (reply.error.reason or "").strip().splitlines() or ["no reason given"]
        raise ValueError(f"it must answer; got an error: {lines[-1]}")
    return opened(reply.content)


def _numbers(told: Any) -> dict[str, list[float]]:  # noqa: ANN401  what a site sent
    try:
        return {str(n): [float(v) for v in values] for n, values in told.items()}
    except (AttributeError, TypeError, ValueError):
        raise ValueError("its numbers must be lists by name; got others") from None
