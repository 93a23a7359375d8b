"""What the coordinator asks of a host's process, and what that answers; and what a supervisor reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_args

import msgspec

from rankless.launch.job import Job, Place
from rankless.launch.supervisor import Death, RoundEnd


class Event(msgspec.Struct, omit_defaults=True):
    """What a supervisor reports about its host; one of these fields is set.

    Attributes:
        hello: it has started.
        beat: it lives.
        out, err: what the process printed.
        event: what the process wrote for the coordinator: lines of JSON.
        failed: why a request failed.
        ended: the exit code of the process.
        lost: why the connection ended; the last event of a channel.
    """

    hello: dict[str, str] | None = None
    beat: int = 0
    out: bytes = b""
    err: bytes = b""
    event: bytes = b""
    failed: str = ""
    ended: int | None = None
    lost: str | None = None


class Sign(msgspec.Struct):
    """What stands at the head of everything that a host's process writes.

    Attributes:
        reply_to: the number of the command that is answered; 0 for none.
        ready: the process, when it takes commands.
        beat: in answer to a beat, for how many seconds nobody has looked at the ranks.
    """

    reply_to: int = 0
    ready: int = 0
    beat: int | None = None


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer; with ``problems`` it has nothing else."""

    reply_to: int = 0
    problems: list[str] = []


class Held(Answer):  # step: of the newest whole checkpoint; None without one
    exists: bool = False
    has_run: bool = False
    step: int | None = None


class Text(Answer):
    text: str = ""


class FactsFound(Answer):
    facts: dict[str, Any] = {}


class Prepared(Answer):  # finished: the step at which the run is finished that was to be resumed
    recipe: str = ""
    sinks: list[str] = []
    finished: int | None = None


class Begun(Answer):  # shared: another host of this training had locked the directory before
    shared: bool = False


class Listening(Answer):  # by address
    ports: dict[str, int] = {}


class Reached(Answer):  # as :func:`rankless.launch.hosts.reach.probe` returns it
    found: dict[str, dict[str, Any]] = {}


class StoreOpened(Answer):
    port: int = 0


class RoundEnded(Answer):
    end: RoundEnd = msgspec.field(default_factory=RoundEnd)


class DryRunOutcome(Answer):  # seconds: of every step
    digest: str = ""
    seconds: list[float] = []


class Checks(Answer):
    checks: list[dict[str, Any]] = []


class Number(Answer):
    value: float = 0.0


class Measured(Answer):
    timings: list[dict[str, Any]] = []
    exchange: float = 0.0


A = TypeVar("A", bound=Answer)


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Command(msgspec.Struct, Generic[A], kw_only=True, omit_defaults=True, tag_field="do", tag=_tag):
    """Something that the coordinator asks of a host's process.

    Attributes:
        reply_to: the number of the command, which its answer has, too.
    """

    reply_to: int = 0

    @classmethod
    def answer_type(cls) -> type[Answer]:
        """The type of its answer."""
        found: type[Answer] = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        return found


class Beat(Command[Answer]):
    """Shows that the client lives."""


class Request(Command[Answer]):
    """Passes a signal on to a round."""

    of: int
    number: int


class Abandon(Command[Answer]):
    """Ends a round in which ranks of other hosts have gone."""

    of: int


class Holds(Command[Held]):
    """What the host has of a run."""

    run: str


class Recipe(Command[Text]):
    """The recipe of a run that the host has, with changes."""

    run: str
    overrides: list[str]


class Facts(Command[FactsFound]):
    """What the host is and has, for a recipe."""

    recipe: str
    run: str


class Prepare(Command[Prepared]):
    """Resolve what in a recipe depends on data and devices, and check it against the run so far."""

    recipe: str
    run: str
    resume: bool
    sinks: list[str]


class Begin(Command[Begun]):
    """Lock the run directory, together with the hosts that share it.

    Attributes:
        token: of this training.
        stays: whether the run is there when the process has ended.
    """

    recipe: str
    run: str
    resume: bool
    token: str
    stays: bool


class Listen(Command[Listening]):
    """Listen at every address, to be tried by the other hosts; with ``echo``, send back what they send."""

    echo: bool = False


class Reach(Command[Reached]):
    """Try to reach other hosts; the fields are the arguments of :func:`rankless.launch.hosts.reach.probe`."""

    targets: Mapping[str, Mapping[str, Any]]
    large: bool = False


class OpenStore(Command[StoreOpened]):
    """Open the store at which the ranks of the next round meet."""

    address: str


class Round(Command[RoundEnded]):
    """Run the host's ranks until all have ended.

    Attributes:
        number: of the round.
        ranks: how many run here.
        own: the address of the host that the others use.
        deaths: of the round before, for the journal.
    """

    number: int
    job: Job
    ranks: int
    place: Place
    own: str
    deaths: list[Death]


class Outcome(Command[DryRunOutcome]):
    """What came of a dry run."""

    run: str


class Withdraw(Command[Answer]):
    """Let go of the run directory; a start that trained nothing leaves nothing behind."""


class Discard(Command[Answer]):
    """Remove a run that the process has begun and that is not to stay."""


class Report(Command[Text]):
    """How a finished training went, as lines to be printed."""

    run: str


class Doctor(Command[Checks]):
    """Check the machine."""

    run: str
    threads: int


class Clock(Command[Number]):
    """The time of the machine's clock, in seconds since 1970."""


class Speed(Command[Measured]):
    """Measure the network as one rank of all hosts.

    Attributes:
        parameters, micro_batches: of a recipe; 0 for none.
        own: the address of the host that the others use.
        address, port, rank, size: as for :func:`rankless.world.speed.connected`.
    """

    parameters: int
    micro_batches: int
    own: str
    address: str
    port: int
    rank: int
    size: int


class Step(Command[Number]):
    """Time some steps of a recipe on the host alone."""

    recipe: str
    devices: int


class Parameters(Command[Number]):
    """How many parameters a recipe trains."""

    recipe: str


COMMANDS = msgspec.json.Decoder(
    Beat | Request | Abandon | Holds | Recipe | Facts | Prepare | Begin | Listen | Reach | OpenStore | Round
    | Outcome | Withdraw | Discard | Report | Doctor | Clock | Speed | Step | Parameters
)  # fmt: skip
"""Reads any command."""
