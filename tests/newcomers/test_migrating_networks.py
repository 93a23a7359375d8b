"""What docs/migrating.md says of networks, anchors and data without a validation split, done as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rankless import cli
from rankless.data.datasets.open_split import open_annotations
from rankless.models import zoo
from rankless.recipe.load import default
from rankless.report.collected import Collected
from rankless.tasks.detect import Detect

DOCS = Path(__file__).parents[2] / "docs"
NESTED = "[[[10, 14], [23, 27], [37, 58]], [[81, 82], [135, 169], [344, 319]]]"
DESCENDING = "[[344, 319], [135, 169], [81, 82], [37, 58], [23, 27], [10, 14]]"
FRACTIONS = "[[0.02, 0.03], [0.06, 0.06], [0.1, 0.1], [0.2, 0.2], [0.3, 0.4], [0.8, 0.8]]"


def answered(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = cli.main([str(word) for word in words])
    return code, "".join(capsys.readouterr())


def test_anchors_of_other_scripts_are_answered_with_a_list_that_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
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


def test_curves_show_losses_and_the_score_whatever_chooses_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
def test_a_root_of_class_folders_is_trained_on_whole(
    folders: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = folders(tmp_path / "flowers", 27)
    divided = [open_annotations(str(root), split) for split in ("train", "val")]
    whole = open_annotations(str(root), "all")
    assert len(whole) == sum(map(len, divided)) == 30
    (note,) = (text for text in divided[0].about if "data.val" in text)
    words = re.findall(r"data\.(?:train|val)=\w+", note)
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
