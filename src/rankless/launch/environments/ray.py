"""Ray Train, whose workers each start one rank (``launch/submit/ray``)."""

from __future__ import annotations

from collections.abc import Mapping

from rankless.launch.environments.standard import Standard

WORKER = "RANKLESS_RAY_WORKER"
"""Set by a worker for its rank, beside PyTorch's names."""


class Ray(Standard):
    """PyTorch's names, set by a worker that Ray may kill at any time; its rank goes with it."""

    name = "Ray Train"

    @classmethod
    def is_here(cls, variables: Mapping[str, str]) -> bool:
        return bool(variables.get(WORKER)) and super().is_here(variables)

    def _read(self) -> None:
        super()._read()
        self.leaves_orphans = True
