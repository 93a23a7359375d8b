"""Be one of the ranks in a script of one's own, whoever has started it; without a launcher the only one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rankless.engine.settings import computes_like
from rankless.launch import environments
from rankless.recipe.schema import Recipe
from rankless.world import process_group
from rankless.world.process_group import World


@contextmanager
def join(threads: int = 1) -> Iterator[World]:
    """Be one of the ranks that torchrun, srun or mpirun has started; a world of one without a launcher.

    Inside, kernels are deterministic and the number of threads is fixed, as both decide bits.

    Args:
        threads: of each rank on the CPU; the same on every number of ranks.

    Yields:
        This rank: ``rank``, ``size``, ``device`` and ``is_first``, which alone prints and saves.

    Raises:
        UserError: the launcher's variables are not sensible, or the ranks did not meet.
    """
    if environment := environments.detect():
        environment.export()
    with computes_like(Recipe(threads=threads, precision="fp32")), process_group.join() as world:
        yield world
