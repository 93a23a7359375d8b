"""A backbone that stays as it is at first: what is held, when it is released, the same bits on all ways."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankless.data.order import micro_batch
from rankless.engine import loop
from rankless.engine.evaluate import fingerprint
from rankless.engine.freezing import Backbone
from rankless.engine.schedule import StepSchedule
from rankless.engine.state import TrainingState
from rankless.errors import UserError
from rankless.models.zoo import build
from rankless.randomness import torch_seed
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Batch, Ema, Evaluate, Model, Optim, Recipe, Schedule
from rankless.runs import journal
from rankless.runs.directory import RunDirectory
from rankless.structures import LossSum, Scores
from rankless.world.process_group import World
from support.small_task import Regression, train

IMAGES = 10
# 10 images, 6 a step: 2 epochs are 20 images, which are seen whole when step 4 begins (after 24).
STEPS, RELEASE = 10, 4


def recipe(batch_norm: str = "micro", **more: Any) -> Recipe:
    settings: dict[str, Any] = {
        "batch": Batch(images=6, micro=2),
        "epochs": 6,
        "model": Model(freeze="2 epochs"),
        "optim": Optim(lr=0.1, clip=1.0),
        "schedule": Schedule(warmup=2),
        "precision": "fp32",
        "batch_norm": batch_norm,
        "ema": Ema(decay=0.8),
        "evaluate": Evaluate(every="2 epochs"),
    }
    return Recipe(**{**settings, **more})


class Net(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(share))
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Tanh())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.deep[0].bias.requires_grad_(False)  # the user's own choice, for ever

    def backbone(self) -> list[nn.Module]:
        return [self.stem, self.deep]

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.deep(self.stem(images)))
        return out[:, 0]


class Regress(Regression):
    images = IMAGES

    def __init__(self, recipe: Recipe) -> None:
        self.share = recipe.model.dropout

    def model(self) -> nn.Module:
        return Net(self.share)

    def item(self, index: int, epoch: int) -> Tensor:
        return torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(100 * epoch + index))

    def loss(self, model: nn.Module, batch: Tensor) -> LossSum:
        return LossSum((model(batch) - targets(batch)).square().sum(), torch.tensor(float(len(batch))))


def targets(images: Tensor) -> Tensor:
    return images[:, 0].mean((1, 2)) * 5


def work(world: World, text: str, folder: str, resume: bool, stop_after: int) -> list[dict[str, str]]:
    """Train; every rank is asked to stop after a step. A digest of each tensor after each step."""
    found: list[dict[str, str]] = []
    stop = loop.StopRequest()

    def observe(step: int, state: TrainingState, scores: Scores | None) -> None:
        found.append({name: fingerprint(value) for name, value in state.tensors().items()})
        if step == stop_after - 1:
            stop.signal = 15

    settings = from_json(text)
    train(world, Regress(settings), settings, folder, resume=resume, stop=stop, observe=observe)
    world.barrier()
    return found


KINDS = {
    "micro": recipe(model=Model(freeze="2 epochs", dropout=0.2)),
    "sync": recipe("sync", model=Model(freeze="2 epochs", dropout=0.2), optim=Optim(lr=0.05, nesterov=True)),
    "frozen": recipe("frozen", optim=Optim(name="adamw", lr=0.01)),
    "bf16": recipe(precision="bf16", optim=Optim(name="adamw", lr=0.01, clip=0.5), ema=Ema()),
}


@pytest.fixture(scope="module")
def alone(ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    @functools.cache
    def of(kind: str) -> tuple[list[dict[str, str]], RunDirectory]:
        folder = tmp_path_factory.mktemp(kind)
        (steps,) = ranks(1, work, to_json(KINDS[kind]), str(folder), False, 0)
        return steps, RunDirectory(folder)

    return of


@pytest.mark.processes
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_the_same_on_any_number_of_ranks_and_after_a_resume(
    ranks: Any, alone: Any, tmp_path: Path, kind: str
) -> None:
    text = to_json(KINDS[kind])
    expected, run = alone(kind)
    assert len(expected) == STEPS
    # Before, at and after the release, with every step on two and on three ranks.
    stops = ((2, 1, 2), (RELEASE, 2, 1), (RELEASE + 1, 1, 3), (7, 3, 2))
    for stop, before, after in stops if kind == "micro" else ((RELEASE, 2, 3),):
        folder = str(tmp_path / f"stop-{stop}")
        first = ranks(before, work, text, folder, False, stop)
        assert RunDirectory(Path(folder)).pointed("last") == stop
        second = ranks(after, work, text, folder, True, 0)
        assert all(answer == expected[:stop] for answer in first)
        assert all(answer == expected[stop:] for answer in second)
    assert journal.numbers(RunDirectory(tmp_path / "stop-4").journal) == journal.numbers(run.journal)


def held(name: str) -> bool:
    return "/stem." in name or "/deep." in name


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["micro", "sync", "frozen"])
def test_held_then_trained(alone: Any, kind: str) -> None:
    settings = KINDS[kind]
    steps, run = alone(kind)
    start = {f"model/{name}": fingerprint(value) for name, value in initial(settings).items()}
    # Biases are left out: before a norm they have no gradient but rounding.
    idle = ["stem.1.", "deep.1.", "head.2."] if kind == "frozen" else []
    weights = {n for n in start if "tracked" not in n and "bias" not in n}
    learned = {n for n in weights if not any(i in n for i in idle)}
    head = {n for n in learned if not held(n)}
    for number, step in enumerate(steps, 1):
        changed = {n for n in weights if step[n] != start[n]}
        assert changed == (head if number <= RELEASE else learned), number
        slots = {n for n in step if not n.startswith(("model/", "ema/"))}
        assert any(held(n) for n in slots) == (number > RELEASE)
    # Each step counts once in the norms that learned, however long they were held.
    saved = safetensors.torch.load_file(run.step_directory(STEPS) / "model.safetensors")
    if kind != "frozen":
        assert saved["head.2.num_batches_tracked"] == STEPS
        assert saved["stem.1.num_batches_tracked"] == STEPS - RELEASE
    released = [entry["at"] for entry in journal.read(run.journal) if entry.get("event") == "release"]
    assert released == [RELEASE]


def initial(settings: Recipe) -> dict[str, Tensor]:
    torch.manual_seed(torch_seed(settings.seed, "model"))
    return Net(settings.model.dropout).state_dict()


@pytest.mark.processes
def test_it_is_the_loop_that_one_would_write_by_hand(ranks: Any, tmp_path: Path) -> None:
    """One micro-batch a step and no clipping: plain torch, the backbone added to the optimizer."""
    settings = recipe(
        batch=Batch(images=4, micro=4),
        optim=Optim(lr=0.1, weight_decay=0.0),
        schedule=Schedule(name="constant"),
        ema=Ema(),
    )
    ranks(1, work, to_json(settings), str(tmp_path), False, 0)
    release, steps = 5, 15  # 20 and 60 images, 4 a step
    task = Regress(settings)
    model = Net(0.0)
    model.load_state_dict(initial(settings))
    mine = [p for name, p in model.named_parameters() if not held("/" + name)]
    theirs = [p for n, p in model.named_parameters() if held("/" + n) and n != "deep.0.bias"]
    sgd = torch.optim.SGD(mine, lr=0.1, momentum=0.9)
    for step in range(steps):
        if step == release:
            sgd.add_param_group({"params": theirs})
        model.train()
        if step < release:
            model.stem[1].eval()
            model.deep[1].eval()
        places = micro_batch(IMAGES, settings.seed, step, 0, settings.batch)
        batch = task.collate([task.item(index, epoch) for epoch, index in places])
        model.zero_grad()
        F.mse_loss(model(batch), targets(batch)).backward()
        sgd.step()
    saved = safetensors.torch.load_file(RunDirectory(tmp_path).step_directory(steps) / "model.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            saved[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.processes
def test_fine_tuning_freezes_pretrained_weights_and_only_needs_their_file_once(
    ranks: Any, tmp_path: Path
) -> None:
    before = tmp_path / "before.safetensors"
    torch.manual_seed(77)
    trained = Net(0.0).state_dict()
    safetensors.torch.save_file(trained, before)
    text = to_json(recipe(model=Model(freeze="2 epochs", pretrained=str(before))))
    (expected,) = ranks(1, work, text, str(tmp_path / "one"), False, 0)
    for name, value in trained.items():
        if held(f"/{name}"):
            assert all(step[f"model/{name}"] == fingerprint(value) for step in expected[:RELEASE])
    entries = list(journal.read(RunDirectory(tmp_path / "one").journal))
    reported = [entry["text"] for entry in entries if entry.get("event") == "pretrained"]
    assert reported == [f"starting from the weights in {before}"]
    first = ranks(2, work, text, str(tmp_path / "two"), False, 3)
    before.unlink()
    second = ranks(3, work, text, str(tmp_path / "two"), True, 0)
    assert all(answer == expected[:3] for answer in first)
    assert all(answer == expected[3:] for answer in second)


def begins(world: World, place: str) -> list[str]:
    settings = recipe(model=Model(pretrained=place.replace("RANK", str(world.rank))))
    state = TrainingState(Regress(settings), settings, world, IMAGES)  # type: ignore[arg-type]
    assert state.ema is not None
    try:
        state.start_from_pretrained()
    except UserError as error:
        return list(error.problems)
    return [fingerprint(dict(m.state_dict())) for m in (state.model, state.ema.model)]


@pytest.mark.processes
def test_the_average_begins_with_the_trained_weights_too(ranks: Any, tmp_path: Path) -> None:
    trained = Net(0.0).state_dict()
    safetensors.torch.save_file(trained, tmp_path / "0.safetensors")
    (said,) = ranks(1, begins, str(tmp_path / "RANK.safetensors"))
    assert said == [fingerprint(dict(trained))] * 2
    # Another file on another rank would give other weights there.
    safetensors.torch.save_file({**trained, "head.3.bias": torch.ones(1)}, tmp_path / "1.safetensors")
    for (problem,) in ranks(2, begins, str(tmp_path / "RANK.safetensors")):
        assert "but rank 1 has a different file than rank 0" in problem


def test_a_freeze_of_all_epochs_is_never_released() -> None:
    for epochs in (6, 7, 50):
        plan = StepSchedule(recipe(model=Model(freeze=f"{epochs} epochs")), IMAGES)
        assert plan.released_at >= plan.steps


class Plain(nn.Module):
    def __init__(self, backbone: Any = None) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)
        if backbone is not None:
            self.backbone = lambda: backbone(self)


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        (None, r"the model \(Plain\) does not define its backbone; add a method backbone\(\)"),
        (lambda net: [net], r"backbone\(\) of Plain contains all parameters, so nothing remains to train"),
        (lambda net: [], r"backbone\(\) of Plain returned nothing; expected modules of the model"),
        (lambda net: [nn.Linear(2, 2)], r"backbone\(\) of Plain returned Linear; expected modules"),
        (lambda net: ["body"], r"backbone\(\) of Plain returned str; expected modules"),
        (lambda net: 3, r"backbone\(\) of Plain returned int; expected modules"),
    ],
)
def test_a_backbone_that_cannot_be_held_is_reported(backbone: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Backbone(Plain(backbone))


def test_one_module_alone_will_do() -> None:
    net = Plain(lambda net: net.body)
    backbone = Backbone(net)
    assert [p.requires_grad for p in net.parameters()] == [False, False, True, True]
    backbone.release()
    assert all(p.requires_grad for p in net.parameters())


def test_a_detectors_backbone_ends_where_its_cfg_says_so() -> None:
    net = build(Model(name="yolov4-tiny", width=0.125), 3)
    Backbone(net)
    trained = {int(name.split(".")[1]) for name, p in net.named_parameters() if p.requires_grad}
    assert trained == {27, 28, 29, 32, 35, 36}
