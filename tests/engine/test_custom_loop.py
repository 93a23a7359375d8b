"""A training loop of one's own: the gradients of a plain loop, and the same bits on any number of ranks."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

import rankless
from rankless.errors import UserError
from rankless.models.weights_files.weights import digest
from rankless.world.process_group import World, join

EXAMPLES = Path(__file__).parents[2] / "examples"


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(40, 3, generator=rng), torch.randint(4, (40,), generator=rng))


def loss(model: nn.Module, batch: Any) -> rankless.LossSum:
    inputs, labels = batch
    return rankless.LossSum(F.cross_entropy(model(inputs), labels, reduction="sum"), len(labels))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def trained(world: World, epochs: int, end: str, begin: str = "") -> dict[str, Any]:
    """What a loop has come to after so many epochs, saved as ``end``; it may go on from ``begin``."""
    model = network()
    parametrizations.spectral_norm(model[-1])  # its forward pass changes buffers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = rankless.Steps(world, model, loss, data(), batch=12, micro=3)
    saved = torch.load(begin, weights_only=True) if begin else {"number": -1}
    if begin:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    seen = []
    for step in steps.epochs(epochs, start=saved["number"] + 1):
        optimizer.step()
        seen.append([step.number, step.epoch, step.loss])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "number": seen[-1][0]}
    if world.is_first:
        torch.save(state, end)
    return {"digest": digest(model.state_dict()), "steps": seen}


def test_a_step_has_the_gradient_of_the_mean_loss_over_its_batch() -> None:
    model = nn.Linear(3, 4).double()
    inputs, labels = data().tensors
    whole = TensorDataset(inputs.double(), labels)
    F.cross_entropy(model(inputs.double()), labels).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    with join() as world:
        steps = rankless.Steps(world, model, loss, whole, batch=40, micro=8).epochs(1)
        before = torch.get_rng_state()
        step = next(steps)  # one epoch is one step: every image once
        found = [parameter.grad for parameter in model.parameters()]
        steps.close()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert step.epoch == 1
    assert torch.equal(torch.get_rng_state(), before)  # the loop's body goes on with its own numbers
    with torch.no_grad():
        mean = float(F.cross_entropy(model(inputs.double()), labels))
    assert step.loss == pytest.approx(mean, rel=1e-12)


@pytest.mark.processes
def test_any_number_of_ranks_gives_the_same_bits_and_continues_the_run_of_another_number(
    ranks: Any, tmp_path: Path
) -> None:
    saved, last = str(tmp_path / "saved.pt"), str(tmp_path / "last.pt")
    found = {}
    for size in (1, 2, 3, 4):
        answers = ranks(size, trained, 3, last)
        assert all(answer == answers[0] for answer in answers)
        found[size] = answers[0]
    assert all(one == found[1] for one in found.values())
    (begun, *_) = ranks(2, trained, 1, saved)
    assert begun["steps"] == found[1]["steps"][: len(begun["steps"])]
    for answer in ranks(3, trained, 3, last, saved):
        assert answer["digest"] == found[1]["digest"]
        assert begun["steps"] + answer["steps"] == found[1]["steps"]


def test_what_cannot_be_is_a_sentence() -> None:
    with join() as world:
        with pytest.raises(UserError, match=r"'batch.micro' is 7, which does not divide batch.images"):
            rankless.Steps(world, network(), loss, data(), batch=12, micro=7)
        with pytest.raises(UserError, match="precision is 'half'; expected fp32 or bf16"):
            rankless.Steps(world, network(), loss, data(), precision="half")
        steps = rankless.Steps(world, nn.Linear(3, 4), lambda m, b: m(b[0]).sum(), data(), batch=8)
        with pytest.raises(UserError, match=r"expected rankless\.LossSum"):
            next(steps.epochs(1))
        model = nn.Linear(3, 4)
        endless = rankless.Steps(world, model, lambda m, b: rankless.LossSum(m(b[0]).sum() / 0, 1), data())
        with pytest.raises(UserError, match=r"step 0: the loss is .*; expected finite numbers"):
            next(endless.epochs(1))


def test_other_models_in_a_loss_keep_their_gradients() -> None:
    """As in a GAN, whose generator is trained through a discriminator that has its own steps."""
    torch.manual_seed(0)
    trained, other = nn.Linear(3, 4), nn.Linear(4, 4)
    inputs, labels = data().tensors
    F.cross_entropy(other(trained(inputs)), labels).backward()
    expected = [parameter.grad for parameter in trained.parameters()]
    for parameter in other.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)

    def through(model: nn.Module, batch: Any) -> rankless.LossSum:
        return loss(nn.Sequential(model, other), batch)

    with join() as world:
        next(rankless.Steps(world, trained, through, data(), batch=40, micro=8).epochs(1))
    torch.testing.assert_close([parameter.grad for parameter in trained.parameters()], expected)
    assert all(bool((parameter.grad == 3.0).all()) for parameter in other.parameters())


def differing(world: World) -> str:
    """The problem of a loop in which the last rank changes a bit of a weight after step 1."""
    model = nn.Linear(3, 4)
    try:
        for step in rankless.Steps(world, model, loss, data(), batch=12, micro=3).epochs(3):
            if step.number == 1 and world.rank == world.size - 1:
                bits = model.bias.detach().view(torch.int32)
                bits[2] ^= 1
            if step.number == 3:
                break
    except UserError as error:
        return str(error)
    return "no problem"


@pytest.mark.processes
def test_weights_that_differ_are_found_in_the_next_step_by_every_rank(ranks: Any) -> None:
    sentence = "before step 2, the weights on rank 2 differ from those on rank 0 (first difference: 'bias');"
    found = ranks(3, differing)
    assert found == [found[0]] * 3 and found[0].startswith(sentence)
    assert ranks(1, differing) == ["no problem"]


@pytest.mark.processes
def test_the_example_is_a_plain_script_with_few_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], forked: Any
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(script: Path) -> str:
        with torch.random.fork_rng():
            runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    before, after = ((EXAMPLES / name).read_text() for name in ("plain_loop_before.py", "plain_loop.py"))
    known = {line.strip() for line in before.splitlines()}
    code = after.partition('"""\n\nimport torch')[2].splitlines()
    changed = [line for line in code if line.strip() not in known]
    assert len(changed) <= 14, changed
    for name in ("plain_loop_before.py", "plain_loop.py"):
        assert float(run(EXAMPLES / name).split()[-1]) > 0.95
    short = tmp_path / "short.py"
    short.write_text(after.replace("images(800, 1)", "images(96, 1)"))
    assert short.read_text() != after
    alone = run(short)
    weights = digest(torch.load("corners.pt", weights_only=True))
    Path("corners.pt").unlink()
    done = forked("-m", "torch.distributed.run", "--nproc-per-node", "2", str(short), cwd=Path.cwd())
    assert (done.returncode, done.stdout) == (0, alone), done.stderr
    assert digest(torch.load("corners.pt", weights_only=True)) == weights


def test_outside_of_the_steps_batch_norms_are_as_the_user_has_made_them() -> None:
    model = network()
    norm: Any = model[1]
    norm.momentum = 0.25
    with join() as world:
        steps = rankless.Steps(world, model, loss, data(), batch=12, micro=3)
        for _ in (0, *steps.epochs(1)):  # before the first step, and after each of them
            before, inputs = norm.running_mean.clone(), data().tensors[0][:8]
            with torch.no_grad():
                model(inputs)
                mean = model[0](inputs).mean(0)
            torch.testing.assert_close(norm.running_mean, 0.75 * before + 0.25 * mean)
    assert norm.momentum == 0.25 and not norm._forward_pre_hooks
