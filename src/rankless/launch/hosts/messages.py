"""Messages between the coordinator, the hosts' processes, and their supervisors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_args

import msgspec

from rankless.launch.job import Job, Place
from rankless.launch.rounds import Death, RoundEnd

T = TypeVar("T")


class Event(msgspec.Struct, omit_defaults=True):
    """A report from a supervisor about its host; exactly one field is set."""

    hello: dict[str, str] | None = None  # properties of a supervisor that has just started
    beat: int = 0  # 1 in the answer to a beat
    out: bytes = b""
    err: bytes = b""
    event: bytes = b""  # lines of JSON that the process wrote for the coordinator
    failed: str = ""  # why a request failed
    ended: int | None = None  # exit code of the process
    lost: str | None = None  # why the connection ended


class Sign(msgspec.Struct):
    """The common fields of all messages from a host's process."""

    reply_to: int = 0  # number of the command that this message answers; 0 if there is none
    ready: int = 0  # process ID, once the process accepts commands
    beat: int | None = None  # seconds since the ranks were last checked, in the answer to a beat


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An answer to a command; if there are ``problems``, all other fields are unset."""

    reply_to: int = 0
    problems: list[str] = []


class Value(Answer, Generic[T]):
    """An answer that consists of one value."""

    value: T = None  # type: ignore[assignment]  # None if there are problems


class Held(Answer):
    exists: bool = False
    has_run: bool = False
    step: int | None = None  # of the newest complete checkpoint


class Prepared(Answer):
    recipe: str = ""
    sinks: list[str] = []
    finished: int | None = None  # last step of a finished run


class RoundEnded(Answer):
    end: RoundEnd = msgspec.field(default_factory=RoundEnd)
    left_out: list[int] = []  # updated value of the field of Round


class DryRunOutcome(Answer):
    digest: str = ""
    seconds: list[float] = []  # of each step


class Measured(Answer):
    timings: list[dict[str, Any]] = []
    exchange: float = 0.0


A = TypeVar("A", bound=Answer)


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Command(msgspec.Struct, Generic[A], kw_only=True, omit_defaults=True, tag_field="do", tag=_tag):
    """A command from the coordinator to a host's process; its answer has the same ``reply_to``."""

    reply_to: int = 0

    @classmethod
    def answer_type(cls) -> type[Answer]:
        found: type[Answer] = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        return found


class Beat(Command[Answer]):
    """A heartbeat from the client."""


class Request(Command[Answer]):
    """A command to pass a signal on to the running round."""

    of: int
    number: int


class Abandon(Command[Answer]):
    """A command to end a round because ranks on other hosts were lost."""

    of: int


class Holds(Command[Held]):
    """A query for the state of a run on the host."""

    run: str


class Recipe(Command[Value[str]]):
    """A query for the recipe of a run on the host, with ``overrides`` applied."""

    run: str
    overrides: list[str]


class Facts(Command[Value[dict[str, Any]]]):
    """A query for the properties of the host that affect training."""

    recipe: str
    run: str


class Prepare(Command[Prepared]):
    """A command to resolve a recipe with the host's data and devices, and to check it against the run."""

    recipe: str
    run: str
    resume: bool
    sinks: list[str]


class Begin(Command[Value[bool]]):
    """A command to lock the run directory; the answer is whether another host of this run shares it."""

    recipe: str
    run: str
    resume: bool
    token: str  # identifies this training run
    stays: bool  # whether to keep the run when the process ends


class Listen(Command[Value[dict[str, int]]]):
    """A command to listen for other hosts on every address; the answer is the port on each address."""

    echo: bool = False  # whether to send received bytes back


class Reach(Command[Value[dict[str, dict[str, Any]]]]):
    """A command to call ``reach.probe`` with the fields as arguments; the answer is the result."""

    targets: Mapping[str, Mapping[str, Any]]
    large: bool = False


class OpenStore(Command[Value[int]]):
    """A command to open the store where the ranks of the next round meet; the answer is its port."""

    address: str


class Round(Command[RoundEnded]):
    """A command to run the host's ranks until all have ended."""

    number: int
    job: Job
    ranks: int  # on this host
    place: Place
    own: str  # the address of this host that the other hosts use
    deaths: list[Death]  # in the previous round, for the journal
    left_out: list[int] = []  # devices of this host that ranks no longer use


class Outcome(Command[DryRunOutcome]):
    """A query for the outcome of a dry run on the host."""

    run: str


class Withdraw(Command[Answer]):
    """A command to release the run directory, and to remove a new run that has not trained a step."""


class Discard(Command[Answer]):
    """A command to remove a dry run."""


class Report(Command[Value[str]]):
    """A query for the text to print about a finished run."""

    run: str


class Doctor(Command[Value[list[dict[str, Any]]]]):
    """A command to run the checks of ``rankless doctor`` on the host."""

    run: str
    threads: int


class Clock(Command[Value[float]]):
    """A query for the host's time in seconds since 1970."""


class Speed(Command[Measured]):
    """A command to measure the network with one rank per host, as in :mod:`rankless.world.speed`."""

    parameters: int  # 0 without a recipe, as is the next field
    micro_batches: int
    own: str  # the address of this host that the other hosts use
    address: str
    port: int
    rank: int
    size: int


class Step(Command[Value[float]]):
    """A command to measure steps of a recipe on this host alone."""

    recipe: str
    devices: int


class Parameters(Command[Value[float]]):
    """A query for the number of parameters that a recipe trains."""

    recipe: str


COMMANDS = msgspec.json.Decoder(
    Beat | Request | Abandon | Holds | Recipe | Facts | Prepare | Begin | Listen | Reach | OpenStore | Round
    | Outcome | Withdraw | Discard | Report | Doctor | Clock | Speed | Step | Parameters
)  # fmt: skip
