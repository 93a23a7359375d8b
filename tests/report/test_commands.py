"""rankless report and rankless plot: what they write, and what they say of mistakes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rankless import cli

pytestmark = pytest.mark.processes  # the run is trained by ranks


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str]]:
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, (out + err).splitlines()


def test_a_report_lies_in_its_run_and_one_of_several_here(run, trained, tmp_path, capsys, monkeypatch):
    (run / "report.html").unlink()
    assert said(capsys, "report", run) == (0, [str(run / "report.html")])
    assert "AP by object size" in (run / "report.html").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # an earlier one is replaced
        assert said(capsys, "report", run, trained) == (0, ["report.html"])
    assert "Side by side" in Path("report.html").read_text(encoding="utf-8")
    Path("other.html").write_text("mine")
    code, lines = said(capsys, "report", run, "--out", "other.html")
    assert code == 2
    assert "other.html: already exists" in lines[0]
    assert Path("other.html").read_text() == "mine"


def test_mistakes_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "error: RUN is missing: expected one or more run directories, shown side by side; see: rankless"
    assert said(capsys, "report") == (2, [f"{missing} report --help"])
    code, lines = said(capsys, "plot", tmp_path, tmp_path / "none", "--out", tmp_path / "curves.png")
    assert code == 2
    assert [line.split(":")[1].strip() for line in lines] == [str(tmp_path), str(tmp_path / "none")]
    code, lines = said(capsys, "plot", tmp_path, "--out", tmp_path / "curves.txt")
    assert code == 2
    assert "expected a name that ends in one of .png" in lines[0]


def test_a_run_without_a_step_has_nothing_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal.jsonl").write_text('{"event":"start","at":0}\n')
    code, lines = said(capsys, "plot", tmp_path, "--out", tmp_path / "curves.png")
    problem = "contains no steps or evaluations; train longer first"
    assert (code, lines) == (2, [f"error: {tmp_path}/journal.jsonl: {problem}"])
    assert said(capsys, "report", tmp_path)[0] == 0
    assert not (tmp_path / "curves.png").exists()


def test_curves_are_drawn(run, trained, tmp_path, capsys):
    text = (run / "journal.jsonl").read_text()
    (run / "journal.jsonl").write_text(re.sub(r'"loss":(\d)', r'"loss":1\1', text))  # so that both are seen
    out = tmp_path / "curves.png"
    assert said(capsys, "plot", run, trained, "--out", out) == (0, [str(out)])
    pixels = np.asarray(Image.open(out).convert("RGB")).reshape(-1, 3)
    for color in ((0x24, 0x67, 0xB3), (0xC2, 0x5A, 0x0C)):  # a line of each run
        assert (np.abs(pixels.astype(int) - color).max(1) < 12).sum() > 200
    vector = tmp_path / "curves.svg"
    assert said(capsys, "plot", run, "--out", vector)[0] == 0
    text = vector.read_text()
    assert text.startswith("<?xml") and len(re.findall(r'<g id="axes_\d+">', text)) == 4


def test_losses_of_different_tasks_have_axes_of_their_own(run, trained, tmp_path, capsys):
    cls = tmp_path / "cls"
    cls.mkdir()
    (cls / "recipe.yaml").write_text("task: classify\nmodel: {name: resnet18}\nepochs: 1\n")
    (cls / "journal.jsonl").write_text('{"step":1,"loss":2.5,"lr":0.1}\n{"step":2,"loss":2.25,"lr":0.1}\n')
    vector, page = tmp_path / "curves.svg", tmp_path / "two.html"
    assert said(capsys, "plot", run, cls, trained, "--out", vector)[0] == 0
    assert len(re.findall(r'<g id="axes_\d+">', vector.read_text())) == 6
    assert said(capsys, "report", run, cls, trained, "--out", page)[0] == 0
    titles = re.findall(r'aria-label="(Training loss \([^"]*)"', page.read_text())
    assert titles == ["Training loss (detect), smoothed", "Training loss (classify), smoothed"]
