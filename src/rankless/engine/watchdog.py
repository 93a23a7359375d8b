"""Detect late ranks. Every rank watches its own steps, and rank 0 reports the rank that the others wait for.

A rank that takes much longer than usual writes the stacks of all its threads to its log and its current phase
to the ranks' store. Rank 0 reads the store only when it is late itself. Every second, a rank reports its
progress to the launcher, with the time that its current phase may take. Only durations are compared, because
clocks differ.
"""

from __future__ import annotations

import faulthandler
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rankless.engine.clock import SAVING, WAITING, Clock, Phase
from rankless.world.keepalive import watch_connections
from rankless.world.process_group import TIMEOUT, World

LEAST = 60.0
"""Minimum seconds before a rank counts as late. The environment variable ``RANKLESS_LATE`` overrides this."""
_TIMES = 20  # a phase is late after this multiple of its median duration
_FIRST_TIMES = 10  # a phase without known durations is late after this multiple of LEAST
_LOG = 2  # the file descriptor of a rank's log
_KEY = "rankless/late"  # prefix of the keys in the ranks' store, followed by a rank
_REGULAR = ("computing", "predicting", SAVING)  # phases that take about as long every time
_SLOWEST_TIMES = 5  # a regular phase may take this multiple of its longest duration, and at least LEAST
_ELSE = TIMEOUT.total_seconds()  # limit of the first step and other phases, when other ranks stop waiting

Pulse = Callable[[int, float | None, str], None]
"""Receives the number of phases that a rank has started, the seconds that its current phase may take (None if
it waits for other ranks), and the name of that phase.
"""


class Watchdog:
    """A context manager whose thread watches the clock of one rank.

    All ranks must create a watchdog, because they exchange the names of their hosts. On rank 0, the thread
    calls ``report`` with a step and a sentence about a late rank. ``pulse`` reports this rank's progress to
    the launcher, if there is one.
    """

    def __init__(
        self, world: World, clock: Clock, report: Callable[[int, str], None], pulse: Pulse | None = None
    ) -> None:
        self.world, self.clock, self.report, self.pulse = world, clock, report, pulse
        self.hosts = world.all_gather(os.uname().nodename) if world.size > 1 else [os.uname().nodename]
        self.least = float(os.environ.get("RANKLESS_LATE") or LEAST)
        self._dumped: Phase | None = None
        self._named: set[tuple[int, int]] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5)  # it may be querying a store that no longer exists
        self.clock.begin("ending", self.clock.now.step)
        self._beat()

    def _beat(self) -> None:
        if self.pulse is None:
            return
        begun, at, step = self.clock.begun, self.clock.at, self.clock.now.step
        slowest = self.clock.slowest.get(at) if at in _REGULAR else None
        allowed = max(LEAST, _SLOWEST_TIMES * slowest) if slowest is not None else _ELSE
        self.pulse(begun, None if at == WAITING else allowed, f"step {step}, {at}")

    def _watch(self) -> None:
        while not self._end.wait(min(self.least / 4, 1)):
            self._beat()
            if self.world.device.type == "cuda":
                watch_connections(all_are_read=False)  # NCCL opens its connections on first use
            now = self.clock.now
            known = self.clock.usual.get(now.name)
            limit = max(self.least, _TIMES * statistics.median(known)) if known else _FIRST_TIMES * self.least
            seconds = time.monotonic() - now.since
            if seconds <= limit:
                continue
            with suppress(Exception):  # the store may have died with a rank, which is reported elsewhere
                if now != self._dumped:
                    self._dumped = now
                    self._dump(now.step, seconds)
                if self.world.is_first:
                    self._name_the_late(now.step, seconds, is_long=seconds > 1.5 * limit)

    def _dump(self, step: int, seconds: float) -> None:
        """Write the stacks of all threads to the log, and this rank's current phase to the store."""
        at = self.clock.at
        line = f"late: rank {self.world.rank}, step {step}, {at}, for {seconds:.0f} s; all threads:\n"
        with suppress(OSError), tempfile.TemporaryFile() as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)  # writes character by character
            stacks.seek(0)
            os.write(_LOG, line.encode() + stacks.read())  # in one write, because ranks may share a log
        self.world.transport.store.set(f"{_KEY}/{self.world.rank}", json.dumps([step, at, round(seconds)]))

    def _name_the_late(self, step: int, seconds: float, *, is_long: bool) -> None:
        """Report late ranks that wait for no other rank and, if ``is_long``, ranks that do not respond."""
        store = self.world.transport.store
        for rank, host in enumerate(self.hosts):
            key = f"{_KEY}/{rank}"
            found: list[Any] = json.loads(store.get(key)) if store.check([key]) else [-1, "", 0]
            if (rank, step) in self._named or (found[0] == step and found[1] == WAITING):
                continue
            if found[0] == step:
                text = f"rank {rank} on {host} is late: step {step}, {found[1]}, for {found[2]} s"
            elif is_long:
                text = f"rank {rank} on {host} does not respond: step {step}, for {seconds:.0f} s"
            else:
                continue
            self._named.add((rank, step))
            self.report(step, text)
