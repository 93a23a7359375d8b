"""``rankless import``: the written weights file computes what the checkpoint's model did."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from rankless import cli
from rankless.interop.importing import checked_name, import_weights
from rankless.models import zoo
from rankless.models.classifiers.catalog import build_classifier
from rankless.models.detectors import darknet
from rankless.models.detectors.convolutional import DetectionModel
from rankless.models.weights_files import ports, weights
from rankless.recipe.schema import Model

NARROW = "model.width=0.125"


@functools.cache
def detector(classes: int) -> DetectionModel:
    torch.manual_seed(classes)
    model = zoo.build(Model(width=0.125), classes)
    model(torch.rand(2, 3, 64, 64))  # statistics of its own
    return model.eval()


@pytest.fixture(scope="module")
def checkpoint() -> bytes:
    state = {f"module.{name}": tensor for name, tensor in detector(3).state_dict().items()}
    torch.save({"model": state, "epoch": 7}, content := io.BytesIO())
    return content.getvalue()


@pytest.fixture
def place(checkpoint: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a checkpoint of three classes."""
    monkeypatch.chdir(tmp_path)
    Path("their.pt").write_bytes(checkpoint)
    return tmp_path


def run(*words: str) -> int:
    return cli.main(["import", *words])


def test_the_weights_file_computes_the_same(place, capsys):
    (place / "coco.names").write_text("cat\nbig dog \n犬\n\n")
    words = ["their.pt", "--out", "ours.st", "--model", "yolov4-tiny", "--names", "coco.names", NARROW]
    assert run(*words) == 0
    out = capsys.readouterr().out
    loaded = weights.load(Path("ours.st"))
    assert loaded.class_names == ("cat", "big dog", "犬")
    assert (loaded.recipe.task, loaded.recipe.model.name, loaded.recipe.model.width) == (
        "detect", "yolov4-tiny", 0.125)  # fmt: skip
    source, model = detector(3), zoo.build(loaded.recipe.model, 3).eval()
    weights.load_into(model, loaded.state, "ours")
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(source(images), model(images), strict=True):
            assert torch.equal(a, b)
    assert weights.digest(source.state_dict()) in out
    assert "under 'model'" in out and "prefix 'module.'" in out
    assert f"{len(loaded.state)} of {len(loaded.state)} tensors" in out


@pytest.mark.slow
@pytest.mark.parametrize("classes", [1, 3, 80])
def test_the_number_of_classes_is_read_off_the_head(place, capsys, classes):
    torch.save(detector(classes).state_dict(), "their.pt")
    assert run("their.pt", "--out", "ours", NARROW, "model.name=yolov4-tiny", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["class_names"] == [str(n) for n in range(classes)]
    assert report["taken"] == report["tensors"]
    assert report["sha256"] == weights.digest_file(Path("ours"))
    assert any("numbered from 0 to" in note for note in report["notes"])


def written_elsewhere(kind: str) -> dict[str, torch.Tensor]:
    """The tensors of a yolov4-tiny as other programs or other settings leave them."""
    state = detector(3).state_dict()
    if kind == "backbone":
        return dict(list(state.items())[: len(state) * 2 // 3])
    if kind == "port":
        network = darknet.network(Model(width=0.125), 3)
        return {theirs: state[mine] for mine, theirs in ports._names(ports.PORTS["eriklindernoren"], network)}
    if kind == "involution":
        model = Model(width=0.125, involution={"kernel": 5})
        return zoo.build(model, 3).state_dict()
    return {re.sub(r"^(layers\.[0-9]\.)", r"\1_orig_mod.", name): one for name, one in state.items()}


@pytest.mark.parametrize(
    ("kind", "advised"),
    [
        ("backbone", "--partial"),
        ("port", "--from eriklindernoren"),
        ("involution", "model.involution.kernel=5"),
        ("compiled part", ""),
    ],
)
def test_weights_that_belong_lead_to_the_option_that_loads_them(place, capsys, kind, advised):
    torch.save(state := written_elsewhere(kind), "their.pt")
    words = ["their.pt", "--out", "o", "--model", "yolov4-tiny", NARROW]
    if advised:
        assert run(*words) == 2
        said = re.search("; add (.+?)(?: \\(.*\\))?, which would load ([0-9]+) of", capsys.readouterr().err)
        assert said and said.groups() == (advised, str(len(state)))
    assert run(*words, *advised.split()) == 0
    assert f"imported {len(state)} of " in capsys.readouterr().out


def test_weights_of_another_network_lead_to_no_option(place, capsys):
    torch.save({f"x.{name}": one for name, one in written_elsewhere("backbone").items()}, "their.pt")
    assert run("their.pt", "--out", "o", "--model", "yolov4-tiny", NARROW) == 2
    assert "set --model to the model of the weights" in capsys.readouterr().err


@pytest.mark.slow
def test_a_partial_import_leaves_the_head_as_the_seed_gives_it(place):
    (place / "names").write_text('["a", "b"]')
    source = Path("their.pt").rename("their-20261122.pth")
    options = {"model": "yolov4-tiny", "names": Path("names"), "overrides": [NARROW, "seed=4"]}
    reports = [import_weights(source, Path(f"{n}"), partial=True, **options) for n in range(2)]
    assert reports[0].sha256 == reports[1].sha256 and "but its name contains 20261122" in reports[0].notes[0]
    assert reports[0].tensors - reports[0].taken == 4  # weight and bias of two heads
    state = weights.load(Path("0")).state
    theirs = detector(3).state_dict()
    same = [name for name in state if state[name].shape == theirs[name].shape]
    assert len(same) == reports[0].taken
    assert all(torch.equal(state[name], theirs[name]) for name in same)
    options["overrides"] = [NARROW, "seed=5"]
    other = import_weights(source, Path("other"), partial=True, **options)
    assert other.sha256 != reports[0].sha256


def test_the_sha_256_in_a_name_is_compared(tmp_path):
    sha = hashlib.sha256(b"weights").hexdigest()[:8]
    for name, said in (
        (f"resnet18-{sha}.pth", f"the SHA-256 of the file matches the digits in its name ({sha})"),
        ("mine-20261122.pth", f"warning: the SHA-256 of the file starts with {sha}, but its name contains"),
        ("w.pth", ""),
    ):
        (tmp_path / name).write_bytes(b"weights")
        notes = checked_name(tmp_path / name)
        assert notes[0].startswith(said) if said else not notes


def test_nothing_is_overwritten_unasked(place, capsys):
    (place / "ours").write_text("mine")
    words = ["their.pt", "--out", "ours", "--model", "yolov4-tiny", NARROW]
    assert run(*words) == 2
    assert "--force to replace" in capsys.readouterr().err
    assert (place / "ours").read_text() == "mine"
    assert run(*words, "--force") == 0
    assert len(weights.load(Path("ours")).class_names) == 3
    assert run("their.pt", "--out", "./their.pt", "--force", "--model", "yolov4-tiny") == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert sorted(file.name for file in place.iterdir()) == ["ours", "their.pt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (["gone.pt", "--out", "no/where"], ["gone.pt: no such file", "the folder no does not exist;"]),
        (["their.pt", "--out", "."], ["is a folder"]),
        (["their.pt", "--out", "o"], ["the weights do not name their model; add --model NAME"]),
        (["their.pt", "--out", "o", "--model", "a", "model.name=b"], ["remove one of them"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "lr=1"], ["did you mean 'optim.lr'"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "x"], ["'x': expected key=value"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "--classes", "0"], ["--classes is '0'"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "--key", "ema"], ["under --key ema"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny"], ["not fit the model (0 missing, 0 unexp"]),
        (["their.pt", "--out", "o", "--model", "yolov3-tiny", NARROW], ["classes is unclear"]),
        (["their.pt", "--out", "o", "--model", "yolov3-tiny", NARROW, "--classes", "3"], ["unexpected "]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", NARROW, "--classes", "5"],
         ["3 classes", "specifies 5;", "--partial"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", NARROW, "--names", "two"],
         ["3 classes", "specifies 2;", "--partial"]),
        (["their.pt", "--out", "o", "--model", "resnet18"], ["do not fit resnet18"]),
        (["their.pt", "--out", "o.pth", "--model", "yolov4-tiny"], ["safetensors; use o.safetensors"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "--names", "gone"], ["--names gone: cannot"]),
        (["their.pt", "--out", "o", "--model", "yolov4-tiny", "--names", "their.pt"], ["not UTF-8 text"]),
        (["their.pt", "--out", "o", "--names", "names", "--classes", "5"], ["names:2: the", "has 3 names"]),
        (["their.pt", "--out", "o", "--names", "list"], ["starts like a JSON list"]),
        (["x.weights", "--out", "o"], ["the weights do not name their model; add --model NAME"]),
        (["x.weights", "--out", "o", "--model", "resnet18"], ["Darknet has no model resnet18"]),
        (["x.weights", "--out", "o", "--model", "yolov4-tiny"], ["x.weights: ends in the middle of layer 0"]),
        (["x.weights", "--out", "o", "--cfg", "gone.cfg"], ["gone.cfg: the cfg file cannot be read"]),
        (["x.weights", "--out", "o", "--cfg", "a", "--model", "b"], ["--cfg is a, and --model is 'b'"]),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_and_nothing_is_written(place, capsys, words, sentences):
    (place / "names").write_text("cat\n\ndog")
    (place / "list").write_text('["cat"')
    (place / "two").write_text("cat\ndog")
    (place / "x.weights").write_bytes(bytes(40))
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert all(sentence in captured.err for sentence in sentences), captured.err
    assert "Traceback" not in captured.err
    assert not (place / "o").exists() and not (place / "o.pth").exists()


def test_weights_of_other_classes_than_the_cfg_lead_to_fine_tuning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, classes in (("coco.cfg", 80), ("mine.cfg", 3), ("other.cfg", 3)):
        size = 3 if name == "other.cfg" else 1
        Path(name).write_text(
            "[net]\nwidth=64\nheight=64\nchannels=3\n"
            "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\nstride=2\npad=1\nactivation=leaky\n"
            f"[convolutional]\nfilters={5 + classes}\nsize={size}\nstride=1\npad=1\nactivation=linear\n"
            f"[yolo]\nmask=0\nanchors=8,8\nclasses={classes}\nnum=1\n"
        )
    # Darknet's: 20 bytes, then float32: bias, scale, mean, variance, kernels; bias, kernels.
    head, numbers = np.array([0, 2, 5, 0, 0], "<i4"), np.ones(4 * 8 + 8 * 27 + 85 + 85 * 8, "<f4")
    Path("coco.weights").write_bytes(head.tobytes() + numbers.tobytes())
    assert run("coco.weights", "--cfg", "mine.cfg", "--out", "o") == 2
    said = capsys.readouterr().err
    assert "coco.weights: its heads have 80 classes, but the heads in --cfg mine.cfg have 3; use" in said
    assert run("coco.weights", "--cfg", "other.cfg", "--out", "o") == 2
    assert "belongs to another network" in capsys.readouterr().err
    line = said.splitlines()[1].replace("ORIGINAL", "coco").split()
    assert line[:2] == ["rankless", "import"] and cli.main(line[1:]) == 0
    assert len(weights.load(Path("pretrained.safetensors")).class_names) == 80


@pytest.mark.slow
def test_the_same_network_under_other_names_is_taken_by_order(tmp_path, monkeypatch, capsys):
    """A DenseNet-BC as other projects name it: dense1.0.bn1, trans1.conv1, fc."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(2)
    theirs = build_classifier(Model(name="densenet-bc-100-12"), 7).eval()
    changed = {}
    for name, tensor in theirs.state_dict().items():
        for ours, other in (
            ("features.", ""), ("denseblock", "dense"), ("denselayer", ""), ("transition", "trans"),
            ("norm", "bn"), ("classifier", "fc"),
        ):  # fmt: skip
            name = name.replace(ours, other)
        changed[f"module.{name}"] = tensor
    torch.save({"state_dict": changed, "epoch": 300}, "model_best.pth.tar")
    words = ["model_best.pth.tar", "--out", "o.safetensors", "--model", "densenet-bc-100-12"]
    assert run(*words) == 2
    assert "--by-order" in capsys.readouterr().err
    assert run(*words, "--by-order") == 0
    said = capsys.readouterr().out
    assert "matched by order" in said and "num_batches_tracked" not in said  # they are in the file
    loaded = weights.load(Path("o.safetensors"))
    assert loaded.recipe.task == "classify"
    assert len(loaded.class_names) == 7
    ours = build_classifier(loaded.recipe.model, 7).eval()
    weights.load_into(ours, loaded.state, "o")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(ours(images), theirs(images))
    assert run("model_best.pth.tar", "--out", "p", "--model", "resnet18", "--by-order") == 2
    assert "they cannot be matched by order" in capsys.readouterr().err
