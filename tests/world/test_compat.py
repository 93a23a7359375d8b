"""The names that differ between releases of PyTorch."""

from __future__ import annotations

import os

import pytest

from rankless.world.compat import quiet_output


def test_what_libraries_print_stays_out_of_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_output():
        os.write(1, b"[Gloo] Rank 0 is connected\n")
    os.write(1, b"{}\n")
    assert capfd.readouterr() == ("{}\n", "")
