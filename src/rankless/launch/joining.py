"""Join the ranks of a launcher from a custom training loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rankless.hardware.computing import computes_like
from rankless.launch import environments
from rankless.recipe.schema import Recipe
from rankless.world import process_group
from rankless.world.process_group import World


@contextmanager
def join(threads: int = 1) -> Iterator[World]:
    """Join the ranks that torchrun, srun or mpirun has started.

    Without a launcher, this process is the only rank. Inside the context, kernels are deterministic and the
    number of threads is fixed, because both affect the weights.

    Args:
        threads: the number of CPU threads per rank, which should not depend on the number of ranks.

    Yields:
        This rank, with the attributes ``rank``, ``size``, ``device`` and ``is_first``. Only the first rank
        should print and save.

    Raises:
        UserError: the launcher's variables are invalid, or the ranks cannot connect to each other.
    """
    if environment := environments.detect():
        environment.export()
    with computes_like(Recipe(threads=threads, precision="fp32")), process_group.join() as world:
        yield world
