"""Which GPUs a run takes, on machines that are made up: what is checked, and what its processes will see."""

from __future__ import annotations

import os

import pytest

from rankless import cli
from rankless.cli.options import devices_here
from rankless.errors import UserError
from rankless.launch.devices import LeftOut, visible


@pytest.fixture
def limit(monkeypatch):
    """Set CUDA_VISIBLE_DEVICES, or remove it if None."""
    monkeypatch.delenv("RANKLESS_CPU", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda numbers: numbers and monkeypatch.setenv("CUDA_VISIBLE_DEVICES", numbers)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("auto", None), ("3", 3), ("0,2", (0, 2)), ("2,", (2,)), (" 1, 0 ", (1, 0)), ("7,3,5,", (7, 3, 5))],
)
def test_what_is_written_is_a_number_or_numbers(text, meant):
    assert devices_here(text) == meant


@pytest.mark.parametrize("text", ["0,x", ",", "1,,2", "-1,2", "cuda:0,1"])
def test_what_is_neither_is_an_error(text):
    with pytest.raises(UserError, match="expected a number, auto, or GPU numbers, as in 0,2"):
        devices_here(text)


@pytest.mark.parametrize(
    ("gpus", "limited", "chosen", "seen"),
    [
        (4, None, (0, 2), "0,2"),
        (4, None, (3, 1), "3,1"),
        (1, None, (0,), "0"),
        (2, "5,7", (1,), "7"),
        (2, "5, 7", (1, 0), "7,5"),
        (2, "GPU-8932f937,MIG-1", (1,), "MIG-1"),
    ],
)
def test_the_processes_see_the_chosen_ones(gpus, limited, chosen, seen, limit):
    limit(limited)
    with visible(chosen, gpus) as count:
        assert count == len(chosen) and os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == limited


@pytest.mark.parametrize("devices", [None, 3])
def test_a_number_leaves_them_as_they_are(devices, limit):
    limit("1,2,3,0")
    with visible(devices, 4) as count:
        assert count == devices and os.environ["CUDA_VISIBLE_DEVICES"] == "1,2,3,0"


def test_devices_are_left_out_round_by_round(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9,5,7,1")
    left_out = LeftOut(gpus=4)
    assert left_out.variables() == {}
    left_out.add([1])
    assert left_out.variables() == {"CUDA_VISIBLE_DEVICES": "9,7,1"}
    left_out.add([1, 2])  # of those that were left: the third and the fourth
    assert left_out.variables() == {"CUDA_VISIBLE_DEVICES": "9"} and len(left_out.numbers) == 3
    left_out.add([0])
    with pytest.raises(UserError, match="all GPUs of this machine have computed wrong results"):
        left_out.variables()


def test_without_gpus_there_are_fewer_ranks():
    left_out = LeftOut(gpus=0)
    left_out.add([1])
    left_out.add([1])
    assert (left_out.variables(), len(left_out.numbers)) == ({}, 2)


@pytest.mark.parametrize(
    ("gpus", "limited", "chosen", "problem"),
    [
        (4, None, (0, 4), "--devices is 0,4, but there are 4 GPUs, numbered 0 to 3; select from these"),
        (1, None, (1,), "--devices is 1, but there is 1 GPU, numbered 0; select from these"),
        (
            2, "5,7", (5,),
            "--devices is 5, but there are 2 GPUs, numbered 0 to 1 within CUDA_VISIBLE_DEVICES=5,7; "
            "select from these",
        ),
        (
            4, None, (1, 1),
            "--devices is 1,1, which selects a GPU twice; list each GPU once, or use --devices 1",
        ),
        (4, None, (), "--devices is an empty list, but there are 4 GPUs, numbered 0 to 3; select from these"),
        (
            0, None, (0, 2),
            "--devices is 0,2, which selects GPUs, but PyTorch found no GPUs on this machine; use a number "
            "of processes, such as --devices 2",
        ),
    ],
)  # fmt: skip
def test_what_is_not_there_is_one_sentence(gpus, limited, chosen, problem, limit):
    limit(limited)
    with pytest.raises(UserError) as caught, visible(chosen, gpus):
        pass
    assert caught.value.problems == (problem,)


@pytest.mark.processes
def test_without_gpus_the_command_says_so(monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("RANKLESS_CPU", "1")
    run = tmp_path / "run"
    assert cli.main(["train", "digits", "--devices", "0,2", "--run", str(run)]) == 2
    assert capfd.readouterr().err.endswith(
        "error: --devices is 0,2, which selects GPUs, but the CPU was selected with --device cpu or "
        "RANKLESS_CPU; use a number of processes, such as --devices 2\n"
    )
    assert not run.exists()
    assert cli.main(["train", "digits", "--devices", "0"]) == 2
    assert "to select GPU 0, use '0,'" in capfd.readouterr().err
    assert cli.main(["train", "digits", "--devices", "0,1", "--hosts", "a,b"]) == 2
    assert "set CUDA_VISIBLE_DEVICES" in capfd.readouterr().err
