"""What the ranks compute with is compared between them and with the start before, and recorded."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankless.engine import environment
from rankless.engine.environment import compare_ranks, describe, record
from rankless.errors import UserError
from rankless.models.weights_files.weights import digest_file
from rankless.recipe.schema import Check, Recipe
from rankless.runs.directory import weights_of
from rankless.world.process_group import World

LAUNCHED = {"started": "2025-01-01T00:00:00+00:00", "command": "rankless train digits"}
ALONE = type("Alone", (), {"size": 1, "backend": "gloo"})()


def found(**changes: dict[str, str]) -> Any:
    """Facts of a machine, changed section by section."""
    made: Any = {
        "hardware": {"device": "cpu", "CPU": "AMD EPYC"},
        "instruction_set": {"ATen": "AVX512", "oneDNN": "AVX512_CORE_AMX"},
        "versions": {"python": "3.11.1", "torch": "2.14.1"},
        "variables": {"OMP_NUM_THREADS": "1"},
    }
    for section, values in changes.items():
        made[section] |= values
    return made


def agreement(
    world: World, changes: dict[int, tuple[str, dict[str, str]]], data: list[str | None], recompute: int = 0
) -> Any:
    made = describe(world.device)
    made["variables"].pop("CUBLAS_WORKSPACE_CONFIG", None)  # set if this process has computed before
    section, values = changes.get(world.rank, ("variables", {}))
    made[section] |= values
    before, environment.describe = environment.describe, lambda device: made
    try:
        return compare_ranks(world, Recipe(check=Check(recompute)), data[world.rank])[1]
    except UserError as error:
        return error.problems
    finally:
        environment.describe = before


@pytest.mark.processes
def test_ranks_that_are_alike_agree(ranks: Any) -> None:
    other = {
        1: ("variables", {"OMP_PLACES": "1", "X_NUM_THREADS": "2"}),
        2: ("versions", {"python": "3.12.0", "NVIDIA driver": "5"}),
    }
    assert ranks(3, agreement, other, ["d", "d", "d"]) == [[], [], []]


@pytest.mark.processes
def test_other_versions_or_data_on_a_rank_are_an_error_on_all(ranks: Any) -> None:
    reported = ranks(3, agreement, {1: ("versions", {"torch": "9.9"})}, ["abc", "abc", "xyz"])
    assert reported[0] == reported[1] == reported[2]
    versions, data = reported[0]
    assert versions == (
        f"torch differs between ranks: {torch.__version__.partition('+')[0]} on ranks 0, 2, 9.9 on rank 1; "
        "use the same on all ranks"
    )
    assert data == (
        "the training data differs between ranks: digest abc on ranks 0, 1, digest xyz on rank 2; use the "
        "same on all ranks"
    )


@pytest.mark.processes
def test_ranks_that_round_differently_are_a_warning(ranks: Any) -> None:
    reported = ranks(2, agreement, {1: ("instruction_set", {"oneDNN": "AVX"})}, ["d", "d"])
    (warning,) = reported[0]
    assert "AVX on rank 1), so the weights" in warning and "cpu_isa=avx2" in warning
    assert reported[1] == reported[0]
    for (error,) in ranks(2, agreement, {1: ("instruction_set", {"oneDNN": "AVX"})}, ["d", "d"], 4):
        assert error == f"check.recompute is 4, but {warning}, or check.recompute=0"


@pytest.mark.processes
def test_variables_that_decide_bits_are_compared(ranks: Any) -> None:
    changes = {
        0: ("variables", {"MKL_CBWR": "COMPATIBLE", "KMP_AFFINITY": "x"}),
        2: ("variables", {"OMP_DYNAMIC": "1"}),
    }
    warning = (
        "the ranks may round differently (MKL_CBWR is COMPATIBLE on rank 0, not set on ranks 1, 2; "
        "OMP_DYNAMIC is not set on ranks 0, 1, 1 on rank 2), so the weights may depend on how the work is "
        "distributed; use the same environment variables on all ranks"
    )
    assert ranks(3, agreement, changes, ["d"] * 3) == [[warning]] * 3
    error = f"check.recompute is 4, but {warning}, or check.recompute=0"
    assert [list(problems) for problems in ranks(3, agreement, changes, ["d"] * 3, 4)] == [[error]] * 3


def test_an_entry_for_every_start_and_none_for_a_restart_of_the_ranks(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    assert record(file, found(), ALONE, 0, LAUNCHED) == []
    assert record(file, found(), ALONE, 7, LAUNCHED) == []
    later = {**LAUNCHED, "started": "2025-01-02T00:00:00+00:00"}
    assert record(file, found(), ALONE, 9, later) == []
    entries = json.loads(file.read_text())
    assert [(entry["started"], entry["after_step"]) for entry in entries] == [
        (LAUNCHED["started"], 0),
        (later["started"], 9),
    ]
    assert entries[1]["instruction_set"]["oneDNN"] == "AVX512_CORE_AMX"
    assert entries[1]["command"] == "rankless train digits" and entries[1]["world_size"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("now", "changes", "verb"),
    [
        (
            found(instruction_set={"oneDNN": "AVX2"}),
            "the instruction set of oneDNN is AVX2, but was AVX512_CORE_AMX at the previous start",
            "will",
        ),
        (
            found(hardware={"device": "NVIDIA H100"}),
            "the device is NVIDIA H100, but was cpu at the previous start",
            "will",
        ),
        (
            found(versions={"torch": "2.15"}, hardware={"CPU": "Intel Xeon"}),
            "the CPU is Intel Xeon, but was AMD EPYC at the previous start; torch is 2.15, but was 2.14.1 at "
            "the previous start",
            "may",
        ),
        (
            found(variables={"NVIDIA_TF32_OVERRIDE": "0"}),
            "NVIDIA_TF32_OVERRIDE is 0, but was not set at the previous start",
            "may",
        ),
        (
            found(variables={"OMP_THREAD_LIMIT": "1", "NCCL_ALGO": "Ring"}),
            "OMP_THREAD_LIMIT is 1, but was not set at the previous start; NCCL_ALGO is Ring, but was not "
            "set at the previous start",
            "may",
        ),
        (found(versions={"python": "3.12.0"}, variables={"OMP_NUM_THREADS": "2"}), "", ""),
    ],
)
def test_what_changes_numbers_is_a_warning_and_nothing_else_is(
    tmp_path: Path, now: Any, changes: str, verb: str
) -> None:
    sentence = f"{changes}, so the final weights {verb} differ from those of an uninterrupted run"
    file = tmp_path / "environment.json"
    record(file, found(), ALONE, 0, LAUNCHED)
    assert record(file, copy.deepcopy(now), ALONE, 0, LAUNCHED) == []  # nothing was computed so far
    file.unlink()
    record(file, found(), ALONE, 0, LAUNCHED)
    assert record(file, now, ALONE, 5, LAUNCHED) == ([sentence] if changes else [])
    assert record(file, now, ALONE, 6, LAUNCHED) == []  # said once


def test_a_record_of_an_earlier_version_and_one_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"versions": {"torch": "2.13.0"}, "device": "cpu", "world_size": 4}))
    (warning,) = record(file, found(), ALONE, 5, LAUNCHED)
    assert warning.startswith(
        "torch is 2.14.1, but was 2.13.0 at the previous start, so the final weights may differ"
    )
    assert [entry["world_size"] for entry in json.loads(file.read_text())] == [4, 1]
    for text in ("{", "[1]", '"x"', "\ud800".encode("utf-8", "surrogatepass")):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        (warning,) = record(file, found(), ALONE, 5, LAUNCHED)
        assert "cannot be read" in warning
        assert len(json.loads(file.read_text())) == 1


@pytest.mark.timeout(60)  # a pipe waits for ever
def test_a_record_that_is_no_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "environment.json"
    os.mkfifo(file)
    (warning,) = record(file, found(), ALONE, 5, LAUNCHED)
    assert f"{file} cannot be read (it is a pipe; expected a regular file" in warning
    assert len(json.loads(file.read_text())) == 1


# Half a run and a whole one, by libraries that the first start limits before it loads them.
HELD = """
import sys
from rankless.__main__ import main
recipe, *words = sys.argv[1:]
sys.argv[1:] = ["train", recipe, *words, "epochs=1", "--run", "held", "--inline"]
assert main() == 0
import rankless
assert rankless.train(rankless.load_recipe(recipe, [*words, "epochs=2"]), "whole", inline=True) == 0
"""


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_recipe_can_hold_the_instruction_set(small_recipe: str, tmp_path: Path, forked: Any) -> None:
    def python(*words: str, **limits: str) -> str:
        environment = {**os.environ, "RANKLESS_CPU": "1", **limits}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    recipe = [small_recipe, "batch.images=8", "batch.micro=4", "precision=fp32", "evaluate.every=0"]
    done = forked("-m", "rankless", "train", *recipe, "epochs=2", "--run", "native", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    python("-c", HELD, *recipe, "cpu_isa=avx2")
    resume = ["-m", "rankless", "train", "--resume", "epochs=2", "--run", "held", "--inline"]
    said = python(*resume, ONEDNN_MAX_CPU_ISA="AVX", ATEN_CPU_CAPABILITY="default")
    assert "instruction set" not in said
    files = {run: weights_of(tmp_path / run / "checkpoints" / "last") for run in ("native", "held", "whole")}
    digests = {run: digest_file(file) for run, file in files.items()}
    assert digests["held"] == digests["whole"] != digests["native"]
    entries = json.loads((tmp_path / "held" / "environment.json").read_text())
    assert [entry["instruction_set"] for entry in entries] == [{"ATen": "AVX2", "oneDNN": "AVX2"}] * 2


def test_what_is_recorded_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ONEDNN_VERBOSE", "0")  # says something and changes nothing
    made = describe(torch.device("cpu"))
    assert made["hardware"]["device"] == "cpu" and made["hardware"]["CPU"]
    assert made["instruction_set"]["ATen"] == torch.backends.cpu.get_cpu_capability()
    assert made["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert {"oneDNN", "OpenMP"} <= set(made["versions"]) and f"v{made['versions']['oneDNN']}" in (
        torch.__config__.show()
    )
    assert made["variables"]["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "ONEDNN_MAX_CPU_ISA" in made["variables"] and "ONEDNN_VERBOSE" not in made["variables"]
