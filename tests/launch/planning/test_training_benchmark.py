"""``rankless benchmark``: a training and a plain loop in turns, what a step consists of, and advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankless.cli import main
from rankless.errors import ShortageError
from rankless.launch.planning.bare_process import BareLoop
from rankless.launch.planning.training_benchmark import Bare, Bench, Shares, Speed, steady
from rankless.recipe.load import load
from support.small_plans import SMALL

CALM = Shares(0.9, 0.02, 0.04, 0.04)


def advice(shares: Shares = CALM, micro: float = 1.0, bf16: float = 1.0, **more) -> dict[str, str]:
    best = {(4, "fp32"): 1.0, (2, "fp32"): micro, (4, "bf16"): bf16, (4, "pure-bf16"): 9.0}
    speeds = [Speed("plain", *mode, 1.0, 1.0, (beside, beside), 0) for mode, beside in best.items()]
    given = {"recipe": load("digits", SMALL), "devices": 1, "workers": 0, "cores": 2} | more
    return dict(Bench(step=1.0, shares=shares, speeds=[speeds[0], *speeds], notes=[], **given).advice())


def test_advice_follows_what_was_measured(tmp_path: Path) -> None:
    busy = Shares(0.4, 0.2, 0.2, 0.2)
    found = advice(busy, micro=0.8, bf16=1.5)
    assert list(found) == ["workers", "batch.micro", "precision", "--devices", "batch.images"]
    assert "try workers=1 (1 of 2 cores are free)" in found["workers"]
    assert "4 images at a time are 1.25 times as fast as 2: try batch.micro=4" in found["batch.micro"]
    assert "1.50 times as fast in bf16 as in fp32: try precision=bf16" in found["precision"]
    files = load("digits", [*SMALL, f"data.root={tmp_path}"])  # whose images are worth a cache
    assert "data.cache" in advice(busy, recipe=files) and "data.cache" not in found
    assert advice() == advice(micro=0.5, devices=2) == {}


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(1, 300), st.data())
def test_the_plain_loop_halves_its_batch_until_memory_suffices(images: int, data: st.DataObject) -> None:
    micro = data.draw(st.sampled_from([size for size in range(1, images + 1) if images % size == 0]))
    fits = data.draw(st.integers(0, images))
    tried = []

    class Imagined(Bare):
        def _start(self) -> None:
            self.processes = [type("P", (), {"pid": 0, "end": lambda self: None})()]  # type: ignore[list-item]

        def _free(self) -> int:
            return 0

        def turn(self, mode, budget) -> None:
            tried.append(mode[0])
            if mode[0] > fits:
                raise ShortageError("out of memory")

    with Imagined(load("digits", [*SMALL, f"batch.images={images}", f"batch.micro={micro}"]), 1) as loop:
        if fits < micro:
            with pytest.raises(ShortageError):
                loop.largest(images)
        else:
            found = loop.largest(images)
            assert micro <= found <= fits and images % found == 0
    assert tried == sorted(tried, reverse=True) and len(tried) <= images.bit_length() + 1


@pytest.mark.slow
def test_the_plain_loop_has_the_same_gradient_for_any_split_of_the_batch() -> None:
    recipe = steady(load("digits", [*SMALL, "batch_norm=frozen", "model.dropout=0", "optim.clip=5"]))
    weights = []
    for images in (4, 2):
        loop = BareLoop(recipe, torch.device("cpu"))
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.1
        loop.step(images, "fp32")
        weights.append(torch.cat([p.detach().flatten() for p in loop.model.parameters()]))
    before = torch.cat([p.flatten() for p in BareLoop(recipe, torch.device("cpu")).model.parameters()])
    moved = (weights[0] - before).norm()
    assert moved > 1e-3
    assert (weights[0] - weights[1]).norm() < 1e-3 * moved


@pytest.mark.slow
def test_pure_half_precision_leaves_no_float32_number() -> None:
    recipe = steady(load("digits", [*SMALL, "optim.name=adamw", "ema.decay=0.9"]))
    loop = BareLoop(recipe, torch.device("cpu"))
    for precision, dtype in (("fp32", torch.float32), ("pure-bf16", torch.bfloat16), ("fp32", torch.float32)):
        loop.step(4, precision)
        moments = [loop.optimizer.state[p][name] for p in loop.model.parameters() for name in MOMENTS]
        held = [*loop.model.parameters(), *loop.average.model.parameters(), *moments]
        assert {one.dtype for one in held} == {dtype}


MOMENTS = ("exp_avg", "exp_avg_sq")


def test_the_table_fits_into_80_columns() -> None:
    speeds = [
        Speed("rankless", 1024, "bf16", 12345.67, 9876.54, (0.98, 1.02), 70 << 30),
        Speed("plain", 65536, "bf16", 12345.67, 9876.54, (1.0, 1.0), 0),
    ]
    lines = [*Bench(load("digits", SMALL), 8, 4, 64, 0.25, CALM, speeds, []).lines()]
    assert max(map(len, lines)) <= 80
    assert "a step of 250 ms: compute 90%, waiting for images 2%, network 4%, other 4%" in lines


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*SMALL, "--seconds", "0"], "--seconds is 0: expected a number above 0 and at most 3600"),
        ([*SMALL, "--devices", "3"], "--devices is 3, but a step has only 2 micro-batches"),
        ([*SMALL, "--devices", "0,1"], "--devices is 0,1, which selects GPUs, but only their number"),
        ([*SMALL, "data.root=/nowhere"], "data.root is '/nowhere': no such file or folder"),
        (["digits", "--formats", "onnx"], "--formats: needs a trained model, but a recipe"),
        (["runs/none", "--devices", "2"], "--devices: needs a recipe, but a trained model"),
        (["runs/none"], "runs/none: no such file or directory"),
        (["digit"], "'digit': no such file, folder or shipped recipe"),
    ],
)
def test_a_mistake_is_a_sentence(words, problem, capsys) -> None:
    assert main(["benchmark", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {problem}")


@pytest.mark.processes
@pytest.mark.usefixtures("forked_pages")
def test_it_trains_both_in_turns_and_leaves_nothing_behind(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankless.launch.planning.training_benchmark._ROUNDS", 1)
    words = [*SMALL, "data.multi_scale=0.5", "--devices", "2", "--seconds", "0.1", "--pure", "--json"]
    assert main(["benchmark", *words]) == 0
    found = json.loads(capfd.readouterr().out)
    ours, *plain = found["speeds"]
    assert (found["recipe"], found["devices"], found["workers"]) == ("digits", 2, 0)
    assert (ours["what"], ours["images"]) == ("rankless", 2)
    assert [(one["what"], one["images"]) for one in plain[:2]] == [("plain", 4), ("plain", 2)]
    assert plain[0]["beside"] == [1.0, 1.0]
    assert plain[-1]["precision"] in ("pure-bf16", "pure-fp16") and plain[-1]["images"] == 4
    if any(one["best"] > 1.3 * one["median"] for one in found["speeds"]):
        assert any("other work on this machine disturbed" in note for note in found["notes"])
    assert any("Apex's O3" in note for note in found["notes"])
    assert not any("pure" in advice["text"] for advice in found["advice"])
    assert all(one["best"] >= one["median"] > 0 and one["memory"] > 100 << 20 for one in found["speeds"])
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert min(found["shares"].values()) >= 0 and found["shares"]["compute"] > 0
    assert not [*tmp_path.iterdir()]
