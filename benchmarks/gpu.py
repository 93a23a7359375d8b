"""Measure on a GPU: equal digests on CUDA, the cost of exact kernels, the fraction of the peak.

    python benchmarks/gpu.py [--seconds 480] [--json]

One GPU, nothing to download. Models that do not fit into the time are named and left out. Without a GPU it
runs the same way on the CPU with small sizes, as a rehearsal, and says so. The package need not be installed
beside it. Every ratio is of contenders that take turns in one run. Ends with 1 where two digests differ, and
with 2 where a package is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
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
ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000", "precision=bf16")
DATA = ("data.root=digits", "ema.decay=0.999", "schedule.warmup=200")
OF_DIGITS = (
    "data.train_images=2048",
    "model.image_size=256",
    "batch.images=32",
    "batch.micro=8",
    "model.dropout=0.1",
)


@dataclass(frozen=True)
class Case:
    """A shipped recipe to measure: its image's side in pixels, images of a step and of a micro-batch."""

    recipe: str
    side: int
    images: int
    micro: int
    more: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.recipe}, {self.side} px, {self.images}/{self.micro}, bf16"

    def json(self, *changes: str) -> str:
        """Return the recipe for a contender."""
        sizes = f"model.image_size={self.side}", f"batch.images={self.images}", f"batch.micro={self.micro}"
        return recipe(self.recipe, *sizes, *self.more, *changes)


@dataclass(frozen=True)
class Sizes:
    """The sizes to measure.

    Attributes:
        cases: the recipes whose step is timed; the first is trained from JPEG files, too.
        digest: changes to the recipe whose digests are compared.
        rounds, steps: turns of every contender, and steps of each turn.
        matmul: side of the matrices that show the device's rate.
        copied: bytes of the tensor whose copy shows the memory's.
        files: JPEG files that are read.
    """

    cases: tuple[Case, ...]
    digest: tuple[str, ...]
    rounds: int
    steps: int
    matmul: int
    copied: int
    files: int


_ONE_SIZE = ("data.multi_scale=0", "data.train_images=2048")
_SMALL = ("model.width=0.25",)
GPU = Sizes(
    cases=(
        Case("yolov4-tiny", 416, 128, 32, _ONE_SIZE),
        Case("imagenet-resnet50", 224, 256, 64),
        Case("yolov3", 608, 64, 16, _ONE_SIZE),
        Case("yolov4", 608, 64, 16, _ONE_SIZE),
        Case("yolov3", 416, 64, 16, _ONE_SIZE),
        Case("resnet18", 224, 256, 64),
        Case("densenet121", 224, 128, 32),
    ),
    digest=OF_DIGITS,
    rounds=4,
    steps=4,
    matmul=8192,
    copied=1 << 30,
    files=512,
)
REHEARSAL = Sizes(
    cases=(
        Case("yolov4-tiny", 96, 8, 4, (*_ONE_SIZE, *_SMALL)),
        Case("imagenet-resnet50", 64, 4, 2),
        Case("yolov3", 64, 4, 2, (*_ONE_SIZE, *_SMALL)),
        Case("yolov4", 64, 4, 2, (*_ONE_SIZE, *_SMALL)),
        Case("resnet18", 64, 4, 2),
        Case("densenet121", 64, 4, 2),
    ),
    digest=(*OF_DIGITS, "model.image_size=64", "batch.images=8", "batch.micro=2", "model.width=0.25"),
    rounds=2,
    steps=1,
    matmul=1024,
    copied=1 << 26,
    files=16,
)
PRECISIONS = ("fp32", "bf16")  # of the digests
DIGEST_STEPS = 5


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=480, help="begin no model after so many; 480 by default"
    )
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

    from limits import copy_rate, matmul_rate
    from table import Report, machine

    has_gpu = torch.cuda.is_available()
    report = Report(machine() + ("" if has_gpu else "\nREHEARSAL ON THE CPU, small sizes: no GPU was found"))
    sizes = GPU if has_gpu else REHEARSAL
    began = time.monotonic()
    equal = digests(report, sizes)
    peaks = matmul_rate(report, sizes.matmul), copy_rate(report, sizes.copied)
    from_files(report, sizes)
    late = []
    for case in sizes.cases:
        if time.monotonic() - began < options.seconds:
            step(report, sizes, case, peaks)
        else:
            late.append(str(case))
    if late:
        report.note("left_out", late, f"left out after {options.seconds:g} s: {'; '.join(late)}")
    report.note("seconds", round(time.monotonic() - began), f"took {time.monotonic() - began:.0f} s")
    if options.json:
        print(json.dumps({**report.as_json(), "ok": equal}, indent=2, ensure_ascii=False))
    else:
        report.show()
    return 0 if equal else 1


def recipe(name: str, *changes: str) -> str:
    """Return a changed shipped recipe for a contender."""
    from rankless.recipe import load as recipe_file

    return recipe_file.to_json(recipe_file.load(name, [*ENDLESS, *DATA, *changes]))


def digests(report: Report, sizes: Sizes) -> bool:
    """Compare one process, the same again, and two that share the device over gloo, bit for bit."""
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
    """Return the digest of weights, running statistics, averaged weights and optimizer state."""
    from rankless.engine.evaluate import fingerprint

    return fingerprint(dict(subject.state.tensors()))


def from_files(report: Report, sizes: Sizes) -> None:
    """Measure the first model's step with images from JPEG files, read by the recipe's loader processes."""
    import loops
    from turns import Contender, rounds

    case = sizes.cases[0]
    say(f"{case}, from JPEG files")
    with tempfile.TemporaryDirectory(prefix="rankless-gpu-") as folder:
        make_files(Path(folder), sizes.files)
        with (
            Contender(
                loops.rankless, case.json(f"data.root={folder}", "data.augment.mosaic=0"), True
            ) as read,
            Contender(loops.rankless, case.json()) as ready,
        ):
            times = rounds([read, ready], sizes.rounds, sizes.steps)
    report.compare(f"{case}: JPEG files / images ready in memory", *times)


def make_files(folder: Path, count: int) -> None:
    """Write built-in scenes as JPEG files of 640 × 480 with Darknet's labels, both splits."""
    from PIL import Image

    from rankless.data.builtin.digits import DigitScenes

    scenes = DigitScenes("train", count, size=(480, 640))
    for number in range(count):
        scene = scenes.read(number)
        for split in ("train", "val") if number < 8 else ("train",):
            images, labels = (folder / kind / split for kind in ("images", "labels"))
            for each in (images, labels):
                each.mkdir(parents=True, exist_ok=True)
            pixels = scene.image.permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(images / f"{number}.jpg", quality=90)
            corners, sides = scene.boxes[:, :2], scene.boxes[:, 2:] - scene.boxes[:, :2]
            centers = ((corners + sides / 2) / scene.boxes.new_tensor([640, 480])).tolist()
            extents = (sides / scene.boxes.new_tensor([640, 480])).tolist()
            lines = zip(scene.labels.tolist(), centers, extents, strict=True)
            text = "".join(f"{label} {x:.6f} {y:.6f} {w:.6f} {h:.6f}\n" for label, (x, y), (w, h) in lines)
            (labels / f"{number}.txt").write_text(text)
    (folder / "classes.txt").write_text("".join(f"{digit}\n" for digit in range(10)))


def step(report: Report, sizes: Sizes, case: Case, peaks: tuple[float, float]) -> None:
    """Measure the exact step, one with nondeterministic kernels, and the plain loop's, also compiled."""
    import loops
    from limits import work
    from turns import Contender, rounds

    say(str(case))
    whole = case.json(f"batch.micro={case.images}")
    with ExitStack() as stack:
        contenders = [
            stack.enter_context(contender)
            for contender in (
                Contender(loops.rankless, case.json()),
                Contender(loops.rankless, case.json("reduce=fast")),
                Contender(loops.plain, whole),
                Contender(loops.plain, whole, True),
            )
        ]
        times = rounds(contenders, sizes.rounds, sizes.steps)
        memory = [contender.ask(peak_memory)[0] for contender in contenders]
    report.compare(f"{case}: exact / plain loop, full batch", times[0], times[2])
    report.compare(f"{case}: exact / not deterministic", times[0], times[1])
    report.compare(f"{case}: plain loop compiled / plain loop", times[3], times[2])
    flop, moved = (case.images * each for each in work(case.json()))
    names = ("exact", "not deterministic", "plain loop", "compiled")
    seconds = [statistics.median(t.wall for t in each) for each in times]
    speeds = [case.images / second for second in seconds]
    floors = flop / peaks[0], moved / peaks[1]
    shown = ", ".join(f"{name} {speed:.0f} img/s" for name, speed in zip(names, speeds, strict=True))
    held = f"; at most {', '.join(f'{m / 2**30:.1f}' for m in memory)} GiB" if memory[0] else ""
    report.note(
        f"{case.recipe}_{case.side}",
        {"images_per_second": speeds, "seconds": seconds, "floors": floors, "peak_bytes": memory},
        f"{case}: {shown}; {flop / 1e9:.4g} GFLOP a step, {floors[0] / seconds[0]:.1%} of the matrix "
        f"product's rate when exact; unfused operations move {moved / 1e9:.3g} GB, "
        f"{floors[1] / seconds[0]:.0%} of the step at the rate of a copy{held}",
    )


def peak_memory(step: int, subject: Any) -> int:
    """Return the most bytes allocated on the GPU so far; 0 on the CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def say(what: str) -> None:
    """Print progress."""
    print(f"… {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Read by cuBLAS when it starts; the contenders' processes inherit it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    raise SystemExit(main())
