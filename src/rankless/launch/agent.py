"""Torch's elastic agent for the ranks of one machine, with the manners that a person expects.

It restarts the ranks when one dies, but not when they ended on purpose: a fault of the user's would only come
again. When it is asked to stop it lets the ranks finish their step and save.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.elastic.rendezvous.registry as rendezvous
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters

GRACE = 600.0  # seconds for the step under way and its checkpoint; a second signal ends it at once
HOPELESS = 3  # restarts without a step forward
_LOOPBACK = "127.0.0.1"


class Agent(LocalElasticAgent):  # type: ignore[misc]
    """Supervises the ranks.

    Args:
        spec: what to run.
        logs: where torch keeps its own files.
        ended: whether some rank has left a note that it ended on purpose.
        progress: a number that grows as the job gets on.
        say: told in a sentence what happened.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs: Path,
        ended: Callable[[], bool],
        progress: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(spec, logs_specs=DefaultLogsSpecs(log_dir=str(logs)), start_method="spawn")
        self.ended, self.progress, self.say = ended, progress, say
        self.reached, self.stuck = progress(), 0

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        if result.state is WorkerState.FAILED:
            if self.ended():
                self._remaining_restarts = 0
            else:
                self._judge(result)
        return result

    def _judge(self, result: RunResult) -> None:
        """Say who died; give up when it happens again and again at the same place."""
        reached = self.progress()
        self.stuck = 0 if reached > self.reached else self.stuck + 1
        self.reached = max(self.reached, reached)
        # Of all that ended, those killed by a signal are the cause; the rest only missed them.
        failures = sorted(result.failures.items(), key=lambda item: item[1].exitcode)
        rank, failure = failures[0]
        how = (
            f"was killed by {signal.Signals(-failure.exitcode).name}"
            if failure.exitcode < 0
            else f"ended with code {failure.exitcode}"
        )
        if self.stuck >= HOPELESS:
            self._remaining_restarts = 0
            self.say(f"rank {rank} {how}; {HOPELESS} restarts did not get a step further, giving up")
        else:
            self.say(f"rank {rank} {how}; restarting from the newest checkpoint")

    def _shutdown(self, death_sig: Any = None, *rest: Any, **named: Any) -> None:
        """Torch allows 30 seconds; a step and its checkpoint may take longer."""
        if death_sig is None:
            super()._shutdown(*rest, **named)
            return
        handlers = list(self._pcontext.subprocess_handlers.values()) if self._pcontext else []
        for handler in handlers:
            if handler.proc.poll() is None:
                handler.proc.send_signal(death_sig)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and any(handler.proc.poll() is None for handler in handlers):
            time.sleep(0.05)
        super()._shutdown(death_sig, *rest, **named)


def supervise(
    job: Path,
    devices: int,
    ended: Callable[[], bool],
    progress: Callable[[], int],
    say: Callable[[str], None],
) -> signal.Signals | None:
    """Run ``devices`` ranks of a job on this machine until all have ended.

    Args:
        job: a file that :mod:`rankless.worker` reads.
        devices: how many ranks.
        ended, progress, say: see :class:`Agent`.

    Returns:
        The signal that ended it, or None. How the job ended is in the notes that its ranks left.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if sys.platform == "linux":
        # Gloo otherwise takes the address that the host's name resolves to, which may be none.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # Port 0: the system chooses a free one, so no port can be taken.
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{_LOOPBACK}:0",
        run_id=str(uuid.uuid4()),
        min_nodes=1,
        max_nodes=1,
        local_addr=_LOOPBACK,
        is_host=True,
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=devices,
        rdzv_handler=rendezvous.get_rendezvous_handler(parameters),
        entrypoint=sys.executable,
        args=("-m", "rankless.worker", str(job)),
        max_restarts=1_000_000,  # the agent gives up when nothing moves, not after a number
        monitor_interval=0.1,
        local_addr=_LOOPBACK,
    )
    agent = Agent(spec, job.parent / "torch", ended, progress, say)
    try:
        agent.run()
    except SignalException as stopped:
        return signal.Signals(stopped.sigval)
    finally:
        spec.rdzv_handler.shutdown()
    return None
