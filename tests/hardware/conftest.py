"""An environment in which libraries are limited to an instruction set, or not."""

from collections.abc import Iterator

import pytest

from rankless.hardware.instruction_set import is_limited, variables


@pytest.fixture
def limited_to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in variables("avx2"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables(request.param).items():
        monkeypatch.setenv(name, value)
    is_limited.cache_clear()
    yield request.param
    is_limited.cache_clear()
