"""What docs/migrating.md says of networks, anchors and data without a validation split, done as it says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from rankless import cli
from rankless.data.datasets.open_split import open_annotations
from rankless.models import zoo
from rankless.models.classifiers.catalog import build_classifier
from rankless.models.weights_files import weights
from rankless.recipe.load import default
from rankless.report.collected import Collected
from rankless.tasks.detect import Detect

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"
NESTED = "[[[10, 14], [23, 27], [37, 58]], [[81, 82], [135, 169], [344, 319]]]"
DESCENDING = "[[344, 319], [135, 169], [81, 82], [37, 58], [23, 27], [10, 14]]"
FRACTIONS = "[[0.02, 0.03], [0.06, 0.06], [0.1, 0.1], [0.2, 0.2], [0.3, 0.4], [0.8, 0.8]]"


def answered(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = cli.main([str(word) for word in words])
    return code, "".join(capsys.readouterr())


def test_anchors_of_other_scripts_are_answered_with_a_list_that_works(capsys):
    code, said = answered(capsys, "train", "yolov4-tiny", "data.root=x", f"model.anchors={NESTED}")
    found = re.search(r"smallest first: (\[\[.*\]\])", said)
    assert code == 2 and found
    wanted = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))
    assert default([f"model.anchors={found[1]}"]).model.anchors == wanted
    code, said = answered(capsys, "train", "yolov4-tiny", "data.root=x", f"model.anchors={FRACTIONS}")
    assert code == 2 and "fractions of the image" in said and "[8.3, 12.5]" in said  # of 416 pixels

    task = Detect(default(["data.root=digits", f"model.anchors={DESCENDING}"]), ["a"])
    (warning,) = task.warnings
    assert "smallest pair first" in warning
    override = warning.partition("first: ")[2].replace("'", "")
    ascending = default(["data.root=digits", override])
    assert ascending.model.anchors == wanted
    assert not Detect(ascending, ["a"]).warnings


@pytest.mark.parametrize("page", ["migrating.md", "migrating.zh-CN.md"])
def test_keys_of_the_page_build_networks(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    involution, separable, anchors = (
        re.search(pattern, text)
        for pattern in (r"`(model\.involution): (\{.*?\})`", r"`(model\.densenet\.separable): (\{.*?\})`",
                        r"`(model\.num_anchors): (\d+)`")
    )  # fmt: skip
    assert involution and separable and anchors
    for name in ("yolov3", "yolov4", "yolov4-tiny-3l", "yolov4-anchor-free"):
        options = [f"model.name={name}", "model.width=0.125"]
        plain = zoo.build(default(options).model, 2)
        words = f"{involution[1]}={involution[2]}"
        made = zoo.build(default([*options, words]).model, 2)
        kinds = [type(one).__name__ for one in made.modules()]
        assert kinds.count("Involution") == 3, name
        assert not any(type(one).__name__ == "Involution" for one in plain.modules())
    default(["task=classify", "model.name=densenet121", f"{separable[1]}={separable[2]}"])
    default([f"{anchors[1]}={anchors[2]}", "model.anchors=kmeans"])


def test_curves_show_losses_and_the_score_whatever_chooses_the_best(tmp_path, capsys):
    runs = []
    for number, best in enumerate(("loss", "nll", "AP50")):
        run = tmp_path / f"run{number}"
        run.mkdir()
        words = f"evaluate: {{best: {best}}}\nepochs: 1\nbatch: {{images: 4, micro: 4}}\n"
        (run / "recipe.yaml").write_text(words)
        lines = [{"step": step, "loss": 2.5, "lr": 0.1} for step in (1, 2)]
        scores = {"AP": 0.5, "AP50": 0.75, "nll": 3.0, "loss": 9.0}
        lines += [{"evaluation": step, "scores": scores} for step in (1, 2)]
        (run / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        runs.append(run)
    assert [Collected(run).refresh().drawn_score for run in runs] == ["AP", "AP", "AP50"]
    page = tmp_path / "page.html"
    assert answered(capsys, "report", *runs[:2], "--out", page)[0] == 0
    titles = re.findall(r'<svg[^>]*aria-label="([^"]*)"', page.read_text(encoding="utf-8"))
    assert {"AP", "Validation loss"} <= set(titles) and not {"loss", "nll"} & set(titles)


@pytest.mark.processes
def test_a_root_of_class_folders_is_trained_on_whole(folders, tmp_path, capfd):
    root = folders(tmp_path / "flowers", 27)
    divided = [open_annotations(str(root), split) for split in ("train", "val")]
    whole = open_annotations(str(root), "all")
    assert len(whole) == sum(map(len, divided)) == 30
    (note,) = (text for text in divided[0].about if "data.val" in text)
    words = re.findall(r"data\.(?:train|val)=\w+", note)
    assert words == ["data.val=none"]
    run = tmp_path / "run"
    small = ["model.name=resnet20-cifar", "epochs=1", "batch.images=10", "batch.micro=5", "workers=0"]
    command = ["train", "resnet18", f"data.root={root}", *words, *small, "--run", str(run), "--devices", "1"]
    assert cli.main(command) == 0
    out, err = capfd.readouterr()
    assert "30 images of 'all'" in out + err and "evaluation:" not in out + err
    entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    assert max(entry.get("step", 0) for entry in entries) == 3
    assert not any("evaluation" in entry for entry in entries)
    assert (run / "last.safetensors").exists() and not (run / "best.safetensors").exists()
    assert cli.main(["evaluate", str(run)]) == 2
    assert "--split" in "".join(capfd.readouterr())
    assert cli.main([*command, "--resume"]) == 0
    assert "this run is finished" in "".join(capfd.readouterr())
    assert cli.main(["export", str(run), "--format", "torchscript", "--out", str(tmp_path / "out")]) == 0
    assert f"images of {root} (all)" in "".join(capfd.readouterr())


def darknet53_of_a_post(prefix: str, block: str = "layer{stage}.{name}") -> dict[str, torch.Tensor]:
    """The tensors of ``darknet53(pretrained)`` at an eighth of the width, with its classifier."""
    state: dict[str, torch.Tensor] = {}

    def add(conv: str, norm: str, rows: int, columns: int, side: int) -> None:
        state[f"{prefix}{conv}.weight"] = torch.rand(rows, columns, side, side)
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"{prefix}{norm}.{name}"] = torch.rand(rows)
        state[f"{prefix}{norm}.num_batches_tracked"] = torch.tensor(5)

    def named(stage: int, kind: str, number: str = "") -> str:
        return block.format(stage=stage, name=f"{kind}{number}")

    add("conv1", "bn1", 8, 3, 3)
    for stage, (blocks, wide) in enumerate(((1, 8), (2, 16), (8, 32), (8, 64), (4, 128)), 1):
        narrow = max(8, wide // 2)
        add(named(stage, "ds_conv"), named(stage, "ds_bn"), wide, narrow, 3)
        for number in range(blocks):
            within = [named(stage, f"residual_{number}.{kind}") for kind in ("conv1", "bn1", "conv2", "bn2")]
            add(*within[:2], narrow, wide, 1)
            add(*within[2:], wide, narrow, 3)
    return state | {f"{prefix}fc.weight": torch.rand(10, 128), f"{prefix}fc.bias": torch.rand(10)}


def assert_convolutions_are(state: dict[str, torch.Tensor], file: Path) -> None:
    sent, loaded = [tensor for tensor in state.values() if tensor.ndim == 4], weights.load(file)
    network = zoo.build(loaded.recipe.model, 2).state_dict()
    taken = [loaded.state[name] for name in network if name.endswith("conv.weight")]
    assert len(sent) == 52 and all(torch.equal(a, b) for a, b in zip(sent, taken, strict=False))


@pytest.mark.parametrize("prefix", ["", "module.backbone."])
def test_a_backbone_saved_alone_is_taken_and_the_rest_is_listed(prefix, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "migrating.md").read_text(encoding="utf-8")
    line = re.search(r"`rankless (import darknet53\.pth .*? backbone\.safetensors)`", text)
    assert line
    state = darknet53_of_a_post(prefix)
    torch.save({"model": state, "epoch": 3}, "darknet53.pth")
    code, said = answered(capsys, *line[1].split(), "model.width=0.125")
    assert code == 0 and f"{len(state) - 2} of" in said
    assert "fc.weight 10×128" in said and "missing" in said
    assert_convolutions_are(state, Path("backbone.safetensors"))


def test_a_backbone_of_unknown_names_is_taken_in_its_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    state = darknet53_of_a_post("", "residual_block{stage}.0.{name}.x")
    torch.save(state, "darknet53.pth")
    words = ["import", "darknet53.pth", "--model", "yolov3", "--out", "o", "--partial", "model.width=0.125"]
    code, said = answered(capsys, *words)
    assert code == 2 and "--by-order --partial" in said
    code, said = answered(capsys, *words, "--by-order")
    assert code == 0 and "fc.weight 10×128" in said
    assert_convolutions_are(state, Path("o"))


def test_import_says_what_of_a_training_it_leaves_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "migrating.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if "`--start_epoch" in line)
    network = build_classifier(default(["task=classify", "model.name=resnet20-cifar"]).model, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.rand(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    content = {"epoch": 50, "model": network.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(content, "last.pth")
    code, said = answered(capsys, "import", "last.pth", "--model", "resnet20-cifar", "--out", "o")
    assert code == 0
    assert "the epoch under 'epoch' and the optimizer's state under 'optimizer' are not imported" in said
    assert "(50 are done)" in said
    for key in ("schedule.warmup=0", "optim.lr"):
        assert key in said and key in row
    torch.save({"model": network.state_dict()}, "last.pth")
    code, said = answered(capsys, "import", "last.pth", "--model", "resnet20-cifar", "--out", "p")
    assert code == 0 and "left out" not in said


def test_fp16_on_a_cpu_is_said_to_be_slow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "data.train_images=4", "data.val=none", "batch.images=4", "batch.micro=4", "model.image_size=64",
        "model.width=0.1", "epochs=1", "workers=0", "precision=fp16",
    ]  # fmt: skip
    code, said = answered(capsys, "train", "digits", *words, "--run", tmp_path / "run", "--inline")
    assert code == 0 and "precision is fp16, but it is slow on CPUs" in said


def test_a_cfg_of_a_classifier_is_said_to_be_no_detector_s(folders, tmp_path, capsys):
    root = folders(tmp_path / "flowers", 6)
    cfg = tmp_path / "darknet53.cfg"
    cfg.write_text("[net]\nwidth=256\nheight=256\n[convolutional]\nfilters=8\nsize=3\n[softmax]\n")
    code, said = answered(capsys, "train", "task=classify", f"model.cfg={cfg}", f"data.root={root}")
    assert code == 2 and "cfg files" in said and "darknet53" in said
    code, said = answered(capsys, "train", f"model.cfg={cfg}", f"data.root={root}")
    assert code == 2 and "[softmax]" in said
