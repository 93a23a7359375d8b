"""The report inside a notebook's page: the same page, in a frame that keeps it apart."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import rankless
from rankless.report import page
from rankless.report.collected import Collected


def journaled(folder: Path) -> Path:
    folder.mkdir()
    (folder / "journal.jsonl").write_text('{"event":"start","at":0,"steps":2,"world_size":1}\n')
    return folder


def test_the_page_is_in_a_frame_that_keeps_it_apart(tmp_path: Path) -> None:
    runs = [journaled(tmp_path / name) for name in ('a"><b>', "other")]
    frame = ElementTree.fromstring(rankless.Report(*map(str, runs))._repr_html_())
    assert frame.tag == "iframe" and frame.attrib["sandbox"] == "allow-scripts"  # not allow-same-origin
    nothing_yet = {str(run): "" for run in runs}  # no weights, so no digests
    html = page.render([Collected(run).refresh() for run in runs], nothing_yet)
    assert frame.attrib["srcdoc"] == html.replace("\n", " ")  # as XML reads a line break in an attribute


def test_all_runs_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(rankless.UserError) as caught:
        rankless.Report(tmp_path / "gone", journaled(tmp_path / "run"), tmp_path / "other")
    named = [problem.partition(":")[0] for problem in caught.value.problems]
    assert named == [str(tmp_path / "gone"), str(tmp_path / "other")]
    with pytest.raises(rankless.UserError, match="at least one run directory"):
        rankless.Report()
