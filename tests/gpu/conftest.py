"""The pretended GPU, built once per session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.pretended_gpu import PretendedGpu, UnavailableError, built
from support.process_server import SHARED


@pytest.fixture(scope="session")
def pretended_gpu() -> PretendedGpu:
    try:
        return PretendedGpu(built(Path(os.environ[SHARED]).with_name("pretended-gpu")))
    except UnavailableError as error:
        pytest.skip(f"no GPU can be pretended: {error}")
