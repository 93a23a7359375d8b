"""A sink in a separate thread. Training does not wait for a slow or unreachable server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rankless.engine.sinks.sink import RunStart, Sink
from rankless.structures import Scores

CLOSING = 30.0
"""Maximum seconds to wait for unsent data at the end of a run."""
_MOST = 100_000  # calls in the queue


class BackgroundSink(Sink):
    """Forwards all calls to another sink in order, in a separate thread. Errors are raised by the next call.

    The other sink must be created, and import its library, in the training thread. An import in another
    thread would never finish in processes that are forked in the meantime. ``closing`` is the maximum
    number of seconds that :meth:`close` waits.
    """

    def __init__(self, sink: Sink, closing: float = CLOSING) -> None:
        self._sink, self._closing = sink, closing
        self._calls: queue.Queue[Callable[[], object] | None] = queue.Queue(_MOST)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="rankless-sink", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                self._error = error
                return

    def _put(self, call: Callable[[], object] | None) -> None:
        if self._error is not None:
            raise self._error
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            raise TimeoutError("the server accepts data more slowly than the run produces it") from None

    def start(self, run: RunStart) -> None:
        self._put(lambda: self._sink.start(run))

    def step(self, entry: Mapping[str, Any]) -> None:
        self._put(lambda: self._sink.step(entry))

    def scores(self, step: int, scores: Scores, is_best: bool) -> None:
        self._put(lambda: self._sink.scores(step, scores, is_best))

    def event(self, name: str, step: int, text: str) -> None:
        self._put(lambda: self._sink.event(name, step, text))

    def close(self) -> None:
        """Wait until all data is sent, but only for a limited time."""
        self._put(self._sink.close)
        self._put(None)
        self._thread.join(self._closing)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise TimeoutError(
                f"some data was not sent within {self._closing:g} s of the end of the run and is lost"
            )
