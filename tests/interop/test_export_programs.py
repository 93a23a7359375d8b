"""Exported programs compute what PyTorch computes, in the hands of the software they are made for."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.ops import batched_nms

from rankless.cli import main
from rankless.errors import UserError
from rankless.inference.predict import predict
from rankless.interop.export import export
from rankless.interop.export_plan import Plan
from rankless.launch import rank_job
from rankless.launch.export_benchmark import benchmark
from rankless.launch.job import Job
from rankless.models.classifiers.catalog import build_classifier
from rankless.models.exported.modules import ExportedDetector
from rankless.models.weights_files import weights
from rankless.recipe import load
from rankless.recipe.loss_kinds import CrossEntropyLoss
from rankless.recipe.model_kinds import AnyModel, Densenet, DensenetModel
from rankless.recipe.schema import Data, Recipe
from rankless.world.process_group import join
from support.small_detector import (
    CONFIDENCE,
    IOU,
    NAMES,
    SIDE,
    detector,
    images_in,
    of_page,
    prints_the_objects,
    save,
)

pytestmark = pytest.mark.slow  # nearly each exports, or reads what takes seconds to export


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return images_in(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("trained") / "mine.safetensors")


@pytest.fixture(scope="module")
def exported(trained: Path) -> dict[str, Path]:
    """ONNX files of it: of any size, and with NMS."""
    asked: dict[str, dict[str, Any]] = {
        "raw": {"any_size": True},
        "nms": {"nms": True, "confidence": CONFIDENCE, "overrides": [f"evaluate.iou={IOU}"]},
    }
    for name, options in asked.items():
        done = export(trained, format="onnx", out=trained.with_name(name), **options)
        assert done.files == (trained.with_name(f"{name}.onnx"),)
        assert done.agreement is not None and done.agreement.images == 4
    return {name: trained.with_name(f"{name}.onnx") for name in asked}


def opened(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def batch(count: int, height: int = SIDE, width: int = SIDE) -> torch.Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(1))


def test_onnx_runtime_computes_any_batch_and_any_size(exported: dict[str, Path]) -> None:
    _, model = detector()
    session = opened(exported["raw"])
    (given,) = session.get_inputs()
    assert (given.name, given.shape[0], given.shape[2:]) == ("images", "batch", ["height", "width"])
    assert [one.name for one in session.get_outputs()] == ["boxes", "scores"]
    for shape in ((1, 64, 64), (5, 64, 64), (2, 96, 160)):
        seen = batch(*shape)
        with torch.no_grad():
            wanted = model.decode(model(seen))
        for ours, theirs in zip(wanted, session.run(None, {"images": seen.numpy()}), strict=True):
            np.testing.assert_allclose(theirs, ours.numpy(), rtol=1e-5, atol=1e-4)


def test_nms_inside_leaves_what_torchvision_leaves(exported: dict[str, Path]) -> None:
    _, model = detector()
    seen = batch(2)
    rows = opened(exported["nms"]).run(None, {"images": seen.numpy()})[0]
    with torch.no_grad():
        boxes, scores = model.decode(model(seen))
    wanted = []
    for image in range(2):
        best, labels = scores[image].max(1)
        (high,) = torch.where(best > CONFIDENCE)
        kept = high[batched_nms(boxes[image][high], best[high], labels[high], IOU)]
        columns = torch.full((len(kept), 1), float(image)), best[kept, None], labels[kept, None]
        wanted.append(torch.cat((columns[0], boxes[image][kept], *columns[1:]), 1))
        assert 0 < len(kept) < len(high), "NMS has something to remove"
    np.testing.assert_allclose(rows, torch.cat(wanted).numpy(), rtol=1e-5, atol=1e-4)


def test_predictions_of_exports_are_those_of_the_weights(trained, exported, images, tmp_path):
    iou, options = f"evaluate.iou={IOU}", {"confidence": CONFIDENCE, "device": "cpu"}
    changes = ("precision=fp32", iou)
    wanted = predict(trained, images, out=tmp_path / "weights", overrides=changes, **options).predictions()
    assert sum(len(image["detections"]) for image in wanted) > 5
    for name, path in exported.items():
        changes = (iou,) if name == "raw" else ()
        found = predict(path, images, out=tmp_path / name, overrides=changes, **options)
        for ours, theirs in zip(wanted, found.predictions(), strict=True):
            names = {name: one for name, one in ours.items() if name != "detections"}
            assert names == {name: one for name, one in theirs.items() if name != "detections"}
            for first, second in zip(ours["detections"], theirs["detections"], strict=True):
                assert first["name"] == second["name"]
                assert first["score"] == pytest.approx(second["score"], abs=1e-5)
                np.testing.assert_allclose(first["box"], second["box"], atol=0.011)


def test_what_cannot_be_compared_is_said(trained: Path, tmp_path: Path) -> None:
    done = export(trained, format="torchscript", out=tmp_path / "net", nms=True, confidence=0.9999)
    said = done.agreement.sentence()
    assert said.startswith("neither PyTorch nor the export finds objects in 4 images of ")
    assert said.endswith("use a lower --confidence, or set data.root to a folder with other images")


def test_the_file_says_what_it_needs_and_finds(trained: Path, exported: dict[str, Path]) -> None:
    said = opened(exported["nms"]).get_modelmeta().custom_metadata_map
    assert json.loads(said["class_names"]) == list(NAMES)
    assert json.loads(said["preprocessing"]) == {
        "channels": "RGB", "range": [0.0, 1.0], "height": SIDE, "width": SIDE,
        "resize": "bilinear, antialiased", "fit": "letterbox", "pad": 114,
    }  # fmt: skip
    assert json.loads(said["nms"]) == {"confidence": CONFIDENCE, "iou": IOU, "class_agnostic": False}
    assert list(json.loads(said["outputs"])) == ["detections"]
    assert said["digest"] == weights.digest_file(trained)


@pytest.mark.parametrize("format", ["torchscript", "pt2"])
def test_pytorchs_own_formats_compute_the_same_and_are_not_run_by_us(format, trained, exported, tmp_path):
    options = {"overrides": f"evaluate.iou={IOU}", "nms": True, "confidence": CONFIDENCE}
    (path,) = export(trained, format=format, out=tmp_path / "net", **options).files
    seen = batch(2)
    wanted = opened(exported["nms"]).run(None, {"images": seen.numpy()})[0]
    if format == "pt2":
        module: Any = torch.export.load(path).module()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer releases deprecate it
            module = torch.jit.load(str(path))
    with torch.no_grad():
        np.testing.assert_allclose(module(seen).numpy(), wanted, rtol=1e-5, atol=1e-4)
        assert len(module(batch(5))) > len(wanted), "any number of images"
    with pytest.raises(UserError, match=r"program, and Rankless .* code .* files; use the"):
        predict(path, ["digits:val:0"], out=tmp_path / "found")


def test_openvino_computes_the_same(trained: Path, images: list[str], tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    done = export(trained, format="openvino", out=tmp_path / "net", half=True)
    assert [path.name for path in done.files] == ["net.xml", "net.bin"]
    _, model = detector()
    seen = batch(2)
    with torch.no_grad():
        _, scores = model.decode(model(seen))
    computed = openvino.Core().compile_model(str(done.files[0]), "CPU")(seen.numpy())
    np.testing.assert_allclose(computed[1], scores.numpy(), atol=0.02)
    found = predict(done.files[0], images, out=tmp_path / "found", device="cpu")
    assert found.precision == "fp16" and len(found.images) == 3


def test_scores_of_an_export_are_those_of_the_weights(trained, exported, images, tmp_path):
    """The truth is some of what the model finds, so that its AP is neither 0 nor 1."""
    (tmp_path / "data/images/val").mkdir(parents=True)
    (tmp_path / "data/labels/val").mkdir(parents=True)
    for found in predict(trained, images, out=tmp_path / "found", device="cpu").images:
        (tmp_path / "data/images/val" / Path(found.source).name).write_bytes(Path(found.source).read_bytes())
        lines = []
        for one in found.detections[::2]:
            x1, y1, x2, y2 = one["box"]
            center = (x1 + x2) / 2 / found.width, (y1 + y2) / 2 / found.height
            size = (x2 - x1) / found.width, (y2 - y1) / found.height
            lines.append(f"{one['label']} {' '.join(map(str, (*center, *size)))}")
        label = tmp_path / "data/labels/val" / f"{Path(found.source).stem}.txt"
        label.write_text("\n".join(lines) + "\n")
    text = f"path: {tmp_path}/data\ntrain: images/val\nval: images/val\nnames: {json.dumps(NAMES)}\n"
    (tmp_path / "data/data.yaml").write_text(text, encoding="utf-8")
    data = f"data.root={tmp_path}/data/data.yaml"
    measured = benchmark(trained, overrides=[data], formats=["torchscript"], batch=2, seconds=0.01)
    recipe = replace(load.changed(weights.load(trained).recipe, [data]), precision="fp32")
    scores = []
    for path in (trained, exported["raw"]):
        job = Job("evaluate", load.to_json(recipe), str(tmp_path), weights=str(path))
        with join(inline=True) as world:
            scores.append(rank_job.evaluate(job, recipe, world)["scores"])
    assert 0.1 < scores[0]["AP"] < 0.95
    for name in ("AP", "AP50", "AP75", "AR100"):
        assert scores[1][name] == pytest.approx(scores[0][name], abs=1e-6), name
    assert "loss" in scores[0] and "loss" not in scores[1]
    with join(inline=True) as world, pytest.raises(UserError, match=r"precision is 'bf16', but .*raw\.onnx"):
        job = Job("evaluate", "", str(tmp_path), weights=str(exported["raw"]))
        rank_job.evaluate(job, replace(recipe, precision="bf16"), world)
    pytorch, script = measured.rows
    assert (pytorch.format, script.format) == ("pytorch", "torchscript")
    assert pytorch.score == pytest.approx(scores[0]["AP"]) == script.score
    assert script.images_per_second and script.megabytes and script.difference is not None
    assert all(len(line) <= 80 for line in [*measured.table()][2:-2])


def test_a_fixed_number_of_images_is_filled_and_cut() -> None:
    class Two:
        """Finds as many boxes in an image as its brightness says; takes two images."""

        texts: ClassVar[dict[str, str]] = {}
        shape = (2, 3, None, None)

        def __call__(self, images: Any) -> list[Any]:
            assert len(images) == 2
            rows = [[n, 0, 0, 9, 9, 0.9, 1] for n in range(2) for _ in range(int(images[n, 0, 0, 0]))]
            return [np.array(rows, np.float32).reshape(-1, 7)]

    model = ExportedDetector(Two(), "it", classes=3, nms=True)
    counts = [3, 0, 2, 1, 4]
    seen = torch.tensor(counts, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    boxes, scores = model.decode(model(seen))
    assert boxes.shape == (5, 4, 4) and scores.shape == (5, 4, 3)
    assert (scores > 0).sum((1, 2)).tolist() == counts


def test_the_page_shows_how_to_run_a_file_without_rankless(
    trained, exported, images, tmp_path, monkeypatch, capsys
):
    code = of_page("export.md", "plain-onnx")
    (tmp_path / "net.onnx").write_bytes(exported["nms"].read_bytes())
    # Not resized, as Pillow and torchvision round differently, which this network magnifies.
    photo = Image.open(images[1]).crop((0, 0, SIDE, 40))
    prints_the_objects(code, trained, photo, tmp_path, monkeypatch, capsys)


def small_classifier(path: Path) -> Any:
    model: AnyModel = DensenetModel(
        name="densenet-40-12", densenet=Densenet(depth=7, growth=4), image_size=32
    )
    torch.manual_seed(0)
    network: Any = build_classifier(model, len(NAMES)).eval()
    recipe = Recipe(task="classify", model=model, loss=CrossEntropyLoss(), data=Data(root="gone"))
    weights.save(path, network.state_dict(), recipe=recipe, class_names=NAMES)
    return network


def test_classifiers_take_images_as_they_are(images: list[str], tmp_path: Path) -> None:
    trained = tmp_path / "mine.safetensors"
    network = small_classifier(trained)
    done = export(trained, format="onnx", out=tmp_path / "net")
    seen = batch(3, 32, 32)
    variant = network.variant
    mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (variant.mean, variant.std))
    with torch.no_grad():
        wanted = network((seen - mean) / std).softmax(1)
    (probabilities,) = opened(done.files[0]).run(None, {"images": seen.numpy()})
    np.testing.assert_allclose(probabilities, wanted.numpy(), atol=1e-6)
    network_of_opencv = cv2.dnn.readNetFromONNX(str(done.files[0]))
    network_of_opencv.setInput(seen.numpy()[:1])
    np.testing.assert_allclose(network_of_opencv.forward(), probabilities[:1], atol=1e-5)
    reports = [
        predict(path, images, out=tmp_path / path.suffix[1:], device="cpu", overrides=changes)
        for path, changes in ((trained, ("precision=fp32",)), (done.files[0], ()))
    ]
    first, second = ([image.classes for image in report.images] for report in reports)
    assert first == second and len(first) == 3


def test_half_precision_is_as_close_as_it_can_be(trained: Path, tmp_path: Path) -> None:
    done = export(trained, format="onnx", out=tmp_path / "net", half=True)
    assert done.agreement is not None and 1e-6 < done.agreement.scores < 0.02
    kinds = {one.data_type for one in onnx.load(done.files[0]).graph.initializer if one.dims}
    assert onnx.TensorProto.FLOAT16 in kinds
    assert opened(done.files[0]).get_outputs()[0].type == "tensor(float)"


def test_what_computes_something_else_is_discarded(trained, tmp_path, monkeypatch, capsys):
    make = Plan.with_nms

    def altered(plan: Plan) -> nn.Module:
        made = make(plan)
        with torch.no_grad():
            next(made.parameters()).mul_(1.05)
        return made

    monkeypatch.setattr(Plan, "with_nms", altered)
    (tmp_path / "net.torchscript").write_text("old")
    words = ["export", str(trained), "--format", "torchscript", "--out", str(tmp_path / "net"), "--force"]
    assert main(words) == 1
    problem = "the export was discarded, because its results differ from PyTorch's (compared with"
    assert f"net.torchscript: {problem}" in capsys.readouterr().err
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("net.torchscript", "old")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--confidence", "0.5"], "--confidence has an effect only with --nms; add --nms, or remove"),
        (["--nms", "evaluate.nms=diou"], "the recipe's evaluate.nms is 'diou'; add evaluate.nms=iou"),
        (["--nms", "--confidence", "2"], "--confidence is 2; expected a number from 0 to 1"),
        (["optim.lr=1"], "key 'optim.lr': has no effect on an export; expected one of model.image_size"),
        (["--batch", "none"], "--batch is 'none': expected a whole number of at least 1"),
        (["digits"], "'digits': expected key=value, as in evaluate.iou=0.5"),
    ],
)
def test_options_that_do_not_fit_are_errors(options, said, trained, capsys):
    assert main(["export", str(trained), "--format", "onnx", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", ["digest FILE", "train digits model.pretrained=FILE --run new"])
def test_an_export_in_the_place_of_weights_is_named(words, exported, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("FILE", str(exported["raw"])) for word in words.split()]) == 2
    said = capsys.readouterr().err
    assert re.search(r"raw\.onnx'?: (is )?an ONNX file", said)
    assert "from which it was exported" in said
    assert list(tmp_path.iterdir()) == []


def test_an_ending_in_the_name_is_not_doubled(trained: Path, tmp_path: Path) -> None:
    done = export(trained, format="pth", out=tmp_path / "net.pth")
    assert [file.name for file in done.files] == ["net.pth"]
    done = export(trained, format="darknet", out=tmp_path / "net.v2.cfg")
    assert [file.name for file in done.files] == ["net.v2.cfg", "net.v2.weights", "net.v2.names"]


def test_files_that_cannot_be_exported_or_read_are_errors(trained, exported, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"raw\.onnx: is an ONNX file, .*; use the run or the weights file"):
        export(exported["raw"], format="onnx", out=tmp_path / "net")
    with pytest.raises(UserError, match=r"expected images of 64 × 64 pixels, got 96 × 96; remove"):
        predict(exported["nms"], ["digits:val:0"], out=tmp_path / "1", overrides=("model.image_size=96",))
    (tmp_path / "damaged.onnx").write_bytes(exported["raw"].read_bytes()[:100])
    with pytest.raises(UserError, match=r"damaged\.onnx: cannot be read as ONNX \("):
        predict(tmp_path / "damaged.onnx", ["digits:val:0"])
    strange = onnx.load(exported["raw"])
    del strange.metadata_props[:]
    onnx.save(strange, tmp_path / "strange.onnx")
    with pytest.raises(UserError, match=r"strange\.onnx: .* classes .*rankless export"):
        predict(tmp_path / "strange.onnx", ["digits:val:0"])
    small_classifier(tmp_path / "classes.safetensors")
    with pytest.raises(UserError) as caught:
        export(tmp_path / "classes.safetensors", format="onnx", nms=True, any_size=True)
    assert [one.partition(" is for")[0] for one in caught.value.problems] == ["--nms", "--any-size"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--formats", "onnx,onyx"],
            "--formats contains 'onyx': expected one of onnx, torchscript, pt2, open",
        ),
        (["--seconds", "0"], "--seconds is 0: expected a number above 0 and at most 3600"),
        (["--batch", "0"], "--batch is '0': expected a whole number of at least 1"),
        (["evaluate.best=loss"], "key 'evaluate.best': has no effect on an export; expected one of"),
    ],
)
def test_what_cannot_be_measured_is_an_error(options, said, trained, capsys):
    assert main(["benchmark", str(trained), *options]) == 2
    assert said in capsys.readouterr().err
