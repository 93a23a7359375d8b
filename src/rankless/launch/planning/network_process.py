"""One of two processes that measure the exchange between them.

The argument is the file through which the processes connect. Rank 0 prints the durations of the fixed
tree's exchange in seconds as JSON, by transport (sockets or shared memory) and by size in bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rankless.hardware.processes import die_with_parent, name_process
from rankless.launch.planning.measurement_worker import quick

if TYPE_CHECKING:
    from torch import Tensor

    from rankless.world.exchange import Pending

SIZES = (1 << 10, 1 << 20, 16 << 20)
"""Sizes in bytes for which the exchange is measured."""
_TIMES = (90, 30, 15)


def main() -> int:
    die_with_parent(os.getppid())
    name_process("network")
    import torch

    from rankless.world.exchange import Exchange
    from rankless.world.process_group import join
    from rankless.world.shared_memory import share

    torch.set_num_threads(1)
    found: dict[str, dict[int, float]] = defaultdict(dict)
    with join(Path(sys.argv[1])) as world:
        exchange = Exchange(world.size, world.rank, world.size)
        for size, times in zip(SIZES, _TIMES, strict=True):
            values = torch.zeros(size // 4)
            kinds: dict[str, Callable[[Sequence[Tensor], Tensor], Pending]] = {"sockets": exchange.start}
            if shared := share(exchange, [values]):
                kinds["memory"] = shared.start
            for name, start in kinds.items():
                taken = []
                for _ in range(times):
                    began = time.perf_counter()
                    pending = start([values], values)
                    pending.combine()
                    pending.finish()
                    taken.append(time.perf_counter() - began)
                    if shared:
                        shared.begin_again()
                found[name][size] = quick(taken[times // 3 :])
        world.barrier()
    if world.is_first:
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
