"""Observers of a run: the journal, the terminal and users' own sinks share one protocol."""

from __future__ import annotations

import copy
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rankless.engine.sinks.built_in import BUILT_IN, built_in
from rankless.errors import UserError, nearest, one_of, printable
from rankless.files.reading import reason

if TYPE_CHECKING:  # following a run needs no PyTorch
    from rankless.structures import Scores

_METHODS = ("start", "step", "scores", "event", "close")


@dataclass(frozen=True)
class RunStart:
    """The information that a sink receives before the first step.

    Attributes:
        run: the run directory.
        recipe: the complete recipe as plain values, with the keys of a recipe file.
        first: number of steps already done; 0 for a new run, more for a resumed one.
        steps: number of steps in the run.
        world_size: number of ranks.
        reason: why the run ended last time; None for a new run.
        unscored: whether the run begins with the evaluation after ``first`` steps, possibly for the second
            time.
    """

    run: Path
    recipe: Mapping[str, Any]
    first: int
    steps: int
    world_size: int
    reason: str | None = None
    unscored: bool = False


class Sink(Protocol):
    """An observer of a run; inherit from it and override the methods you need.

    A sink runs in the process of rank 0. It is created without arguments at every start, including a restart
    after a rank died. Its arguments are copies, which it may change. Training waits while a sink works.
    """

    def start(self, run: RunStart) -> None:
        """Prepare for the run. This is called once, before the first step."""

    def step(self, entry: Mapping[str, Any]) -> None:
        """Receive the journal's entry of a step: ``step``, ``epoch``, ``lr``, ``loss``, ``parts`` …"""

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Receive the scores of the weights after ``step`` steps."""

    def event(self, name: str, step: int, text: str) -> None:
        """Receive an event after ``step`` steps, such as a warning."""

    def close(self) -> None:
        """Finish. This is called once when the run ends for any reason, unless the process is killed."""


def check_sink(name: str) -> None:
    """Raise a UserError unless a name is in :data:`BUILT_IN` or looks like a class; import nothing."""
    if name not in BUILT_IN and ":" not in name:
        raise UserError(
            f"sink is '{name}': expected {one_of(BUILT_IN)}, or 'package.module:Class' or 'file.py:Class' of "
            f"your own{nearest(name, BUILT_IN)}"
        )


def sink_class(name: str) -> Callable[[], Sink]:
    """Return a function that creates a sink.

    The name is one of :data:`BUILT_IN`, ``package.module:Class`` or ``file.py:Class``.

    Raises:
        UserError: the name, file, module or class does not exist, the class is not a sink, or a library is
            missing.
    """
    if name in BUILT_IN:
        return built_in(name)
    check_sink(name)
    from rankless.tasks.custom import load_class

    made = load_class(name, "sink")
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing or not callable(made):
        raise UserError(
            f"sink is '{name}': missing {', '.join(missing) or 'a class'}; expected a class with the methods "
            f"{', '.join(_METHODS)}; inherit from rankless.Sink"
        )
    return made  # type: ignore[no-any-return]


class Sinks:
    """All sinks of a run, in order; ranks other than the first have none.

    Args:
        built_in: sinks of the run; their errors end it.
        users: functions that create the user's sinks, by name. The first error of such a sink is reported and
            the sink is dropped, so it cannot affect training.
        progress: shows the progress of something other than steps, given a title, the amount done and the
            total.

    Attributes:
        lock: held while the run's own sinks are written.
    """

    def __init__(
        self,
        built_in: Sequence[Sink] = (),
        users: Mapping[str, Callable[[], Sink]] | None = None,
        progress: Callable[[str, int, int], None] = lambda title, done, total: None,
    ) -> None:
        self._built_in = list(built_in)
        self.progress = progress
        self._makers = dict(users or {})
        self._users: dict[str, Sink] = {}
        self._step = 0
        self.lock = threading.RLock()
        self._deferred: list[tuple[str, int, str]] = []

    def start(self, run: RunStart) -> None:
        """Make the users' sinks and start all sinks; see :class:`Sink`."""
        self._step = run.first
        for sink in self._built_in:
            sink.start(run)
        for name in self._makers:
            self._guard(name, lambda name=name: self._begin(name, run))  # type: ignore[misc]

    def _begin(self, name: str, run: RunStart) -> None:
        sink = self._makers[name]()
        sink.start(copy.deepcopy(run))
        self._users[name] = sink  # it receives nothing before this

    def step(self, entry: Mapping[str, Any]) -> None:
        """See :class:`Sink`."""
        self._step = entry["step"]
        self._each(lambda sink: sink.step(copy.deepcopy(entry)))

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """See :class:`Sink`."""
        self._each(lambda sink: sink.scores(step, copy.deepcopy(scores), is_best))

    def event(self, name: str, step: int, text: str) -> None:
        """See :class:`Sink`."""
        self._each(lambda sink: sink.event(name, step, text))

    def urgent_event(self, name: str, step: int, text: str) -> None:
        """Record an event from another thread, because the training thread may be stuck.

        Users' sinks need not be thread-safe, so they receive it with the next call.
        """
        with self.lock:
            for sink in self._built_in:
                sink.event(name, step, text)
            self._deferred.append((name, step, text))

    def close(self) -> None:
        """See :class:`Sink`."""
        try:
            self._each_of_users(lambda sink: sink.close())
        finally:
            for sink in reversed(self._built_in):
                sink.close()

    def _each(self, call: Callable[[Sink], object]) -> None:
        with self.lock:
            for sink in self._built_in:
                call(sink)
            deferred, self._deferred = self._deferred, []
        for event in deferred:
            self._each_of_users(lambda sink, event=event: sink.event(*event))  # type: ignore[misc]
        self._each_of_users(call)

    def _each_of_users(self, call: Callable[[Sink], object]) -> None:
        for name, sink in list(self._users.items()):
            if name in self._users:  # unless the event about another sink's error has just made it fail
                self._guard(name, lambda sink=sink: call(sink))  # type: ignore[misc]

    def _guard(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:
            with suppress(OSError):  # into the rank's log, whose disk may be full
                traceback.print_exc()
            self._users.pop(name, None)
            if isinstance(error, OSError):
                why = printable(reason(error), 300)
            else:
                why = printable(traceback.format_exception_only(error)[-1].strip(), 300)
            self.event(
                "sink", self._step, f"the sink {name} failed ({why}) and is dropped; training continues"
            )
