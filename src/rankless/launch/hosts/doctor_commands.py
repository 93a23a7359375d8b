"""The commands of a host's process that ``rankless doctor --hosts`` asks for."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

_STEPS, _WARM_UP = 5, 2  # of a recipe that is timed; the first ones do not count


class DoctorCommands:
    """Every ``do_…`` is a command, and returns its answer.

    Attributes:
        listener: what listens for other hosts; a store replaces it.
        store: the one that ranks meet at.
    """

    listener: Any
    store: Any

    def do_doctor(self, run: str, threads: int) -> dict[str, Any]:
        """Check this machine."""
        from rankless.launch.doctor.here import checks

        return {"checks": [asdict(check) for check in checks(Path(run), threads)]}

    def do_clock(self) -> dict[str, Any]:
        """The time of this machine's clock, seconds since 1970."""
        return {"time": time.time()}

    def do_echo(self) -> dict[str, Any]:
        """Listen everywhere, and send back what the other hosts send."""
        from rankless.launch.doctor.connections import Echo

        self.listener = Echo()
        return {"ports": self.listener.ports()}

    def do_probe(self, targets: dict[str, Any]) -> dict[str, Any]:
        """Try to reach the other hosts."""
        from rankless.launch.doctor.connections import probe

        return {"found": probe(targets)}

    def do_speed(self, parameters: int, micro_batches: int, own: str, **meeting: Any) -> dict[str, Any]:
        """Measure the network as one rank of all hosts.

        Args:
            parameters, micro_batches: of a recipe; 0 for none.
            own: the address of this host that the others use.
            meeting: as for :func:`rankless.world.speed.connected`.
        """
        from rankless.hardware.network import interface_of
        from rankless.world import speed

        with speed.connected(**meeting, interface=interface_of(own)):
            timings = speed.measure()
            exchange = speed.measure_exchange(parameters, micro_batches) if parameters else 0.0
        self.store = None
        return {"timings": timings, "exchange": exchange}

    def do_step(self, recipe: str, devices: int) -> dict[str, Any]:
        """Time some steps of a recipe on this host alone."""
        from rankless.launch.local import step_seconds
        from rankless.recipe.load import from_json

        return {"seconds": statistics.median(step_seconds(from_json(recipe), devices, _STEPS, _WARM_UP))}

    def do_parameters(self, recipe: str) -> dict[str, Any]:
        """How many parameters a recipe trains."""
        from rankless.recipe.load import from_json
        from rankless.tasks import open_task, resolve_recipe

        model = open_task(resolve_recipe(from_json(recipe))).model()
        return {"parameters": sum(one.numel() for one in model.parameters() if one.requires_grad)}
