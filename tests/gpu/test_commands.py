"""What a user reads of the commands on a machine with pretended GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.pretended_gpu import PretendedGpu
from support.thorough import THOROUGH

pytestmark = pytest.mark.processes

DATA = ("data.train_images=24", "data.val_images=8", "workers=0")
SMALL = ("digits", "epochs=1", *DATA, "model.width=0.125", "model.image_size=64")


def command(gpu: PretendedGpu, folder: Path, *words: str, **more: str) -> tuple[int, str, str]:
    """Return the exit code, the output and the errors of a command."""
    done = gpu.run("-m", "rankless", *words, cwd=folder, **more)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("error", "cards"), [("710:600", "2"), *([("700:600", "1")] if THOROUGH else [])], ids=str
)
def test_an_invalid_index_ends_a_run_at_once(
    error: str, cards: str, pretended_gpu: PretendedGpu, tmp_path: Path
):
    words = ["train", *SMALL, "--devices", cards, "--run", "run"]
    more = {"PRETENDED_GPU_ERROR": error, "PRETENDED_GPU_CARDS": cards}
    code, _, errors = command(pretended_gpu, tmp_path, *words, **more)
    assert code == 2
    first = {"710:600": "device-side assert triggered", "700:600": "an illegal memory access was encountered"}
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: CUDA error: {first[error]} (noticed at ")
    assert "restarting" not in errors and "Traceback" not in errors


def test_a_full_card_ends_a_run_at_once(pretended_gpu: PretendedGpu, tmp_path: Path):
    words = ["train", "digits", *DATA, "model.image_size=1024", "batch.images=12", "batch.micro=12"]
    code, _, errors = command(pretended_gpu, tmp_path, *words, "--inline", PRETENDED_GPU_GIB="2")
    assert code == 2
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the GPU is out of memory: ") and "Traceback" not in errors, errors
    assert "more were requested" in line and "of 2.00 GiB are free)" in line
    assert "; use a smaller batch.micro (now 12); " in line and "model.checkpointing=true" in line


def test_more_ranks_than_gpus_are_refused(pretended_gpu: PretendedGpu, tmp_path: Path):
    code, _, errors = command(pretended_gpu, tmp_path, "train", *SMALL, "--devices", "2", "--run", "run")
    assert (code, errors) == (
        2,
        "error: --devices is 2, but there is 1 GPU; expected at most one rank per GPU; use --devices 1, "
        "which gives the same weights, or --device cpu to train with 2 processes on the CPU\n",
    )
    assert not [*tmp_path.iterdir()]


def test_threads_train_on_two_cards(pretended_gpu: PretendedGpu, tmp_path: Path):
    words = ["train", *SMALL, "--parallel", "threads", "--devices", "2", "--run", "run"]
    code, output, errors = command(pretended_gpu, tmp_path, *words, PRETENDED_GPU_CARDS="2")
    assert code == 0, errors
    assert "training in run on 2 GPUs (one thread each), bf16" in output
    assert (tmp_path / "run" / "best.safetensors").exists()


@pytest.mark.skipif(not THOROUGH, reason="starts a process for each size")
def test_fit_counts_the_partial_sums(pretended_gpu: PretendedGpu, tmp_path: Path):
    recipe = "yolov3-tiny data.root=digits data.train_images=17 data.multi_scale=0 model.image_size=64"
    words = ["fit", *recipe.split(), "batch.images=17", "batch.micro=1", "--devices", "1", "--json"]
    code, output, errors = command(pretended_gpu, tmp_path, *words, PRETENDED_GPU_GIB="0.3")
    assert code == 0, errors
    answer = json.loads(output)
    small, large = answer["tried"]
    assert answer["free"] == pytest.approx(0.27 * 2**30, rel=0.01)
    assert (small["micro"], small["problem"]) == (
        1,
        "too large with the partial sums of all micro-batches",
    )
    assert small["memory"] > answer["free"] > large["memory"]
    assert answer["largest"] == 17
