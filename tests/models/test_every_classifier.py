"""What every registered classifier inherits: a new line in the registry is tested by all of this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankless import recipe
from rankless.evaluation import fingerprint
from rankless.models import weights
from rankless.models.classifiers import CLASSIFIERS, build_classifier
from rankless.recipe import Recipe
from rankless.recipe_file import default
from rankless.run_directory import RunDirectory
from rankless.training import loop
from rankless.training.settings import computes_like
from rankless.training.state import TrainingState
from rankless.types import Scores
from rankless.world.join import World

CLASSES = 3
NAMES = [*CLASSIFIERS, "timm/mobilenetv3_small_050"]
LARGE = {"densenet-bc-190-40", "resnet152", "densenet161", "densenet201"}  # seconds a step even at 32 pixels


def built(name: str) -> nn.Module:
    torch.manual_seed(3)
    return build_classifier(recipe.Model(name=name), CLASSES)


def pictures() -> torch.Tensor:
    chance = torch.Generator().manual_seed(5)
    return torch.rand(2, 3, 64, 64, generator=chance).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, tmp_path: Path) -> None:
    """Forward, backward, shape, dtype, bf16, channels_last, and its state into a file and back."""
    model = built(name)
    logits = model(pictures())
    assert logits.shape == (2, CLASSES)
    assert logits.dtype == torch.float32
    logits.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
    model.eval()
    with torch.no_grad():
        plain = model(pictures().contiguous())
        model.to(memory_format=torch.channels_last)
        torch.testing.assert_close(model(pictures()), plain, rtol=2e-3, atol=2e-3)
        with torch.autocast("cpu", torch.bfloat16):
            short = model(pictures())
        assert short.dtype == torch.bfloat16
        assert (short.float() - plain).abs().max() < 0.1 * plain.abs().max() + 0.1
        made = Recipe(task="classify", model=recipe.Model(name=name))
        path = tmp_path / "w.safetensors"
        weights.save(path, model.state_dict(), recipe=made, class_names=["a", "b", "c"])
        other = build_classifier(made.model, CLASSES)
        weights.load_into(other, weights.load(path).state, str(path))
        other.eval().to(memory_format=torch.channels_last)
        assert torch.equal(other(pictures()), model(pictures()))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGE])
def test_the_graph_is_captured_whole(name: str) -> None:
    torch._dynamo.reset()
    model = built(name).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(pictures()), model(pictures()))


def one_step(world: World, words: list[str], folder: str) -> str:
    """Train one step; the digest of every tensor after it."""
    made = default(words)
    found: list[str] = []

    def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
        found.append(fingerprint(dict(state.tensors())))

    with computes_like(made):
        loop.train(
            made,
            RunDirectory(Path(folder)),
            world,
            resume=False,
            rehearsal=loop.Rehearsal(1, pictures=2),
            observe=observe,
        )
        world.barrier()
    return found[0]


@pytest.mark.processes
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LARGE])
def test_digest_on_one_and_on_two_ranks(name: str, ranks: Any, tmp_path: Path) -> None:
    words = [
        "task=classify",
        f"model.name={name}",
        "model.image_size=32",
        "model.dropout=0.1",
        "precision=fp32",
    ]
    words += ["batch.images=4", "batch.micro=2", "data.augment.mixup=0.2", "data.augment.erase=0.5"]
    (alone,) = ranks(1, one_step, words, str(tmp_path / "one"))
    both = ranks(2, one_step, words, str(tmp_path / "two"))
    assert both == [alone, alone]
