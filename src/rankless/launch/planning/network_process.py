"""One of two processes that measure the exchange between them: ``… .network_process MEETING``.

Rank 0 prints the seconds of the fixed tree's exchange by size in bytes, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch.planning.measurement_worker import quick

SIZES = (1 << 10, 1 << 20, 8 << 20)
"""Measured sizes in bytes."""
_TIMES = (90, 30, 15)


def main() -> int:
    """Measure as the rank that the environment variables name."""
    die_with_parent(os.getppid())
    name_process("network")
    import torch

    from rankless.world.exchange import Exchange
    from rankless.world.process_group import join

    torch.set_num_threads(1)
    found: dict[int, float] = {}
    with join(Path(sys.argv[1])) as world:
        exchange = Exchange(world.size, world.rank, world.size)
        for size, times in zip(SIZES, _TIMES, strict=True):
            values, taken = torch.zeros(size // 4), []
            for _ in range(times):
                began = time.perf_counter()
                exchange.total([values])
                taken.append(time.perf_counter() - began)
            found[size] = quick(taken[times // 3 :])
        world.barrier()
    if world.is_first:
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
