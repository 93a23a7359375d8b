"""An imported network answers as it did where it comes from: precision, preprocessing, boxes and classes."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn

from rankless import cli
from rankless.inference.predict import predict
from rankless.interop.export import export
from rankless.interop.importing import import_weights
from rankless.models import zoo
from rankless.models.darknet.cfg_text import write_cfg
from rankless.models.detectors import darknet
from rankless.models.weights_files import weights
from rankless.models.weights_files.darknet_weights import read_weights, write_weights
from rankless.recipe.schema import Model

pytestmark = pytest.mark.slow
NAMES = ("cat", "dog", "motorcycle")
NARROW = Model(name="yolov3-tiny", width=0.25, image_size=96)


def seeded(model: nn.Module, seed: int = 3) -> nn.Module:
    """Weights with outputs that vary, and statistics as after a training."""
    torch.manual_seed(seed)
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            nn.init.uniform_(one.weight, 0.8, 1.6)
            nn.init.normal_(one.bias, std=0.3)
            nn.init.normal_(one.running_mean, std=0.1)
            nn.init.uniform_(one.running_var, 0.2, 1.0)
        elif isinstance(one, nn.Conv2d) and one.bias is not None:
            nn.init.normal_(one.weight, std=0.01)
            nn.init.normal_(one.bias, std=0.5)
    return model.eval()


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Darknet network of seeded weights, imported."""
    folder, network = tmp_path_factory.mktemp("net"), darknet.network(NARROW, len(NAMES))
    torch.manual_seed(1013)  # with others, boxes are a pixel or two apart, which data leaves out
    state = seeded(zoo.build(NARROW, len(NAMES))).state_dict()
    numbers, cfg, names = (folder / f"net.{ending}" for ending in ("weights", "cfg", "names"))
    write_weights(numbers, network, state, seen=12345)
    cfg.write_text(write_cfg(network).replace("width=416", "width=96").replace("height=416", "height=96"))
    names.write_text("\n".join(NAMES))
    import_weights(numbers, folder / "net.safetensors", cfg=cfg, names=names)
    return folder


@pytest.fixture
def net(imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The network's weights file in a working directory of its own, with the files they were made of."""
    shutil.copytree(imported, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("net.safetensors")


def coco(folder: Path, names: tuple[str, ...], images: int = 4) -> dict:
    """A small data set in COCO's format; the categories in this order."""
    rng = np.random.default_rng(1)
    for part in ("annotations", "val"):
        (folder / part).mkdir(parents=True)
    boxes = []
    for number in range(images):
        pixels = rng.integers(0, 255, (20, 30, 3), np.uint8).repeat(6, 0).repeat(6, 1)
        Image.fromarray(pixels).save(folder / "val" / f"{number}.png")
        for _ in range(3):
            x, y = rng.integers(0, 100), rng.integers(0, 60)
            boxes.append((number, int(rng.integers(3)), [int(x), int(y), 60, 50]))
    tree = {
        "images": [{"id": n, "file_name": f"{n}.png", "width": 180, "height": 120} for n in range(images)],
        "categories": [{"id": 10 + n, "name": name} for n, name in enumerate(names)],
        "annotations": annotations(boxes),
    }
    for split in ("train", "val"):
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(tree))
    (folder / "train").symlink_to("val")
    return tree


def annotations(boxes: list[tuple[int, int, list]]) -> list[dict]:
    return [
        {"id": n, "image_id": image, "category_id": 10 + label, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
        for n, (image, label, b) in enumerate(boxes, 1)
    ]  # fmt: skip


def annotate_what_is_found(net: Path, folder: Path) -> dict:
    """Make some of what the network finds in the images their truth, so that it scores above 0."""
    found = predict(net, [str(folder / "val")], out=Path("truth"), confidence=0.0, device="cpu")
    file = folder / "annotations" / "instances_val.json"
    boxes = [
        (image, row["label"], [x1, y1, x2 - x1, y2 - y1])
        for image, one in enumerate(found.images)
        for row in one.detections[:20:5]
        for x1, y1, x2, y2 in [row["box"]]
    ]
    tree = json.loads(file.read_text()) | {"annotations": annotations(boxes)}
    file.write_text(json.dumps(tree))
    return tree


def test_the_recipe_says_how_darknet_did_it(net: Path):
    recipe = weights.load(net).recipe
    assert (recipe.precision, recipe.data.resample, recipe.data.pad) == ("fp32", "darknet", 128)
    assert (recipe.data.fit, recipe.evaluate.iou) == ("stretch", 0.45)
    import_weights(
        Path("net.weights"), Path("other"), cfg=Path("net.cfg"), overrides=["precision=auto", "data.pad=7"]
    )
    assert weights.load(Path("other")).recipe.precision == "auto"


@pytest.mark.processes
def test_evaluate_and_predict_agree_and_name_their_precision(net: Path, capsys):
    """The AP of what ``predict`` writes, by pycocotools, is that of ``evaluate``."""
    coco(Path("data"), NAMES)
    tree = annotate_what_is_found(net, Path("data"))
    images, found = [f"data/val/{n}.png" for n in range(4)], {}
    for several in ("false", "true"):
        options = ["data.root=data", f"evaluate.multi_label={several}", "evaluate.confidence=0.001"]
        assert cli.main(["evaluate", str(net), *options, "--devices", "1", "--json"]) == 0
        scores = json.loads(capsys.readouterr().out)
        assert scores["computed_in"] == "fp32"
        words = ["--save", "coco", "--confidence", "0.001", "--device", "cpu", "--out", several, "--json"]
        words += ["evaluate.multi_label=true"] * (several == "true")  # the best class is the default
        assert cli.main(["predict", str(net), *images, *words]) == 0
        assert json.loads(capsys.readouterr().out)["computed_in"] == "fp32"
        known = {one["file_name"]: one["id"] for one in tree["images"]}
        theirs = json.loads(Path(several, "coco_images.json").read_text())["images"]
        ids = {one["id"]: known[one["file_name"]] for one in theirs}
        results = [
            one | {"image_id": ids[one["image_id"]], "category_id": one["category_id"] + 9}
            for one in json.loads(Path(several, "coco_results.json").read_text())
        ]
        expected = by_pycocotools(Path("data/annotations/instances_val.json"), results)
        assert [scores["AP"], scores["AP50"], scores["AR100"]] == pytest.approx(
            [expected[0], expected[1], expected[8]], abs=1e-6
        )
        found[several] = scores["AP"]
    assert 0 < found["false"] != pytest.approx(found["true"], abs=1e-3)
    assert cli.main(["predict", str(net), images[0], "--out", "shown", "--device", "cpu", "--force"]) == 0
    assert "in fp32" in capsys.readouterr().out


def by_pycocotools(file: Path, results: list[dict]) -> list[float]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


@pytest.mark.processes
def test_data_with_the_classes_in_another_order_and_spelling(net: Path, capsys):
    coco(Path("same"), NAMES)
    tree = annotate_what_is_found(net, Path("same"))
    other = coco(Path("other"), ("motorbike", "Dog", "cat"))
    for one in tree["annotations"]:
        one["category_id"] = 22 - one["category_id"]  # the same objects in the other order
    changed = {**other, "annotations": tree["annotations"]}
    Path("other/annotations/instances_val.json").write_text(json.dumps(changed))
    found = []
    for root in ("same", "other"):
        words = ["evaluate", str(net), f"data.root={root}", "evaluate.confidence=0.02", "--devices", "1"]
        assert cli.main([*words, "--json"]) == 0
        captured = capsys.readouterr()
        found.append(json.loads(captured.out))
    assert "motorbike  → motorcycle" in captured.err and "Dog        → dog" in captured.err
    assert found[0]["AP"] == found[1]["AP"] > 0
    assert found[0]["per_class"] == found[1]["per_class"]
    coco(Path("more"), ("cat", "dog", "owl"))
    assert cli.main(["evaluate", str(net), "data.root=more", "--devices", "1"]) == 2
    assert "the model has no class 'owl'" in (error := capsys.readouterr().err)
    assert "--classes-map 'owl=motorcycle'" in error and "Traceback" not in error
    words = ["evaluate", str(net), "data.root=more", "--devices", "1", "--classes-map"]
    Path("map.txt").write_text("owl=\n")
    assert cli.main([*words, "map.txt"]) == 0
    captured = capsys.readouterr()
    assert "owl  → (dropped)" in captured.err
    assert "computed_in" in captured.out and "fp32" in captured.out
    assert cli.main([*words, "owl"]) == 2
    assert "expected DATA=MODEL pairs separated by commas" in capsys.readouterr().err


def test_predict_accepts_changes_to_the_recipe_and_refuses_keys_without_effect(net: Path, capsys):
    coco(Path("data"), NAMES)
    counts = []
    for changes in ("evaluate.iou=0.1", "evaluate.iou=0.9", "evaluate.iou=0.9 evaluate.detections=7"):
        words = ["predict", str(net), "data/val/0.png", *changes.split(), "--out", "o", "--force"]
        assert cli.main([*words, "--confidence", "0.0", "--json"]) == 0
        counts.append(len(json.loads(capsys.readouterr().out)["images"][0]["detections"]))
    assert counts[0] < counts[1] and counts[2] == 7
    words = ["predict", str(net), "data/val/0.png", "optim.lr=1", "evaluate.confidence=0.1", "data.padd=3"]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "key 'optim.lr': prediction does not use it" in error and "use --confidence" in error


def test_darknets_own_files_say_import_them_first(net: Path, capsys):
    assert cli.main(["predict", "net.weights", "x.png"]) == 2
    command = "rankless import net.weights --cfg net.cfg --names net.names --out net.safetensors"
    assert f"must be imported first; run `{command}`" in capsys.readouterr().err
    Path("yolov4.weights").write_bytes(b"x")
    assert cli.main(["evaluate", "yolov4.weights"]) == 2
    assert "rankless import yolov4.weights --model yolov4 --out" in capsys.readouterr().err
    for model, cfg in (("yolo-fastest", "yolo-fastest.cfg"), ("own/net.cfg", "own/net.cfg")):
        assert cli.main(["import", "net.weights", "--model", model, "--out", "o"]) == 2
        assert f"network, use --cfg {cfg}" in capsys.readouterr().err


def test_the_number_of_images_seen_survives(net: Path):
    export(net, format="darknet", out=Path("back"))
    network = darknet.network(NARROW, len(NAMES))
    assert read_weights(Path("back.weights"), network).seen == 12345
    assert Path("back.weights").read_bytes() == Path("net.weights").read_bytes()


def test_a_state_dict_for_pytorch(net: Path, capsys):
    assert cli.main(["export", str(net), "--format", "pth", "--out", "mine"]) == 0
    state, ours = torch.load("mine.pth", weights_only=True), weights.load(net).state
    assert state.keys() == ours.keys() and all(torch.equal(state[name], ours[name]) for name in ours)
    import_weights(Path("mine.pth"), Path("again"), overrides=["model.cfg=net.cfg"])
    assert weights.digest(weights.load(Path("again")).state) == weights.digest(ours)


def test_imagenets_classifiers_see_the_middle_of_the_image(tmp_path: Path):
    """As torchvision's own preset preprocesses: the shorter side to 256, the middle 224, normalized."""
    torch.manual_seed(1)
    theirs = torchvision.models.resnet18(num_classes=5).eval()
    torch.save(theirs.state_dict(), tmp_path / "their.pth")
    import_weights(tmp_path / "their.pth", tmp_path / "ours", model="resnet18")
    recipe = weights.load(tmp_path / "ours").recipe
    assert (recipe.precision, recipe.data.augment.crop) == ("fp32", 0.08)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (17, 30, 3), np.uint8).repeat(20, 0).repeat(21, 1)
    image = Image.fromarray(pixels)
    image.save(tmp_path / "a.png")
    preset = torchvision.transforms._presets.ImageClassification(crop_size=224, resize_size=256)
    with torch.no_grad():
        expected = theirs(preset(image)[None]).softmax(1)[0]
    report = predict(tmp_path / "ours", [str(tmp_path / "a.png")], out=tmp_path / "o", device="cpu")
    found = {row["label"]: row["score"] for row in report.images[0].classes}
    for label, score in enumerate(expected.tolist()):
        assert found[label] == pytest.approx(score, abs=2e-3)


def test_the_snippet_of_the_docs_loads_a_weights_file(tmp_path: Path, monkeypatch, capsys):
    """In docs/weights.md: nothing of this project is imported in it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(2)
    torch.save(torchvision.models.resnet18(num_classes=3).state_dict(), "their.pth")
    import_weights(Path("their.pth"), Path("ours.safetensors"), model="resnet18")
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    code = page.partition("<!-- plain-pytorch -->\n```python\n")[2].partition("```")[0]
    assert len(code.split("\n")) - code.count("\n\n") - 1 == 5 and "rankless" not in code
    exec(compile(code, "weights.md", "exec"), {})
    assert "tensor([[0." in capsys.readouterr().out
