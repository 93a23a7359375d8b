"""On a full disk nothing half-written is left, and what was there stays."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from small_data import detection

from rankless.curation import contact_sheet, statistics_plot
from rankless.curation.data_set import open_data_set
from rankless.curation.sampling import select
from rankless.errors import UserError
from rankless.files.outputs import CHARTS, SHEETS, drawing


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Inside, no file may grow beyond some bytes; not the test's own report either, so be brief."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    # Python would write the first half of a module's bytecode, and never again import that module.
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old"), [("sheet.png", True), ("sheet.html", False), ("plot.png", False), ("plot.svg", True)]
)
def test_a_full_disk(tmp_path, name, old):
    root = detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 0]]] * 4})
    data, shown = open_data_set(str(root)), select(str(root))
    out = tmp_path / "out" / name
    out.parent.mkdir()
    if old:
        out.write_text("old")
    said = f"{name}: cannot be written: File too large"
    with pytest.raises(UserError, match=said), room_for(500):
        write = contact_sheet.write if "sheet" in name else statistics_plot.plot
        outputs = drawing(out, "test", SHEETS if "sheet" in name else CHARTS, force=True)
        write(shown if "sheet" in name else data, out, outputs)
    left = {each.name: each.read_text() for each in out.parent.iterdir()}
    assert left.pop(".rankless-outputs").count("\n") == 1, "the list is begun, and lists nothing"
    assert left == ({name: "old"} if old else {})


@pytest.mark.slow
def test_a_plot_of_names_that_the_font_lacks_warns_of_nothing(tmp_path):
    root = detection(tmp_path / "d", {"train": [[[1, 1, 9, 9, 0]]] * 4}, names=["猫", "犬", "鰻"])
    out = tmp_path / "plot.png"
    statistics_plot.plot(open_data_set(str(root)), out, drawing(out, "test"))
    assert out.stat().st_size
