"""Hosts that are not there: each answers what the coordinator asks as a script says, at once."""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rankless.launch.hosts import messages
from rankless.launch.hosts.channel import Access, Events
from rankless.launch.hosts.coordinator import Coordinator
from rankless.launch.hosts.messages import Command, Event
from rankless.launch.hosts.names import Host, parse_hosts
from rankless.launch.job import Wanted
from rankless.launch.requests import Requests
from rankless.recipe.load import load, to_json

ACCESS = Access(["ssh"], "/opt/python", "python3", {}, "/")
RECIPE = load("digits")
ENVIRONMENT = {
    "versions": {"python": "3.11.7", "rankless": "1", "torch": "2.14.1"},
    "hardware": {"device": "cpu"},
    "instruction_set": {"ATen": "AVX2", "oneDNN": "AVX2"},
    "variables": {},
}
Reply = dict[str, Any] | None
DONE: dict[str, Any] = {"notes": [{"finished": True}], "step": 8}
STOPPED: dict[str, Any] = {"notes": [{"signal": 15}], "signal": 15, "step": 4}
ABANDONED: dict[str, Any] = {"step": 4}
FAILED: dict[str, Any] = {"failed": {"0": {"code": -9, "cause": "rank 0 was killed by SIGKILL"}}, "step": 4}


@dataclass
class Machine:
    """One host."""

    name: str
    # What comes of each round, the last one again and again; None is no reply until its end is asked for.
    rounds: list[Reply] = field(default_factory=lambda: [DONE])
    answers: dict[str, Any] = field(default_factory=dict)  # replies that differ from the usual, by command
    up: bool = True
    joined: bool = False
    heard: list[str] = field(default_factory=list)  # every command, in order
    channel: FakeChannel | None = None
    pending: int | None = None
    unresponsive: bool = False  # does not end a round when asked to
    why: str = "no route"  # the reason in messages when it is not up

    def reply(self, do: str, request: dict[str, Any]) -> Reply:
        if do in self.answers:
            answer = self.answers[do]
            return answer(request) if callable(answer) else answer  # type: ignore[no-any-return]
        facts = {"environment": ENVIRONMENT, "device": "cpu", "devices": 0, "cores": 4, "data": "ab"}
        replies: dict[str, dict[str, Any]] = {
            "holds": {"exists": False, "has_run": False, "step": None},
            "facts": {"value": {**facts, "machine": self.name, "problems": []}},
            "prepare": {"recipe": request.get("recipe"), "sinks": [], "finished": None},
            "recipe": {"value": to_json(RECIPE)},
            "listen": {"value": {f"10.0.0.{self.name[1:]}": 1}},
            "reach": {"value": {i: reached(one["ports"]) for i, one in request.get("targets", {}).items()}},
            "open_store": {"value": 5},
            "report": {"value": "the report\n"},
        }
        if do == "begin":
            self.joined = True
        if do in ("withdraw", "discard"):
            self.joined = False
        if do == "round":
            self.pending = request["reply_to"]
            found = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
            return None if found is None else ended(found)
        return replies.get(do, {})


def reached(addresses: Iterable[str]) -> dict[str, Any]:
    """The reply of a host that reaches another one at all these addresses."""
    return {"tried": {address: {"source": "10.0.0.9"} for address in addresses}, "resolved": []}


def ended(found: dict[str, Any]) -> dict[str, Any]:
    """The reply of a host whose round has ended."""
    return {**found} if "problems" in found else {"end": found}


class FakeChannel:
    """What :class:`rankless.launch.hosts.channel.Channel` does, of a :class:`Machine`."""

    def __init__(
        self, machines: dict[str, Machine], host: Host, ssh: Sequence[str], python: str, events: Events
    ) -> None:
        self.host, self.events, self.is_open = host, events, True
        self.machine = machines[host.name]
        self.since = time.monotonic()

    @property
    def heard(self) -> float:
        return time.monotonic() if self.machine.up else self.since

    @heard.setter
    def heard(self, at: float) -> None:
        self.since = at

    def put(self, event: dict[str, Any]) -> None:
        if self.is_open:
            self.events.put((self, msgspec.convert(event, Event)))  # type: ignore[arg-type]

    def answer(self, reply: dict[str, Any]) -> None:
        self.put({"event": base64.b64encode(json.dumps(reply).encode() + b"\n").decode()})

    def start(self, argv: Sequence[str], env: object, cwd: str) -> None:
        if self.machine.up:
            self.machine.channel = self
            self.put({"hello": {}})
            self.answer({"ready": 1})
        else:
            self.put({"lost": self.machine.why})

    def send(self, do: str, **request: Any) -> None:
        pass

    def command(self, command: Command[Any]) -> None:
        if not self.machine.up:
            return
        text = msgspec.json.encode(command)
        messages.COMMANDS.decode(text)  # a command that a real host would not take fails the test
        request = json.loads(text)
        do = request.pop("do")
        self.machine.heard.append(do)
        if do in ("request", "abandon"):
            if self.machine.pending is not None and not self.machine.unresponsive:
                self.end(STOPPED if do == "request" else ABANDONED)
            return
        if (reply := self.machine.reply(do, request)) is not None:
            self.machine.pending = None
            self.answer({"reply_to": request["reply_to"], **reply})

    def end(self, reply: dict[str, Any]) -> None:
        order, self.machine.pending = self.machine.pending, None
        self.answer({"reply_to": order, **ended(reply)})

    def close(self, grace: float) -> None:
        self.put({"ended": 0})

    def drop(self) -> None:
        self.is_open = False
        self.machine.joined, self.machine.pending = False, None


@dataclass
class Cluster:
    """Machines, and the coordinator of a training on them."""

    machines: dict[str, Machine]
    coordinator: Coordinator
    requests: Requests

    def off(self, name: str) -> None:
        machine = self.machines[name]
        machine.up = False
        if machine.channel is not None:
            machine.channel.put({"lost": machine.why})

    def when(self, condition: Callable[[], object], do: Callable[[], object]) -> None:
        """Do something once, as soon as something is true, while the coordinator waits."""
        pump, done = self.coordinator.pool.pump, []

        def pumped(seconds: float) -> None:
            pump(min(seconds, 0.001))
            if not done and condition():
                done.append(1)
                do()

        self.coordinator.pool.pump = pumped  # type: ignore[method-assign]


def cluster(*machines: Machine, **wanted: Any) -> Cluster:
    """A coordinator and its hosts; each waits for nothing."""
    by_name = {machine.name: machine for machine in machines}
    fields = {"least": 1, "resume": False, "recipe": RECIPE, "run": Path("runs/x"), **wanted}
    asked = Wanted(overrides=(), name="x", devices=1, sinks=(), **fields)
    requests = Requests()
    made = Coordinator(asked, parse_hosts(",".join(by_name)), ACCESS, requests)
    made.pool.channel_of = partial(FakeChannel, by_name)  # type: ignore[assignment]
    made.hosts.retry = 0.0
    return Cluster(by_name, made, requests)


def interrupt(cluster: Cluster) -> None:
    cluster.requests.ask(signal.SIGINT)
