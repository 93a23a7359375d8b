"""Measure on one GPU: equal digests, the cost of determinism, speed beside PyTorch's own, memory, launches.

    python benchmarks/gpu.py --out results           # every case; the same again continues where it stopped
    python benchmarks/gpu.py --rehearse --out /tmp/r # on the CPU with tiny sizes, to see that it runs
    python benchmarks/gpu.py --wheels wheels         # collect wheels for a machine that has only PyTorch

Nothing is downloaded while measuring, and the package need not be installed beside it. Each case runs in a
process of its own, and its line in ``results.jsonl`` is written as soon as it ends. A case that failed is
tried again by the next call. No case begins or goes on after ``--seconds``. Every ratio is of contenders that
take turns. The exit code is 1 if a case failed or is left or digests differ, and 2 if a package is missing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
if importlib.util.find_spec("rankless") is None:
    sys.path.insert(0, str(ROOT / "src"))

if TYPE_CHECKING:
    from loops import Subject

ENDLESS = ("epochs=1000000", "evaluate.every=0", "checkpoint.every=100000000", "precision=bf16")
DATA = ("data.root=digits", "ema.decay=0.999", "schedule.warmup=200")
PRECISIONS = ("fp32", "bf16")  # of the digests
DIGEST_STEPS = 5
# The wheels of these come with PyTorch.
WITH_TORCH = ("torch", "triton", "nvidia-", "cuda-")


@dataclass(frozen=True)
class Sizes:
    """The sizes to measure.

    Attributes:
        networks: recipe, side of its images in pixels, images of a step and of a micro-batch, other changes.
        digest: changes to the recipe whose digests are compared, without its micro-batch.
        micros: micro-batches whose digests are compared.
        rounds, steps: turns of every contender, and steps of each turn.
        matmul: side of the matrices that show the device's rate.
        copied: bytes of the tensor whose copy shows the memory's.
    """

    networks: tuple[tuple[str, int, int, int, tuple[str, ...]], ...]
    digest: tuple[str, ...]
    micros: tuple[int, ...]
    rounds: int
    steps: int
    matmul: int
    copied: int


_ONE_SIZE = ("data.multi_scale=0", "data.train_images=2048")
_SMALL = (*_ONE_SIZE, "model.width=0.25")
GPU = Sizes(
    networks=(
        ("yolov4-tiny", 416, 128, 32, _ONE_SIZE),
        ("imagenet-resnet50", 224, 256, 64, ()),
        ("yolov4", 608, 64, 16, _ONE_SIZE),
        ("yolov3", 416, 64, 16, _ONE_SIZE),
        ("resnet18", 224, 256, 64, ()),
    ),
    digest=("data.train_images=2048", "model.image_size=256", "batch.images=32"),
    micros=(4, 8, 16),
    rounds=4,
    steps=4,
    matmul=8192,
    copied=1 << 30,
)
REHEARSAL = Sizes(
    networks=(("yolov4-tiny", 64, 4, 2, _SMALL), ("resnet18", 64, 4, 2, ())),
    digest=("data.train_images=2048", "model.image_size=64", "batch.images=8", "model.width=0.25"),
    micros=(2, 4),
    rounds=1,
    steps=1,
    matmul=512,
    copied=1 << 24,
)


def main() -> int:
    """Measure the cases that are left, or do what an option says."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the case in progress, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of results.jsonl; made if it is not there")
    parser.add_argument("--seconds", type=float, default=540, help="end after so many; 540 by default")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="only collect wheels for Python 3.12")
    parser.add_argument("--torch", default="2.11", help="PyTorch that the wheels are for; 2.11 by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a case, in the process that measures it
    options = parser.parse_args()
    if options.wheels:
        return collect(options.wheels, options.torch)
    if absent := missing():
        print(
            f"error: not installed here: {', '.join(absent)}; install them with: python -m pip install "
            f"{' '.join(absent)}; for a machine without network, collect them elsewhere with: "
            "python benchmarks/gpu.py --wheels FOLDER",
            file=sys.stderr,
        )
        return 2
    sizes = REHEARSAL if options.rehearse else GPU
    if options.rehearse:
        os.environ.update(RANKLESS_CPU="1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    if options.one:
        print(json.dumps(measure(options.one, sizes)))
        return 0
    if options.out is None:
        parser.error("--out: expected a folder for the results")
    names = cases(sizes)
    if unknown := set(options.case or ()) - set(names):
        parser.error(f"--case: no such case: {', '.join(sorted(unknown))}; expected {', '.join(names)}")
    if not options.rehearse:
        import torch

        if not torch.cuda.is_available():
            parser.error("PyTorch finds no GPU; with --rehearse, the script runs on the CPU")
    return run_all(options, options.case or names)


def missing() -> list[str]:
    """Return the packages that the project, or a package it needs, asks for and that are not installed."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        left = [
            *tomllib.load(file)["project"]["dependencies"],
            "transformers",
        ]  # of the recipes of hf/ models
    seen: set[str] = set()
    absent = []
    while left:
        requirement = left.pop(0)
        name = re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")
        if name in seen or ";" in requirement:  # of an extra or of another Python or system
            continue
        seen.add(name)
        try:
            left += importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
    return absent


def collect(folder: Path, torch: str) -> int:
    """Download the wheels that a machine with PyTorch alone lacks, and no PyTorch."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = [
            *tomllib.load(file)["project"]["dependencies"],
            "transformers>=5.18,<6",
            f"torch=={torch}.*",
        ]
    pip = [sys.executable, "-m", "pip"]
    place = [f"--platform=manylinux{name}_x86_64" for name in ("2014", "_2_27", "_2_28")]
    for_target = ["--python-version=3.12", "--only-binary=:all:", *place]
    with tempfile.TemporaryDirectory() as unused:
        report = Path(unused) / "report.json"
        resolve = ["install", "--quiet", "--dry-run", "--ignore-installed", f"--target={unused}/none"]
        code = subprocess.run([*pip, *resolve, f"--report={report}", *for_target, *needed]).returncode
        if code:
            return code
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    names = [f"{one['name']}=={one['version']}" for one in found]
    kept = [
        name
        for name in names
        if not name.startswith(tuple(n for n in WITH_TORCH if n.endswith("-")))
        and name.partition("==")[0] not in WITH_TORCH
    ]
    code = subprocess.run([*pip, "download", "--no-deps", f"--dest={folder}", *for_target, *kept]).returncode
    if not code:
        print(f"there: python -m pip install --no-index --find-links {folder} --no-deps {folder}/*.whl")
    return code


def cases(sizes: Sizes) -> list[str]:
    """Return the names of all cases, what matters most first."""
    from recipe_digests import small_recipes

    return [
        "rates",
        *(f"digests-{precision}" for precision in PRECISIONS),
        *(f"speed-{network[0]}" for network in sizes.networks),
        *(f"step-{name}" for name in small_recipes()),
    ]


def run_all(options: argparse.Namespace, names: list[str]) -> int:
    """Run the cases without a result, and write each one's line when it ends."""
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.jsonl"
    lines = [json.loads(line) for line in whole_lines(file)]
    done = {
        line["case"]: line for line in lines if "error" not in line and line["rehearsal"] == options.rehearse
    }
    end = time.monotonic() + options.seconds
    for name in names:
        if name in done or time.monotonic() >= end:
            continue
        print(f"… {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        line = {"case": name, "date": time.strftime("%Y-%m-%d"), "rehearsal": options.rehearse}
        try:
            line |= in_a_process(name, options.rehearse, end - began)
        except KeyboardInterrupt:
            print(f"stopped in {name}; the same command continues there", file=sys.stderr)
            return 130
        line["seconds"] = round(time.monotonic() - began, 1)
        with file.open("a") as results:
            results.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        done |= {name: line} if "error" not in line else {}
    if left := [name for name in names if name not in done]:
        print(f"no result yet: {', '.join(left)}; the same command tries them again", file=sys.stderr)
    return 1 if left or not all(done[name].get("equal", True) for name in names) else 0


def whole_lines(file: Path) -> list[str]:
    """Return the file's lines, and cut off one that a stop left unfinished."""
    text = file.read_text() if file.exists() else ""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    return text.splitlines()


def in_a_process(name: str, rehearse: bool, seconds: float) -> dict[str, Any]:
    """Return what the case measured, or its error."""
    command = [sys.executable, str(Path(__file__)), "--one", name, *(["--rehearse"] if rehearse else [])]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"error": "the time was over"}
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with its contenders
                process.wait()
        errors.seek(0)
        last = [line for line in errors.read().splitlines() if line.strip()][-1:]
    if process.returncode:
        return {"error": last[0] if last else f"exit code {process.returncode}"}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def measure(name: str, sizes: Sizes) -> dict[str, Any]:
    """Return the figures of a case, in the process that is its own."""
    from table import machine

    kind, _, rest = name.partition("-")
    network = next((each for each in sizes.networks if each[0] == rest), None)
    if kind == "rates":
        found = rates(sizes)
    elif kind == "digests":
        found = digests(sizes, rest)
    elif network:
        found = speeds(sizes, *network)
    else:
        found = one_step(rest)
    return {**found, "machine": machine()}


def rates(sizes: Sizes) -> dict[str, Any]:
    """Return the device's rates of a matrix product in FLOP/s and of a copy in bytes a second."""
    from limits import copy_rate, matmul_rate
    from table import Report

    return {
        "flop_per_s": matmul_rate(Report(""), sizes.matmul),
        "bytes_per_s": copy_rate(Report(""), sizes.copied),
    }


def recipe(name: str, *changes: str) -> str:
    """Return a changed shipped recipe for a contender."""
    from rankless.recipe import load as recipe_file

    return recipe_file.to_json(recipe_file.load(name, [*ENDLESS, *DATA, *changes]))


def digests(sizes: Sizes, precision: str) -> dict[str, Any]:
    """Compare one process, the same again, and two that share the device over gloo, per micro-batch."""
    import loops
    from turns import Contender

    found: dict[str, list[str]] = {}
    for micro in sizes.micros:
        loaded = recipe("digits", *sizes.digest, f"batch.micro={micro}", f"precision={precision}")
        found[str(micro)] = []
        for size in (1, 1, 2) if micro == sizes.micros[0] else (1, 2):
            with Contender(loops.rankless, loaded, size=size) as contender:
                contender.steps(DIGEST_STEPS - 1)  # beside the first one
                found[str(micro)] += contender.ask(digest)
    return {"equal": all(len(set(each)) == 1 for each in found.values()), "digests_by_micro": found}


def digest(step: int, subject: Subject) -> str:
    """Return the digest of weights, running statistics, averaged weights and optimizer state."""
    from rankless.engine.evaluate import fingerprint

    return fingerprint(dict(subject.state.tensors()))


def one_step(name: str) -> dict[str, Any]:
    """Train one step of a shipped recipe with small sizes."""
    import loops
    from recipe_digests import SMALL, small_recipes
    from turns import Contender

    with Contender(loops.rankless, recipe(name, *SMALL, *small_recipes()[name][1:])) as contender:
        return {"digest": contender.ask(digest)[0], "peak_bytes": contender.ask(peak_memory)[0]}


def speeds(
    sizes: Sizes, name: str, side: int, images: int, micro: int, more: tuple[str, ...]
) -> dict[str, Any]:
    """Compare the exact step, one with nondeterministic kernels, and the plain loop's, also compiled."""
    import loops
    from limits import work
    from turns import Contender, rounds

    def json_of(*changes: str) -> str:
        return recipe(name, f"model.image_size={side}", f"batch.images={images}", *more, *changes)

    ours, whole = json_of(f"batch.micro={micro}"), json_of(f"batch.micro={images}")
    contenders: dict[str, tuple[Any, ...]] = {
        "exact": (loops.rankless, ours),
        "fast": (loops.rankless, json_of(f"batch.micro={micro}", "reduce=fast")),
        "plain": (loops.plain, whole),
        "compiled": (loops.plain, whole, True),
    }
    with ExitStack() as stack:
        entered = [stack.enter_context(Contender(*each)) for each in contenders.values()]
        times = rounds(entered, sizes.rounds, sizes.steps)
        memory = [one.ask(peak_memory)[0] for one in entered]
        entered[0].ask(profile)
        entered[0].steps(1)
        (launches,) = entered[0].ask(launched)
    best = [min(one.wall for one in each) for each in times]
    flop, peak = images * work(ours)[0], rates(sizes)["flop_per_s"]
    speed = {way: round(images / second, 1) for way, second in zip(contenders, best, strict=True)}
    return {
        "side": side, "images": images, "micro": micro, "images_per_s": speed,
        "cost_of_determinism": round(best[0] / best[1] - 1, 4),
        "of_best_plain_loop": round(min(best[2:]) / best[0], 4),
        "of_matrix_rate": round(flop / best[0] / peak, 4),
        "peak_bytes": dict(zip(contenders, memory, strict=True)),
        "launches_per_micro_batch": launches * micro // images,
    }  # fmt: skip


_profiler: Any = None


def profile(step: int, subject: Any) -> None:
    """Begin to count launches in a contender."""
    global _profiler
    import torch

    _profiler = torch.profiler.profile()
    _profiler.start()


def launched(step: int, subject: Any) -> int:
    """Return how many kernels were launched since; on the CPU, how many operations were called."""
    import torch

    _profiler.stop()
    start = "cudaLaunch" if torch.cuda.is_available() else "aten::"
    return sum(event.count for event in _profiler.key_averages() if event.key.startswith((start, "cuLaunch")))


def peak_memory(step: int, subject: Any) -> int:
    """Return the most bytes allocated on the GPU so far; 0 on the CPU."""
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


if __name__ == "__main__":
    # Read by cuBLAS when it starts; the contenders' processes inherit it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    raise SystemExit(main())
