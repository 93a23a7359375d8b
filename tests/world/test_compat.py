"""The names that differ between releases of PyTorch."""

from __future__ import annotations

import os

import pytest

from rankless.world.compat import quiet_output


def test_libraries_write_to_the_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_output():
        os.write(1, b"[Gloo] Rank 0 is connected\n")
    os.write(1, b"{}\n")
    assert capfd.readouterr() == ("{}\n", "[Gloo] Rank 0 is connected\n")
