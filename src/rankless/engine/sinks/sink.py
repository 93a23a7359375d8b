"""The protocol of sinks, the observers of a run: the journal, the terminal, and sinks of the user."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rankless.errors import UserError, nearest, one_of, printable
from rankless.extras import needed
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
        first: number of completed steps, which is 0 for a new run.
        steps: number of steps in the run.
        world_size: number of ranks.
        reason: why the run ended last time, or None for a new run.
        unscored: whether the run starts with the evaluation after ``first`` steps, possibly repeating it.
    """

    run: Path
    recipe: Mapping[str, Any]
    first: int
    steps: int
    world_size: int
    reason: str | None = None
    unscored: bool = False


class Sink(Protocol):
    """An observer of a run. Inherit from it and override the methods you need.

    A sink runs in the process of rank 0. It is created without arguments at every start, including restarts
    after the death of a rank. Its methods receive copies, which they may change. Training waits for them to
    return.
    """

    def start(self, run: RunStart) -> None:
        """Prepare for the run. Called once, before the first step."""

    def step(self, entry: Mapping[str, Any]) -> None:
        """Receive the journal's entry of a step with ``step``, ``epoch``, ``lr``, ``loss``, ``parts`` etc."""

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        """Receive the scores of the weights after ``step`` steps."""

    def event(self, name: str, step: int, text: str) -> None:
        """Receive an event after ``step`` steps, such as a warning."""

    def close(self) -> None:
        """Finish. Called once when the run ends for any reason, unless the process is killed."""


class _Known(NamedTuple):
    """The module and class of a built-in sink, the library it needs, and whether it uses a server."""

    page: str
    name: str
    library: str = ""
    is_remote: bool = False


BUILT_IN = {
    "csv": _Known("csv_files", "CsvSink"),
    "mlflow": _Known("mlflow", "MlflowSink", "mlflow", is_remote=True),
    "tensorboard": _Known("tensorboard", "TensorBoardSink", "tensorboard"),
    "wandb": _Known("wandb", "WandbSink", "wandb", is_remote=True),
}
"""The built-in sinks, by their names for ``--sink``."""


def check_sink(name: str) -> None:
    """Raise a ``UserError`` unless ``name`` is a built-in sink or looks like a class name."""
    if name not in BUILT_IN and ":" not in name:
        raise UserError(
            f"sink is '{name}': expected {one_of(BUILT_IN)}, or 'package.module:Class' or 'file.py:Class' "
            f"for your own sink{nearest(name, BUILT_IN)}"
        )


def sink_class(name: str) -> Callable[[], Sink]:
    """Return a function that creates a sink.

    ``name`` is in :data:`BUILT_IN`, or has the form ``package.module:Class`` or ``file.py:Class``. Raises a
    ``UserError`` if it does not exist, is not a sink, or lacks a library.
    """
    if known := BUILT_IN.get(name):
        if known.library and importlib.util.find_spec(known.library) is None:
            needed(known.library, known.library, f"--sink {name}")
        page = importlib.import_module(f"rankless.engine.sinks.{known.page}")
        make: Callable[[], Sink] = getattr(page, known.name)
        if not known.is_remote:
            return make
        from rankless.engine.sinks.background import BackgroundSink  # it imports this module

        return lambda: BackgroundSink(make())
    check_sink(name)
    from rankless.user_modules import load_class

    made = load_class(name, "sink")
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing or not callable(made):
        raise UserError(
            f"sink is '{name}', but it lacks {', '.join(missing) or 'a constructor'}; expected a class with "
            f"the methods {', '.join(_METHODS)}; inherit from rankless.Sink"
        )
    return made  # type: ignore[no-any-return]


class Sinks:
    """All sinks of a run, in order. Only rank 0 has any.

    Args:
        built_in: sinks whose errors end the run.
        users: functions that create the user's sinks, by name. The first error of such a sink is reported,
            and the sink is dropped without affecting training.
        progress: shows the progress of work other than steps, given a title, the amount done and the total.
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
        """Create the user's sinks and start all sinks."""
        self._step = run.first
        for sink in self._built_in:
            sink.start(run)
        for name in self._makers:
            self._guard(name, lambda name=name: self._begin(name, run))  # type: ignore[misc]

    def _begin(self, name: str, run: RunStart) -> None:
        sink = self._makers[name]()
        sink.start(copy.deepcopy(run))
        self._users[name] = sink  # only from here on, it receives calls

    def step(self, entry: Mapping[str, Any]) -> None:
        self._step = entry["step"]
        self._each(lambda sink: sink.step(copy.deepcopy(entry)))

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._each(lambda sink: sink.scores(step, copy.deepcopy(scores), is_best))

    def event(self, name: str, step: int, text: str) -> None:
        self._each(lambda sink: sink.event(name, step, text))

    def urgent_event(self, name: str, step: int, text: str) -> None:
        """Record an event from another thread, because the training thread may be stuck.

        The user's sinks need not be thread-safe, so they receive the event with the next call.
        """
        with self.lock:
            for sink in self._built_in:
                sink.event(name, step, text)
            self._deferred.append((name, step, text))

    def close(self) -> None:
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
            if name in self._users:  # it may have failed on the event about another sink's error
                self._guard(name, lambda sink=sink: call(sink))  # type: ignore[misc]

    def _guard(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (Exception, SystemExit) as error:
            with suppress(OSError):  # the disk with the rank's log may be full
                traceback.print_exc()
            self._users.pop(name, None)
            if isinstance(error, OSError):
                why = printable(reason(error), 300)
            else:
                why = printable(traceback.format_exception_only(error)[-1].strip(), 300)
            self.event("sink", self._step, f"the sink {name} failed ({why}); training continues without it")
