"""Prediction from files to files, with a detector that finds rectangles, and once with a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import rankless.inference.predict as page
from rankless.data.images.drawing import Mark, annotate, color
from rankless.errors import UserError
from rankless.inference.sources import find
from rankless.models.weights_files import weights
from rankless.recipe.schema import Evaluate, Recipe
from rankless.structures import Detections, Letterbox
from rankless.tasks.detect import Detect


@pytest.fixture
def target(colors: Path) -> Path:
    return colors


def image(path: Path, size=(400, 300), box=(40, 60, 140, 220), **options) -> Path:
    pixels = np.full((size[1], size[0], 3), 120, np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = (255, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def run(target: Path, *sources: Path | str, force=True, **options) -> page.PredictionReport:
    out = target.with_name("out")
    words = [str(source) for source in sources]
    return page.predict(target, words, out=out, device="cpu", force=force, **options)


def written(report: page.PredictionReport) -> list[dict]:
    return json.loads((report.out / "predictions.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(400, 300), (1000, 200), (90, 260), (128, 96), (2003, 1501)])
def test_boxes_are_in_the_source_images_pixels(target, size):
    box = (size[0] // 5, size[1] // 4, size[0] // 2, size[1] * 3 // 4)
    report = run(target, image(target.with_name("a.png"), size, box))
    (entry,) = written(report)
    assert entry == report.predictions()[0]
    assert (entry["width"], entry["height"]) == size and Path(entry["source"]).name == "a.png"
    (found,) = entry["detections"]
    assert (found["label"], found["name"], found["score"]) == (0, "red", 0.9)
    scale = min(256 / size[0], 192 / size[1])
    np.testing.assert_allclose(found["box"], box, atol=1.01 / scale)
    assert all(round(side, 2) == side for side in found["box"])
    with Image.open(report.images[0].annotated) as annotated:
        assert annotated.size == size and annotated.format == "PNG"
        x, y = round(found["box"][0]), round(found["box"][1])
        frame = np.asarray(annotated)[max(0, y - 8) : y + 1, max(0, x - 8) : x + 1].reshape(-1, 3)
        assert (frame == color(0)).all(1).any()
    assert report.exit_code == 0 and report.as_json()["failed"] == []
    json.dumps(report.as_json(), allow_nan=False)


def test_the_confidence_reaches_the_task(target):
    source = image(target.with_name("a.png"))
    assert run(target, source, confidence=0.95).images[0].detections == []
    assert len(run(target, source, confidence=0.85).images[0].detections) == 1


def test_boxes_are_in_the_upright_image(target):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter to the right: stored 400 × 300, shown 300 × 400
    report = run(target, image(target.with_name("a.jpg"), exif=exif, quality=95))
    (entry,) = written(report)
    assert (entry["width"], entry["height"]) == (300, 400)
    # Turned right, the stored (x, y) is shown at (300 − y, x).
    np.testing.assert_allclose(entry["detections"][0]["box"], (80, 40, 240, 140), atol=6)
    with Image.open(report.images[0].annotated) as annotated:
        assert annotated.size == (300, 400) and annotated.format == "JPEG" and not annotated.getexif()


def test_sources_of_every_kind(target):
    root = target.with_name("images")
    for name in ("b/2.PNG", "b/10.jpg", "a/deep/1.bmp", "c/x.webp", "c/[1].png"):
        image(root / name, (40, 30), (4, 6, 14, 22))
    (root / "b/notes.txt").write_text("no image")
    (root / "d.mp4").touch()
    (root / "empty").mkdir()

    def names(*sources: str) -> list[str]:
        found = find([f"{root}/{source}" for source in sources])
        return [Path(path).relative_to(root).as_posix() for path in found]

    assert names("") == ["a/deep/1.bmp", "b/10.jpg", "b/2.PNG", "c/[1].png", "c/x.webp", "d.mp4"]
    assert names("*") == names("")
    assert names("b/*") == ["b/10.jpg", "b/2.PNG"]
    assert names("**/*.bmp") == ["a/deep/1.bmp"]
    assert names("[ac]") == ["a/deep/1.bmp", "c/[1].png", "c/x.webp"]
    assert names("c/[1].png") == ["c/[1].png"]
    assert names("c", "b/2.PNG", "c/x.webp") == ["c/[1].png", "c/x.webp", "b/2.PNG"]
    scenes = ["digits:val:3", "digits:train:0", "digits:train:1"]
    assert find(["digits:val:3", "digits:train:0-1"]) == scenes
    wrong = {
        "none.png": "'none.png': no such file",
        "no*.png": "'no*.png': no image",
        str(root / "empty"): "empty': no images",
        "digits:test:1": "digits:val:0-7",
        "digits:val:5-2": "digits:val:0-7",
        "digits:val:0-99999999": "at most 10,000 at a time",
    }
    with pytest.raises(UserError) as error:
        find([str(root / "b"), *wrong])
    for problem, words in zip(error.value.problems, wrong.values(), strict=True):
        assert words in problem
    with pytest.raises(UserError, match="no images given"):
        find([])


def test_names_from_several_folders_do_not_collide(target):
    root = target.with_name("images")
    kinds = ("a/x.png", "b/x.png", "b/X.bmp", "c/x-2.png", "c/x.jpg")
    sources = [image(root / name, (40, 30), (4, 6, 14, 22)) for name in kinds]
    for _ in range(2):  # once more into the same folder
        report = run(target, *sources)
        names = [entry["annotated"] for entry in written(report)]
        assert names == ["x.png", "x-2.png", "X-3.png", "x-2-2.png", "x-4.jpg"]
        assert "3 images have the same name as an earlier image, so -2, -3 … were" in report.notes[-1]
        files = {*names, "predictions.json", ".rankless-outputs"}
        assert {path.name for path in report.out.iterdir()} == files


def test_a_source_in_the_output_folder_is_refused(target):
    source = image(target.with_name("out") / "x.png")
    before = source.read_bytes()
    with pytest.raises(UserError, match=r"x.png' is in the output folder"):
        run(target, source, force=False)
    other = target.with_name("x.png")
    other.hardlink_to(source)  # as a converted data set has them
    with pytest.raises(UserError, match=r"out/x.png: is an input of this command"):
        run(target, other)
    assert source.read_bytes() == before


def test_an_output_folder_that_cannot_be_made_is_named(target):
    link = target.with_name("link")
    link.symlink_to("nowhere")
    broken = f"cannot be used as the output folder: {link} is a broken link to nowhere; use another folder"
    proc = "cannot be created (No such file or directory); use another folder"
    for out, problem in ((link, broken), (link / "below", broken), (Path("/proc/no"), proc)):
        with pytest.raises(UserError) as caught:
            page.predict(target, ["digits:val:0"], out=out, device="cpu", force=True)
        assert caught.value.problems == (f"--out {out}: {problem}",)


def test_unreadable_images_are_named_and_the_others_go_on(target):
    root = target.with_name("images")
    image(root / "a.png")
    (root / "b.png").write_bytes((root / "a.png").read_bytes()[:200])
    (root / "c.jpg").write_text("no image")
    image(root / "d.png")
    report = run(target, root)
    assert [Path(p.source).name for p in report.images] == ["a.png", "d.png"]
    assert [Path(source).name for source, _ in report.failed] == ["b.png", "c.jpg"]
    assert all(reason for _, reason in report.failed)
    assert report.exit_code == 1
    assert len(written(report)) == 2 and len(report.as_json()["failed"]) == 2


def test_what_cannot_work_is_reported(target, tmp_path):
    source = image(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: cannot be used as the output folder"):
        page.predict(target, [str(source)], out=source, device="cpu")
    with pytest.raises(UserError, match="no such file"):
        page.predict(tmp_path / "none", [str(source)], out=tmp_path / "out", device="cpu")
    weights.save(target, {}, recipe=Recipe(task="other:Task"), class_names=("red",))
    with pytest.raises(UserError, match=r"names the custom task 'other:Task'; .*--task other"):
        run(target, source)


def test_results_replace_results_and_nothing_else(target):
    source, out = image(target.with_name("a.png")), target.with_name("out")
    out.mkdir()
    (out / "predictions.json").write_text("mine")
    with pytest.raises(UserError, match="json: already exists and was not written by rankless predict"):
        run(target, source, force=False)
    assert [path.name for path in out.iterdir()] == ["predictions.json"]
    assert (out / "predictions.json").read_text() == "mine"
    for _ in range(2):
        assert len(written(run(target, source, force=True))) == 1
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UserError) as refused:
        run(target, image(target.with_name("b.png")), force=False)
    assert refused.value.problems == (
        f"--out {out}: contains earlier results; expected a new or empty folder; use another "
        "folder, omit --out to use a numbered folder, or add --force to replace earlier results",
    )
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_without_a_folder_every_prediction_has_its_own(target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = str(image(tmp_path / "a.png"))
    for name in ("predictions", "predictions-2", "predictions-3"):
        report = page.predict(target, [source], device="cpu")
        assert report.out == Path(name) and len(written(report)) == 1 and not report.removed
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(UserError):
        page.predict(broken, [source], device="cpu")
    assert not Path("predictions-4").exists()


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (100, 100), (1500, 40)])
def test_drawing_stays_on_images_of_any_size(size):
    blank = Image.new("RGB", size, (128, 128, 128))
    middle = (size[0] / 2, size[1] / 2)
    boxes = [(0, 0, *size), (size[0] - 1, size[1] - 1, *size), middle + middle, (-5, -5, 3, 3)]
    marks = [Mark(box, f"a name that is long {i}%", i) for i, box in enumerate(boxes)]
    drawn = annotate(blank, marks)
    assert drawn.size == size and blank.getcolors() == [(size[0] * size[1], (128, 128, 128))]
    assert drawn.tobytes() != blank.tobytes()
    assert annotate(blank, []).tobytes() == blank.tobytes()


def test_images_and_weights_that_are_wrong_are_reported_together(target):
    target.write_bytes(target.read_bytes()[:-4])
    with pytest.raises(UserError) as refused:
        page.predict(target, ["gone.png", "none/"], out=target.with_name("out"), device="cuda:x")
    found = "\n".join(refused.value.problems)
    for words in ("'gone.png': no such file", "'none/': no such file", "device 'cuda:x'", str(target)):
        assert words in found, words
    assert not target.with_name("out").exists()


def test_where_no_image_can_be_read_nothing_is_written(target):
    broken, fine = target.with_name("broken.png"), image(target.with_name("fine.png"))
    broken.write_bytes(b"no image")
    report = run(target, broken)
    assert report.exit_code == 2 and not report.out.exists()
    out = run(target, fine).out
    before = {file: file.read_bytes() for file in out.iterdir()}
    assert run(target, broken).removed == []
    assert {file: file.read_bytes() for file in out.iterdir()} == before


@pytest.mark.parametrize("nms", ["iou", "diou"])
@pytest.mark.parametrize("agnostic", [False, True])
@pytest.mark.parametrize("multi_label", [False, True])
def test_lower_scores_displace_nothing(nms: Any, agnostic: bool, multi_label: bool) -> None:
    """What is found above a confidence is the same where candidates below it take part."""
    generator = torch.Generator().manual_seed(3)
    corners = torch.rand(300, 2, generator=generator) * 40
    boxes = torch.cat([corners, corners + 5 + 20 * torch.rand(300, 2, generator=generator)], 1)
    scores = torch.rand(300, 3, generator=generator) ** 2

    def found(confidence: float) -> Detections:
        settings = Evaluate(
            confidence=confidence, nms=nms, class_agnostic=agnostic, multi_label=multi_label, detections=40
        )
        task = Detect(Recipe(evaluate=settings), class_names=("a", "b", "c"))
        return task._best(0, Letterbox(1.0, 0.0, 0.0, 64, 64), boxes, scores)

    low, high = found(0.05), found(0.5)
    above = low.scores > 0.5
    assert int(above.sum()) > 0 and (len(above) == 40 or not above.all())
    assert torch.equal(low.boxes[above], high.boxes) and torch.equal(low.scores[above], high.scores)
    assert torch.equal(low.labels[above], high.labels)
