"""What the options of ``rankless predict`` become, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import rankless.inference.predict as page
from rankless import cli
from rankless.inference.report import ImageReport, PredictionReport
from rankless.recipe.schema import Model, Recipe
from rankless.recipe.used import refuse_unused_in_prediction

RED = {"box": [0, 0, 1, 1], "score": 0.9, "label": 0, "name": "red"}


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The options of the last call, and the report that it returns."""
    monkeypatch.chdir(tmp_path)
    for name in ("w.safetensors", "a.jpg", "b.jpg"):
        Path(name).touch()
    made = SimpleNamespace(report=PredictionReport(Path("out"), Path("w")), refuse=lambda overrides: None)

    def predict(target, sources, **options):
        made.refuse(options["overrides"])
        made.sources, made.options = sources, options
        return made.report

    monkeypatch.setattr(page, "predict", predict)
    return made


def test_options_become_overrides(asked):
    words = "w.safetensors a.jpg --iou 0.5 --max 7 --tta flip --classes red,2 --batch 3 precision=fp32"
    assert cli.main(["predict", *words.split(), "--save", "json, coco"]) == 0
    assert asked.options["overrides"] == [
        "precision=fp32", "evaluate.iou=0.5", "evaluate.detections=7", "evaluate.tta=flip",
    ]  # fmt: skip
    assert asked.options["classes"] == ["red", "2"] and asked.options["batch"] == 3
    assert asked.options["save"] == ["json", "coco"] and asked.options["progress"]
    words = "w.safetensors a.jpg --out found --confidence 0.5 --force --device cpu --task a.py:B"
    assert cli.main(["predict", *words.split()]) == 0
    assert asked.options["save"] == ["annotated", "json"] and asked.options["overrides"] == []
    names = ("out", "confidence", "force", "device", "task", "resume")
    given = [Path("found"), 0.5, True, "cpu", "a.py:B", False]
    assert [asked.options[name] for name in names] == given


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["evaluate.iou=0.5", "--iou", "0.5"],
            "--iou and evaluate.iou set the same value; remove one of them",
        ),
        (["--batch", "0"], "--batch is '0': expected a whole number of at least 1"),
        (["--tta", "most"], "--tta is 'most'"),
        (["@gone.txt"], "'@gone.txt': the list cannot be read"),
        (["@empty.txt"], "'@empty.txt': the list is empty; expected one path per line"),
        (["rtsp"], "'rtsp': no such file or folder"),
    ],
)
def test_mistakes(asked, capsys, words, said):
    Path("empty.txt").write_text("\n")
    assert cli.main(["predict", "w.safetensors", "a.jpg", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_error_about_an_options_key_names_the_option(asked, capsys):
    recipe = Recipe(task="classify", model=Model(name="resnet18"))
    asked.refuse = lambda overrides: refuse_unused_in_prediction(overrides, recipe)
    words = "w.safetensors a.jpg --max 5 --iou 0.5 evaluate.nms=soft --tta flip"
    assert cli.main(["predict", *words.split()]) == 2
    lines = [
        line.partition(": prediction does not use it; ") for line in capsys.readouterr().err.splitlines()
    ]
    assert [line[0] for line in lines] == [
        "error: command line: key 'evaluate.nms'",
        "error: --iou",
        "error: --max",
    ]
    assert all("a classifier predicts the five best classes" in line[2] for line in lines[1:])
    assert cli.main(["predict", "w.safetensors", "a.jpg", "model.image_sise=64"]) == 2
    assert capsys.readouterr().err.endswith("; did you mean 'model.image_size'?\n")


def test_lists_of_sources(asked):
    Path("list.txt").write_text("b.jpg\n\na.jpg\n")
    assert cli.main(["predict", "w.safetensors", "b.jpg", "@list.txt", "webcam:0", "rtsp://x"]) == 0
    assert asked.sources == ("b.jpg", "b.jpg", "a.jpg", "webcam:0", "rtsp://x")


@pytest.mark.processes
def test_a_list_of_sources_on_the_standard_input(asked, forked):
    Path("list.txt").write_text("a.jpg\n\ngone.jpg\n")
    with Path("list.txt").open() as listed:
        done = forked("-m", "rankless", "predict", "w.safetensors", "@-", cwd=Path.cwd(), given=listed)
    assert (done.returncode, done.stderr) == (2, "error: 'gone.jpg': no such file or folder\n")


def test_what_is_printed(asked, capsys):
    asked.report.images = [
        ImageReport("a.jpg", None, 4, 4, [RED, RED]),
        ImageReport("b.mp4", None, 4, 4, [RED], frame=0, time=0.0),
        ImageReport("b.mp4", None, 4, 4, [], frame=1, time=0.1),
    ]
    asked.report.computed, asked.report.seconds = 3, 0.5
    asked.report.notes.append("1 class name has odd letters")
    assert cli.main(["predict", "w.safetensors", "a.jpg"]) == 0
    assert capsys.readouterr().out == (
        "note: 1 class name has odd letters\n"
        "3 objects in 1 image and 2 frames; 6 frames per second; in fp32; results in out\n"
    )
    asked.report.images = [ImageReport("b.mp4", None, 4, 4, classes=[RED], frame=9, time=0.3)] * 22
    assert cli.main(["predict", "w.safetensors", "a.jpg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "b.mp4 at 0.30 s: red 90%" and lines[20] == "… and 2 more"
    assert lines[-1].startswith("22 frames; ")


def test_where_no_source_can_be_read_there_is_only_the_error(asked, capsys):
    asked.report.failed.append(("talk.mp4", "not a video"))
    assert cli.main(["predict", "w.safetensors", "a.jpg"]) == 2
    assert capsys.readouterr() == ("", "error: talk.mp4: not a video\n")
    asked.report.images = [ImageReport("a.jpg", None, 4, 4, [RED])]
    assert cli.main(["predict", "w.safetensors", "a.jpg", "--json"]) == 1
    out, err = capsys.readouterr()
    assert (len(json.loads(out)["images"]), err) == (1, "talk.mp4: not a video\n")


def test_a_number_is_told_from_a_camera(asked, capsys):
    assert cli.main(["predict", "w.safetensors", "0"]) == 2
    there = ", ".join(sorted(map(str, Path("/dev").glob("video*")))) or "none"
    said = f"for a camera, use webcam:0 or /dev/video0 (cameras on this machine: {there})"
    assert capsys.readouterr().err == f"error: '0': no such file or folder; {said}\n"
