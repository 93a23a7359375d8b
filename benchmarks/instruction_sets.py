"""Compare the bits of recipes on different x86 CPUs, with ``cpu_isa: avx2`` and without.

    python benchmarks/instruction_sets.py                           # this CPU, limited by variables
    python benchmarks/instruction_sets.py --emulate Haswell EPYC    # also CPUs that qemu-user emulates: slow
    python benchmarks/instruction_sets.py --kernels --emulate Haswell EPYC    # PyTorch's functions alone

Model, loss, optimizer and augmentation are the recipe's; the data is the built-in digits, the input and the
batch are small, and two steps are trained in one process. The SHA-256 of the weights is compared. Emulation
needs QEMU 10: version 7 crashes in PyTorch's gather instructions.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rankless.hardware.instruction_set import fix

MACHINES: dict[str, dict[str, str]] = {
    "as it is": {},
    "AVX-512 without bf16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"},
    "SSE4.1": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
STEPS = 2
SMALL = [
    "data.root=digits", "data.format=auto", "data.train=train", "data.val=val", "batch.images=4",
    "batch.micro=2", "workers=0", "model.image_size=64", 'model.pretrained=""', "model.freeze=0", "epochs=1",
]  # fmt: skip
UNARY = "sqrt rsqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh erf erfc erfinv"
ACTIVATIONS = "sigmoid gelu silu mish softplus logsigmoid elu hardswish"
FEW = ["data.train_images=16", "data.val_images=4", "data.multi_scale=0"]  # of detectors alone
OWN = {
    "yolov3": ["model.width=0.25"],  # emulation is slow
    "yolov4": ["model.width=0.25"],
    "rtdetr": ["model.image_size=128"],  # has cells for 300 queries
    "dfine": ["model.image_size=256"],  # the smallest that it supports
}


def train(name: str, cpu_isa: str, *overrides: str) -> None:
    """Train two steps and print the digest of the weights; runs in its own process."""
    fix(cpu_isa)
    from dataclasses import replace

    import torch

    from rankless.engine.loop import train as run
    from rankless.engine.setup import DryRun
    from rankless.engine.state import TrainingState
    from rankless.hardware.computing import computes_like
    from rankless.hardware.precision import resolve
    from rankless.models.weights_files.weights import digest
    from rankless.recipe.load import load
    from rankless.runs.directory import RunDirectory
    from rankless.tasks import resolve_recipe
    from rankless.world.process_group import join

    recipe = resolve_recipe(load(name, [*overrides, f"cpu_isa={cpu_isa}"]))
    recipe = replace(recipe, precision=resolve(recipe.precision, torch.device("cpu"), cpu_isa))

    def observe(step: int, state: TrainingState, scores: object) -> None:
        if step == STEPS:
            print("result", digest(state.model.state_dict()))

    with tempfile.TemporaryDirectory() as folder, computes_like(recipe), join() as world:
        directory = RunDirectory(Path(folder))
        run(recipe, directory, world, resume=False, dry_run=DryRun(STEPS, 1), observe=observe)


def kernels() -> None:
    """Print a digest of each function's result with ``cpu_isa: avx2``; runs in its own process."""
    fix("avx2")
    import torch
    from torch.nn import functional as f

    from rankless.hardware.portable import PortableFunctions

    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.float64):
        whole = torch.randint(1, 2**24, (4096,), generator=torch.Generator().manual_seed(1))
        inside = whole.to(dtype) / 2**24 * 0.98 + 0.01  # in 0.01..0.99, where every function is defined
        signed = inside * 8 - 4
        square = signed.view(64, 64)
        made = {name: getattr(torch, name)(inside) for name in UNARY.split()}
        with PortableFunctions():
            made |= {f"portable {name}": getattr(torch, name)(inside) for name in ("sqrt", "atan")}
        made |= {name: getattr(f, name)(signed) for name in ACTIVATIONS.split()}
        made |= {
            "gelu (tanh)": f.gelu(signed, approximate="tanh"),
            "pow 1.7": inside**1.7,
            "pow 0.5": inside**0.5,
        }
        made |= {"atan2": torch.atan2(signed, inside), "norm": signed.norm(), "std": signed.std()}
        made |= {
            "softmax": square.softmax(1),
            "layer_norm": f.layer_norm(square, (64,)),
            "product": square @ square,
        }
        maps = square.view(4, 16, 8, 8)
        made |= {"batch_norm": f.batch_norm(maps, None, None, training=True), "sum": signed.sum()}
        made |= {"conv2d": f.conv2d(maps, square[:36].reshape(16, 16, 3, 3)), "cumsum": signed.cumsum(0)}
        made["normal_"] = torch.empty(999, dtype=dtype).normal_(generator=torch.Generator().manual_seed(1))
        for name, tensor in made.items():
            digest = hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
            print("result", name.replace(" ", "_") + f" {dtype}", digest[:8])


def compare_kernels(emulate: list[str]) -> None:
    """Print the functions whose bits differ between this CPU and the emulated ones."""
    native = results(["kernels"], {}, None)
    others = {cpu: results(["kernels"], {}, cpu) for cpu in emulate}
    different = [line for line in native if any(line not in lines for lines in others.values())]
    agree = len(native) - len(different)
    print(f"{agree} of {len(native)} functions agree on {', '.join(['this CPU', *others])}")
    for line in different:
        print(f"differs: {line}")


def results(words: list[str], environment: dict[str, str], cpu: str | None) -> list[str]:
    """Return the results of this script in a process of one thread, perhaps emulated."""
    emulated = [f"qemu-{os.uname().machine}", "-cpu", cpu] if cpu else []
    done = subprocess.run(
        [*emulated, sys.executable, __file__, "--inside", *words],
        env={**os.environ, "RANKLESS_CPU": "1", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    if not lines:
        raise SystemExit(f"{' '.join(words)}, {cpu or environment}: {done.stderr[-2000:]}")
    return lines


def agreement(names: list[str], emulate: list[str]) -> None:
    """Print the table of digests."""
    from rankless.recipe.load import load

    machines: dict[str, tuple[dict[str, str], str | None]] = {
        name: (env, None) for name, env in MACHINES.items()
    }
    machines |= {f"emulated {cpu}": ({}, cpu) for cpu in emulate}
    print(f"| recipe | cpu_isa | {' | '.join(machines)} |")
    print("|---|---|" + "---|" * len(machines))
    for name in names:
        overrides = [*SMALL, *(FEW if load(name).task == "detect" else []), *OWN.get(name, [])]
        for cpu_isa in ("native", "avx2"):
            cells = [
                results([name, cpu_isa, *overrides], env, cpu)[0][:8]
                if cpu_isa == "avx2" or not cpu
                else "–"  # it is slow, and tells nothing that the limited libraries do not
                for env, cpu in machines.values()
            ]
            print(f"| {name} | {cpu_isa} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    """Read the command line."""
    if sys.argv[1:2] == ["--inside"]:
        if sys.argv[2] == "kernels":
            kernels()
        else:
            train(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="names of shipped recipes; all if not given")
    parser.add_argument("--emulate", nargs="*", default=[], metavar="CPU", help="CPUs of qemu-user")
    parser.add_argument("--kernels", action="store_true", help="compare PyTorch's functions, not recipes")
    parser.add_argument("--tiny", action="store_true", help="one recipe, to see that the script works")
    given = parser.parse_args()
    if given.kernels:
        compare_kernels(given.emulate)
        return 0
    from rankless.recipe.installed import shipped

    agreement(["digits"] if given.tiny else given.recipes or list(shipped()), given.emulate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
