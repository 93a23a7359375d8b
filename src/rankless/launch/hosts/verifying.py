"""The promise, checked across machines: all of them together give the bits of one device of the first."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rankless.errors import INTERRUPTED, UserError
from rankless.launch.hosts.coordinator import Coordinator
from rankless.launch.hosts.names import Host
from rankless.launch.hosts.training import Wanted
from rankless.launch.hosts.way import Way
from rankless.launch.requests import Requests
from rankless.launch.verify import Trace, VerifyReport, WorldResult, compare, judged
from rankless.recipe.schema import Recipe


def verify_on_hosts(
    recipe: Recipe, hosts: Sequence[Host], steps: int, way: Way, echo: Callable[[str], None]
) -> VerifyReport:
    """Train the first steps with all hosts, and then with one device of the first; compare every tensor.

    Args:
        recipe: any; nothing of it is changed.
        hosts: reached over SSH; nothing stays on them.
        steps: how many.
        way: how hosts are reached.
        echo: takes the table line by line.

    Raises:
        UserError: hosts that cannot be used, or any error of the training.
    """

    def train(there: Sequence[Host], first: Trace) -> tuple[WorldResult, Trace]:
        run = Path("runs") / f".verify-{uuid.uuid4().hex[:12]}"
        wanted = Wanted(
            recipe, (), run, "", None, resume=False, sinks=(), least=len(there), dry_run_steps=steps
        )
        with Requests() as requests:
            coordinator = Coordinator(wanted, there, way, requests)
            code = coordinator.train()
            if code == INTERRUPTED:
                raise KeyboardInterrupt
            if code:
                raise UserError(f"{', '.join(map(str, there))} did not get to the end (code {code})")
        outcome = coordinator.outcome
        traces = [text for _, text in sorted(outcome["traces"].items())]
        return judged(coordinator.training.recipe, traces, outcome["digest"], outcome["seconds"], first)

    # All of them first: a host that cannot be used is found before anything is trained.
    worlds = (list(hosts), [replace(hosts[0], devices=1)])
    return compare([partial(train, there) for there in worlds], steps, echo)
