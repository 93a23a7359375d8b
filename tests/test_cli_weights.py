"""The commands under rankless weights, and training that starts from a file on the Hub."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankless import cli
from rankless.files.download import Offer
from rankless.models import published, zoo
from rankless.models.weights_files import weights
from rankless.recipe.load import default
from rankless.runs import journal
from support.hub_server import COMMIT, running


def problem(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_list_prints_size_checksum_score_license_and_address(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert cli.main(["weights", "list", "yolov4*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    tiny = next(line for line in lines if line.startswith("yolov4-tiny "))
    for part in ("24.3  SHA-256 ", "COCO AP50 40.2 at 416", "Unlicense", "https://github.com/AlexeyAB/"):
        assert part in tiny
    assert "211.9  unconfirmed" in next(line for line in lines if line.startswith("yolov4-csp "))
    assert cli.main(["weights", "list", "timm/resnet18.a*", "--json"]) == 0
    (one, *_) = json.loads(capsys.readouterr().out)
    assert (one["address"], one["license"]) == ("hf://timm/resnet18.a1_in1k/model.safetensors", "apache-2.0")
    assert "PATTERN is 'yolov9*': no published weights" in problem(capsys, "weights", "list", "yolov9*")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the cache that stands for that of yolov3-tiny, as if published with its digest."""
    monkeypatch.setenv("RANKLESS_CACHE", str(tmp_path / "cache"))
    content = b"weights" * 10
    known = published.named("yolov3-tiny")
    digest = hashlib.sha256(content).hexdigest()
    known = replace(known, source=Offer(known.source.url, len(content), digest))  # type: ignore[union-attr]
    monkeypatch.setattr(published, "all_published", lambda: [known])
    file = tmp_path / "cache" / "weights" / "yolov3-tiny.weights"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return file


def test_get_prints_where_the_file_is_and_what_to_do_next(cached, tmp_path, capsys):
    digest = hashlib.sha256(cached.read_bytes()).hexdigest()
    assert cli.main(["weights", "get", "yolov3-tiny"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{cached} (70 bytes)",
        f"SHA-256 {digest}, checked (SHA-256); license: not stated",
        "to train: rankless train fine-tune model.name=yolov3-tiny model.pretrained=published data.root=DATA",
    ]
    (tmp_path / "mine").mkdir()
    copy = tmp_path / "mine" / "yolov3-tiny.weights"
    for _ in range(2):  # it may replace its own copy
        assert cli.main(["weights", "get", "yolov3-tiny", "--to", str(copy.parent)]) == 0
        assert capsys.readouterr().out.startswith(f"{copy} (70 bytes)\n")
    copy.write_text("the user's")
    said = problem(capsys, "weights", "get", "yolov3-tiny", "--to", str(copy.parent))
    assert f"{copy}: " in said and "; use another --to, or add --force" in said
    assert copy.read_text() == "the user's"


def test_get_says_what_is_missing(cached, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # --offline sets it; the patch resets it
    assert "did you mean 'yolov3-tiny'?" in problem(capsys, "weights", "get", "yolo3-tiny")
    cached.unlink()
    said = problem(capsys, "weights", "get", "yolov3-tiny", "--offline")
    assert "HF_HUB_OFFLINE forbids it; expected yolov3-tiny.weights of 70 bytes with the SHA-256 " in said
    assert said.endswith(f"download the file elsewhere and save it as {cached}\n")
    assert "expected hf://OWNER/NAME" in problem(capsys, "weights", "get", "hf://a")
    assert "expected a .safetensors file" in problem(capsys, "weights", "get", "hf://a/b/c.bin")
    assert "set HF_HUB_OFFLINE=1 on the hosts" in problem(
        capsys, "train", "digits", "--offline", "--hosts", "a"
    )


@pytest.mark.processes
@pytest.mark.slow
def test_ranks_start_from_one_download_and_a_resumed_run_needs_none(tmp_path, small_recipe, forked):
    recipe = default(["model.name=yolov4-tiny", "model.width=0.125", "model.image_size=64"])
    torch.manual_seed(1)
    state = zoo.build(recipe.model, 2).state_dict()
    weights.save(tmp_path / "w", state, recipe=recipe, class_names=("red", "green"))
    content = (tmp_path / "w").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    words = ["fine-tune", f"data.root={Path(small_recipe).parent / 'data.yaml'}", "epochs=1", "ema.decay=0"]
    words += ["batch.images=4", "batch.micro=2", "model.freeze=0", "data.augment=none"]
    words += ["model.pretrained=hf://a/b@v1/model.safetensors", "--run", "run", "--devices", "2"]
    with running({"model.safetensors": content}) as (hub, address):
        environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf")}
        done = forked("-m", "rankless", "train", *words, cwd=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        assert hub.asked.count("model.safetensors") == 1
    events = [
        entry for entry in journal.read(tmp_path / "run" / "journal.jsonl") if "pretrained" in str(entry)
    ]
    assert f"hf://a/b@{COMMIT}/model.safetensors (SHA-256 {sha256})" in str(events)
    shutil.rmtree(tmp_path / "hf")
    words = ["train", "--resume", "--run", "run", "epochs=2", "--devices", "2"]
    done = forked("-m", "rankless", *words, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
