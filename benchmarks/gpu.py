"""What can be seen only on a GPU: equal digests on CUDA, the price of exact kernels, the share of the peak.

    python benchmarks/gpu.py [--json]

One GPU, some minutes, nothing to download. Without a GPU it runs the same way on the CPU with small sizes, as
a rehearsal, and says so. The package need not be installed beside it. Every ratio is of contenders that take
turns in one run. Ends with 1 where two digests differ, and with 2 where a package is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("rankless") is None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

if TYPE_CHECKING:
    from loops import Subject
    from table import Report

# What an import needs, and the package that brings it.
NEEDED = {
    "torch": "torch",
    "torchvision": "torchvision",
    "numpy": "numpy",
    "PIL": "pillow",
    "pydantic": "pydantic",
    "yaml": "pyyaml",
    "rich": "rich",
    "safetensors": "safetensors",
    "sklearn": "scikit-learn",
}
ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000")
DATA = ("data.root=digits", "data.train_images=2048", "ema.decay=0.999", "schedule.warmup=200")


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        speed: changes to the recipes whose step is timed.
        digest: changes to the recipe whose digests are compared.
        words: the same for the table.
        rounds, steps: turns of every contender, and steps of each turn.
        matmul: side of the matrices that show the device's rate.
    """

    speed: tuple[str, ...]
    digest: tuple[str, ...]
    words: str
    rounds: int
    steps: int
    matmul: int


GPU = Sizes(
    speed=("model.image_size=416", "batch.images=128", "batch.micro=32", "precision=bf16"),
    digest=("model.image_size=256", "batch.images=32", "batch.micro=8", "model.dropout=0.1"),
    words="416 px, 128/32, bf16",
    rounds=10,
    steps=5,
    matmul=8192,
)
REHEARSAL = Sizes(
    speed=("model.image_size=96", "batch.images=8", "batch.micro=4", "model.width=0.25", "precision=bf16"),
    digest=("model.image_size=64", "batch.images=8", "batch.micro=2", "model.width=0.25"),
    words="×0.25, 96 px, 8/4, bf16",
    rounds=3,
    steps=1,
    matmul=1024,
)
PRECISIONS = ("fp32", "bf16")  # of the digests
DIGEST_STEPS = 5


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    options = parser.parse_args()
    if missing := [package for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]:
        print(
            f"error: not installed here: {', '.join(missing)}; install them, as in: "
            f"python -m pip install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    import torch

    from table import Report, machine

    has_gpu = torch.cuda.is_available()
    report = Report(machine() + ("" if has_gpu else "\nREHEARSAL ON THE CPU, small sizes: no GPU was found"))
    sizes = GPU if has_gpu else REHEARSAL
    began = time.monotonic()
    equal = digests(report, sizes)
    rate = matmul_rate(report, sizes)
    for name in ("yolov4-tiny", "yolov3-tiny"):
        step(report, sizes, name, rate)
    report.note("seconds", round(time.monotonic() - began), f"took {time.monotonic() - began:.0f} s")
    if options.json:
        print(json.dumps({**report.as_json(), "ok": equal}, indent=2, ensure_ascii=False))
    else:
        report.show()
    return 0 if equal else 1


def recipe(name: str, *changes: str) -> str:
    """A shipped recipe, changed, for a contender."""
    from rankless.recipe import load as recipe_file

    return recipe_file.to_json(recipe_file.load(name, [*ENDLESS, *DATA, *changes]))


def digests(report: Report, sizes: Sizes) -> bool:
    """One process, the same again, and two that share the device through gloo: every tensor, bit for bit."""
    import loops
    from turns import Contender

    equal = True
    for precision in PRECISIONS:
        say(f"digests in {precision}")
        loaded = recipe("digits", *sizes.digest, f"precision={precision}")
        found: list[list[str]] = []
        for size in (1, 1, 2):
            with Contender(loops.rankless, loaded, size=size) as contender:
                contender.steps(DIGEST_STEPS - 1)  # beside the first one
                found.append(contender.ask(digest))
        same = len({each for world in found for each in world}) == 1
        equal = equal and same
        shown = found[0][0] if same else "; ".join(", ".join(world) for world in found)
        report.note(
            f"digests_{precision}",
            found,
            f"digests, {precision}: one process, one again and two sharing the device, {DIGEST_STEPS} steps: "
            f"{'the same' if same else 'DIFFERENT'} ({shown})",
        )
    return equal


def digest(step: int, subject: Subject) -> str:
    """Of weights, running statistics, average and optimizer state."""
    from rankless.engine.evaluate import fingerprint

    return fingerprint(dict(subject.state.tensors()))


def matmul_rate(report: Report, sizes: Sizes) -> float:
    """FLOP/s of a large bf16 matrix product on this device: the peak that a step is measured by."""
    import torch

    say("matrix products")
    torch.set_num_threads(1)  # as the contenders have
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    side = sizes.matmul
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(4):
            one @ other
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - began) / 4)
    rate = 2 * side**3 / best
    report.note(
        "matmul_tflops",
        round(rate / 1e12, 3),
        f"matrix product of {side}×{side} in bf16: {rate / 1e12:.3g} TFLOP/s",
    )
    return rate


def step(report: Report, sizes: Sizes, name: str, rate: float) -> None:
    """The training step: exact, with the kernels that are not deterministic, and the bare loop's."""
    import loops
    from rankless.recipe import load as recipe_file
    from turns import Contender, rounds

    what = f"{name}, {sizes.words}"
    say(what)
    exact_recipe, fast_recipe = recipe(name, *sizes.speed), recipe(name, *sizes.speed, "reduce=fast")
    with (
        Contender(loops.rankless, exact_recipe) as exact,
        Contender(loops.rankless, fast_recipe) as fast,
        Contender(loops.plain, exact_recipe) as bare,
    ):
        times = rounds([exact, fast, bare], sizes.rounds, sizes.steps)
        peaks = [contender.ask(peak_memory)[0] for contender in (exact, fast, bare)]
    report.compare(f"{what}: exact / bare loop", times[0], times[2])
    report.compare(f"{what}: not deterministic / bare loop", times[1], times[2])
    report.compare(f"{what}: exact / not deterministic", times[0], times[1])
    images = recipe_file.from_json(exact_recipe).batch.images
    work = images * operations(exact_recipe)
    seconds = [statistics.median(t.wall for t in each) for each in times]
    shares = [work / second / rate for second in seconds]
    report.note(
        f"{name}_share_of_matmul",
        [round(share, 4) for share in shares],
        f"{what}: {work / 1e12:.3g} TFLOP a step; exact {images / seconds[0]:.0f} img/s, "
        f"{shares[0]:.1%} of the matrix product's rate; not deterministic {images / seconds[1]:.0f} img/s, "
        f"{shares[1]:.1%}; bare loop {images / seconds[2]:.0f} img/s, {shares[2]:.1%}",
    )
    if peaks[0]:
        gib = [round(peak / 2**30, 3) for peak in peaks]
        report.note(
            f"{name}_peak_gib",
            gib,
            f"{what}: at most {gib[0]} GiB allocated when exact, {gib[1]} not deterministic, {gib[2]} bare",
        )


def peak_memory(step: int, subject: Any) -> int:
    """Most bytes allocated on the GPU so far; 0 on the CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def operations(text: str) -> float:
    """Floating-point operations of forward and backward of one image: those of the convolutions."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from rankless.models.zoo import build
    from rankless.recipe import load as recipe_file

    loaded = recipe_file.from_json(text)
    model = build(loaded.model, 10)
    side: Any = loaded.model.image_size
    height, width = (side, side) if isinstance(side, int) else side
    samples = 2  # a single one has no variance where the map is 1×1
    with FlopCounterMode(display=False) as counter:
        sum(out.sum() for out in model(torch.zeros(samples, 3, height, width))).backward()
    return counter.get_total_flops() / samples


def say(what: str) -> None:
    """Progress, for a human."""
    print(f"… {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Read by cuBLAS when it starts; the contenders' processes inherit it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    raise SystemExit(main())
