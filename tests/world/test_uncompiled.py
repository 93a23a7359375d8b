"""What a training imports: nothing that it does not use and that takes as long to import as PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from rankless.data import loader
from rankless.data.datasets.annotated import DetectionImages
from rankless.data.datasets.detection import DetectionExamples, collate
from rankless.recipe.schema import Augment
from rankless.structures import Sample
from rankless.world.uncompiled import PlainAdamW, PlainSGD


class Nothing(DetectionImages):
    class_names = ()

    def __len__(self) -> int:
        return 0

    def read(self, index: int) -> Sample:
        raise NotImplementedError

    def source(self, index: int) -> str:
        raise NotImplementedError


# torch's compiler, and what brings it, with the largest of what these bring.
HEAVY = {"torch._dynamo", "torch._inductor", "torch.onnx", "torchvision", "sympy", "timm", "sklearn"}
HEAVY |= {"cv2", "matplotlib", "onnx", "scipy"}


def imported(text: str) -> set[str]:
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", text, re.MULTILINE))


# Ranks are forked from the launcher, and import nothing, unless the libraries have to be loaded for another
# instruction set.
@pytest.mark.processes
def test_launcher_ranks_and_loaders_import_no_compiler(small_recipe, tmp_path):
    words = [small_recipe, "epochs=1", "batch.images=8", "batch.micro=4", "workers=1", "--devices", "1"]
    run = subprocess.run(
        [sys.executable, "-m", "rankless", "train", *words, "cpu_isa=avx2", "--run", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    texts = run.stderr, (tmp_path / "run/logs/rank-0.log").read_text()
    launcher, rank = map(imported, texts)
    for found in (launcher, rank):
        assert not found & HEAVY
    assert {"torch", "rankless.tasks.custom"} <= launcher
    assert [len(re.findall(r"\| +torch$", text, re.MULTILINE)) for text in texts] == [1, 1]


@pytest.mark.parametrize(
    ("plain", "base", "options"),
    [
        (PlainSGD, SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}),
        (PlainAdamW, AdamW, {"foreach": True, "fused": False}),
        (PlainAdamW, AdamW, {"foreach": False, "fused": True}),
    ],
)
def test_optimizers_compute_as_their_bases(plain, base, options):
    results = []
    for kind in (plain, base):
        torch.manual_seed(0)
        model = nn.Linear(7, 5)
        optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.01, **options)
        for _ in range(3):
            model(torch.rand(4, 7)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert model.weight.grad is None
        results.append(model.weight.detach())
    assert torch.equal(*results)


@pytest.mark.processes
def test_predicting_does_not_import_the_compiler_and_a_later_import_is_deterministic():
    program = """
import sys, torch, rankless.inference.predict, rankless.tasks.detect
print(*sys.modules)
from rankless.hardware.process_settings import set_deterministic
for on in (True, False):
    set_deterministic(on)
    assert torch.are_deterministic_algorithms_enabled() is on
    assert on is False or "torch._inductor" not in sys.modules
    import torch._inductor.config
    assert torch.__version__ < "2.10" or torch._inductor.config.deterministic is on
"""
    words = [sys.executable, "-c", program]
    found = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout.split()
    assert "torch" in found and not HEAVY & set(found)


@pytest.mark.parametrize("blur", [0.0, 0.5])
def test_what_all_loaders_import_is_imported_before_they_are_forked(blur):
    examples = DetectionExamples(Nothing(), (32, 32), 0, Augment(blur=blur))
    imported = loader._modules(examples, collate)
    assert "rankless.data.datasets.detection" in imported
    assert ("torchvision.transforms.v2" in imported) == bool(blur)
