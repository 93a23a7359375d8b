"""What the CPU has, what the libraries make of it, and holding them to less."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankless.errors import UserError
from rankless.hardware.instruction_set import fix, model, of_onednn, refuse_unable, variables
from rankless.models.weights_files import weights
from rankless.models.zoo import build
from rankless.recipe.recorded import instruction_set_of
from rankless.recipe.schema import Model, Recipe
from support.thorough import THOROUGH

SKYLAKE = frozenset(["sse4_1", "avx", "avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512vl", "avx512dq"])
ZEN4 = SKYLAKE | {"avx512_vnni", "avx512_bf16"}
SAPPHIRE_RAPIDS = ZEN4 | {"avx_vnni", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
HASWELL = frozenset(["sse4_1", "avx", "avx2", "fma", "bmi2"])

# What oneDNN says of itself when it computes (ONEDNN_VERBOSE=1), and its names for the same in its variable.
SAID = {
    "Intel AVX": "AVX",
    "Intel AVX2": "AVX2",
    "Intel AVX2 with Intel DL Boost": "AVX2_VNNI",
    "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions": "AVX512_CORE",
    "Intel AVX-512 with Intel DL Boost": "AVX512_CORE_VNNI",
    "Intel AVX-512 with Intel DL Boost and bfloat16 support": "AVX512_CORE_BF16",
    "Intel AVX-512 with float16, Intel DL Boost and bfloat16 support": "AVX512_CORE_FP16",
}
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's names are x86's")

COMPUTE = """\
import hashlib, json, sys
from rankless.hardware.instruction_set import fix, of_onednn
fix(sys.argv[1])
import torch, numpy
torch.set_num_threads(1)
chance = torch.Generator().manual_seed(0)
x = torch.rand(4, 32, 26, 26, generator=chance).contiguous(memory_format=torch.channels_last)
w = (torch.rand(64, 32, 3, 3, generator=chance) - 0.5).requires_grad_()
m = torch.rand(64, 300, generator=chance)
torch.nn.functional.conv2d(x, w, padding=1).square().sum().backward()
drawn = torch.empty(64, 32, 3, 3).normal_(generator=chance)
dot = numpy.asarray(m.double()) @ numpy.asarray(m.double()).T
made = [w.grad, drawn, (m @ m.T), m.softmax(1), m.exp(), torch.from_numpy(dot)]
digests = [hashlib.sha256(one.numpy().tobytes()).hexdigest()[:12] for one in made]
print(json.dumps([digests, torch.backends.cpu.get_cpu_capability(), of_onednn()]))
"""


def computed(cpu_isa: str, **environment: str) -> tuple[list[str], str, str, str]:
    """Digests of what a fresh process computes, what ATen and this package say, and oneDNN's own words."""
    done = subprocess.run(
        [sys.executable, "-W", "default::ImportWarning", "-c", COMPUTE, cpu_isa],
        env={**os.environ, "ONEDNN_VERBOSE": "1", **environment},
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    assert "NPY_DISABLE_CPU_FEATURES" not in done.stderr, "NumPy does not know a feature to leave out"
    *reported, last = done.stdout.splitlines()
    digests, aten, onednn = json.loads(last)
    return digests, aten, onednn, next(line for line in reported if ",cpu,isa:" in line).partition("isa:")[2]


@needs_x86
@pytest.mark.processes
@pytest.mark.timeout(600)  # up to four processes that import PyTorch
def test_one_instruction_set_gives_the_same_result_on_any_machine() -> None:
    words = "ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Nehalem"
    machines = [{}, dict(word.split("=") for word in words.split())]
    held = [computed("avx2", **machine) for machine in machines]
    assert held == [held[0]] * len(machines)
    assert held[0][1:3] == ("AVX2", "AVX2") and SAID[held[0][3]] == "AVX2"
    if not THOROUGH:
        return
    # Without the key the same machines differ: there is something to hold.
    native = [computed("native", **machine) for machine in machines]
    assert len({tuple(digests) for digests, *_ in native}) == len(machines)
    for _, _, onednn, said in native:
        assert SAID.get(said, onednn) == onednn


@pytest.mark.parametrize(
    ("features", "environment", "expected"),
    [
        (HASWELL, {}, "AVX2"),
        (SKYLAKE, {}, "AVX512_CORE"),
        (ZEN4, {}, "AVX512_CORE_BF16"),
        (SAPPHIRE_RAPIDS, {}, "AVX512_CORE_AMX"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "avx2"}, "AVX2"),
        (SAPPHIRE_RAPIDS, {"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "AVX512_CORE_BF16"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "AVX10_1_512"}, "AVX512_CORE_FP16"),
        (SAPPHIRE_RAPIDS, {"ONEDNN_MAX_CPU_ISA": "ALL"}, "AVX512_CORE_AMX"),
        (HASWELL, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, "AVX2"),
        (frozenset(), {}, None),
    ],
)
def test_instructions_that_onednn_uses_on_a_processor(
    features: frozenset[str], environment: dict[str, str], expected: str | None
) -> None:
    assert of_onednn(features, environment) == expected


def test_a_processor_without_the_instructions_is_an_error() -> None:
    refuse_unable("native", frozenset())
    refuse_unable("avx2", HASWELL)
    with pytest.raises(UserError) as raised:
        refuse_unable("avx2", HASWELL - {"avx2", "bmi2"})
    assert raised.value.problems == (
        f"cpu_isa is 'avx2', but this processor ({model()}) lacks avx2, bmi2: use cpu_isa=native or "
        "another machine",
    )


@needs_x86
def test_native_changes_nothing_and_a_late_call_is_a_bug() -> None:
    before = dict(os.environ)
    fix("native")
    with pytest.raises(RuntimeError, match="torch"):
        fix("avx2")
    assert dict(os.environ) == before and variables("native") == {}


def test_what_a_weights_file_asks_for(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    state = {"a": torch.zeros(2)}
    for asked in ("native", "avx2"):
        weights.save(file, state, recipe=Recipe(cpu_isa=asked), class_names=())
        assert instruction_set_of(file) == asked
    short, long = struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 1 << 62) + b"{}"
    for content in (b"", b"{", b"\xff" * 64, short, long):
        file.write_bytes(content)
        assert instruction_set_of(file) == "native"
    for path in (tmp_path / "none", tmp_path, Path("/dev/zero")):
        assert instruction_set_of(path) == "native"


@needs_x86
@pytest.mark.processes
def test_the_command_predict_computes_as_the_weights_recipe_says(tmp_path: Path) -> None:
    recipe = Recipe(model=Model(name="yolov4-tiny", width=0.125, image_size=64), cpu_isa="avx2")
    state = build(recipe.model, 1).state_dict()
    weights.save(tmp_path / "w.safetensors", state, recipe=recipe, class_names=["x"])
    code = "import sys, rankless.cli as c; assert not c.main(sys.argv[1:]); import torch; "
    code += "print(torch.backends.cpu.get_cpu_capability())"
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "w.safetensors", "digits:val:0"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "AVX2", done.stderr
