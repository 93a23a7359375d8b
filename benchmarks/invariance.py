"""Train small networks with several programs on 1, 2 and 4 CPU ranks, and compare what each of them computes.

    python benchmarks/invariance.py [--python [NAME=]PATH …] [--scripts NAME=FOLDER …] [--only NAME …]
    python benchmarks/invariance.py --page        # draw the tables of docs/invariance.md from the results

Every run has the same seed, data (digits, written by this script), and 16 images in a step on all ranks
together; ``invariance_peers.py`` has each program's settings. The results are kept in
``benchmarks/invariance.json``; ``--only`` replaces the rows that it names. ``--python`` (or ``PEERS_PYTHON``)
is the Python that has a program. ``--scripts`` is a folder with train.py of timm, or of torchvision's
``references/classification``, which wheels lack.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from foreign import PYTHON, python_of
from invariance_peers import PEERS, SCENE, STEPS
from invariance_record import Job
from rankless.data.builtin.digits import DigitImages, DigitScenes
from table import machine

RANKS, BARE_RANKS, STOP = (1, 2, 4), (1, 2), 28
GRACE = 20  # seconds for the other ranks once one has failed
TRAIN, VAL = 256, 64  # images: 16 steps in an epoch
RESULTS = Path(__file__).with_name("invariance.json")
PAGE = RESULTS.parent.parent / "docs" / "invariance.md"
# The last match in what a program prints is its score, and what it has to be divided by.
SCORES = {
    "rankless": (r"top1 +([\d.]+)", 1),
    "rankless-detector": (r"AP +([\d.]+)", 1),
    "torchvision": (r"Acc@1 ([\d.]+)", 100),
    "timm": (r"Best metric: ([\d.]+)", 100),
    "ultralytics": (r" all +\d+ +\d+ +\S+ +\S+ +\S+ +([\d.]+)", 1),
    "libreyolo": (r"mAP50-95[^\d]+([\d.]+)", 1),
    "rfdetr": (r"mAP_50_95\D+([\d.]+)", 1),
}
OWN_SCORE = (r"score:? ([\d.]+)", 1)
TITLES = {
    "rankless": "**Rankless**, ResNet-18",
    "pytorch": "PyTorch, its DDP tutorial",
    "torchvision": "torchvision, `references`",
    "timm": "timm, `train.py`",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "mmengine": "mmengine",
    "rankless-detector": "**Rankless**, YOLOv4-tiny",
    "ultralytics": "Ultralytics, YOLO11n",
    "libreyolo": "LibreYOLO, YOLOX-n",
    "rfdetr": "RF-DETR, nano",
}
WHOLE = ("rankless", "rankless-detector", "accelerate", "ultralytics", "libreyolo")  # see Job.share
IMAGES = {"same": "the same", "set": "the same, in another order", "different": "different"}
START, END = "<!-- results: python benchmarks/invariance.py --page -->\n", "<!-- end of results -->\n"


def write_data(folder: Path) -> None:
    """Write digits as a folder per class, and scenes of them as a data.yaml with YOLO labels."""
    for split, ours, count in (("train", "train", TRAIN), ("valid", "val", VAL)):
        digits = DigitImages(ours)
        for number in range(count):
            index = number * len(digits) // count
            home = folder / "classes" / ours / str(digits.label(index))
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(digits.read(index).permute(1, 2, 0).numpy()).save(home / f"{number:05}.png")
        scenes = DigitScenes(ours, count, size=(SCENE, SCENE))
        home = folder / "scenes" / split
        for kind in ("images", "labels"):
            (home / kind).mkdir(parents=True)
        for number in range(count):
            sample = scenes.read(number)
            Image.fromarray(sample.image.permute(1, 2, 0).numpy()).save(home / "images" / f"{number:05}.png")
            low, high = sample.boxes.numpy()[:, :2] / SCENE, sample.boxes.numpy()[:, 2:] / SCENE
            rows = np.concatenate((sample.labels.numpy()[:, None], (low + high) / 2, high - low), 1)
            np.savetxt(home / "labels" / f"{number:05}.txt", rows, "%d %.6f %.6f %.6f %.6f")
    (folder / "scenes" / "data.yaml").write_text(
        f"path: {folder / 'scenes'}\ntrain: train/images\nval: valid/images\nnc: 10\n"
        f"names: {list(map(str, range(10)))}\n"
    )


class Seen(NamedTuple):
    """One run: its problem if it had one; what every rank noted; weights before and after; score; seconds."""

    problem: str
    ranks: list[dict[str, Any]]
    start: np.ndarray[Any, Any] | None
    end: np.ndarray[Any, Any] | None
    score: float | None
    seconds: float

    def images(self) -> list[list[str]]:
        """Return the images of each step, rank by rank."""
        return [
            list(itertools.chain(*parts))
            for parts in zip(*(one["images"] for one in self.ranks), strict=False)
        ]


def run(job: Job, python: str, limit: float) -> Seen:
    """Train with the environment that torchrun gives its ranks, and read what was seen."""
    out = Path(job.out)
    if not (out / "run.json").exists():  # or finished before
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        Path(job.work).mkdir(parents=True, exist_ok=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            problem = finished(_started(job, python), limit)
        except OSError as error:  # no such Python
            problem = str(error)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        (out / "run.json").write_text(json.dumps({"problem": problem, "seconds": seconds}))
    return read_run(job, **json.loads((out / "run.json").read_text()))


def _started(job: Job, python: str) -> list[subprocess.Popen[bytes]]:
    command = [python, str(Path(__file__).with_name("invariance_peers.py")), json.dumps(job._asdict())]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {
        "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RANKLESS_CPU": "1", "TMPDIR": job.work,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "WORLD_SIZE": f"{job.ranks}",
        "LOCAL_WORLD_SIZE": f"{job.ranks}", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    environment = {**os.environ, **variables}
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    with Path(job.out, "log").open("w") as log:
        return [
            subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=job.work,
                start_new_session=True,
                env={**environment, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"},
            )
            for rank in range(job.ranks)
        ]


def finished(processes: list[subprocess.Popen[bytes]], limit: float) -> str:
    """Wait, end what is left, and return what was wrong with the time."""
    began, patience = time.perf_counter(), limit
    try:
        while any(one.poll() is None for one in processes):
            time.sleep(0.1)
            passed = time.perf_counter() - began
            if passed > patience:
                return f"not finished after {limit:.0f} s" if patience == limit else ""
            if patience == limit and any(one.poll() for one in processes):
                patience = min(limit, passed + GRACE)
        return ""
    finally:
        for one in processes:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def read_run(job: Job, problem: str, seconds: float) -> Seen:
    """Return what the ranks have written, and their problem rather than that of the time."""
    out = Path(job.out)
    files = [out / f"rank-{rank}.json" for rank in range(job.ranks)]
    ranks = [json.loads(file.read_text()) for file in files if file.exists()]
    problem = next((one["error"] for one in ranks if one.get("error")), problem)
    text = (out / "log").read_text(errors="replace")
    if not problem and (len(ranks) < job.ranks or not ranks[0]["rates"]):
        problem = "no step was trained" if ranks else text.strip().splitlines()[-1]
    pattern, unit = SCORES.get(job.peer, OWN_SCORE)
    score = re.findall(pattern, text)
    start, end = (np.load(out / name) if (out / name).exists() else None for name in ("start.npy", "end.npy"))
    return Seen(problem, ranks, start, end, float(score[-1]) / unit if score else None, seconds)


def compared(one: Seen, other: Seen) -> dict[str, Any]:
    """Return how ``other`` differs from ``one``, or its problem."""
    if other.problem or one.start is None or other.start is None or one.end is None or other.end is None:
        return {"problem": other.problem or "nothing to compare with"}
    mine, theirs = one.images(), other.images()
    if mine == theirs:
        order = "same"
    elif list(map(sorted, mine)) == list(map(sorted, theirs)):
        order = "set"
    else:
        order = "different"
    first, second = one.ranks[0], other.ranks[0]
    rates = [b / a for a, b in zip(first["rates"], second["rates"], strict=False) if a]
    pairs = zip(first["norms"], second["norms"], strict=False)
    apart = one.end.astype(np.float64) - other.end
    moved = float(np.linalg.norm(one.end.astype(np.float64) - one.start))
    steps = [b - a for a, b in zip(second["times"], second["times"][1:], strict=False)]
    return {
        "images": order,
        "batch": len(theirs[0]),
        "steps": len(second["rates"]),
        "start": float(np.abs(one.start - other.start).max()),
        "max": float(np.abs(apart).max()),
        "relative": float(np.linalg.norm(apart)) / moved,
        "rate": max(rates, key=lambda ratio: abs(ratio - 1)) if rates else None,
        "gradient": second["norms"][0] / first["norms"][0],  # of the first step, and how it goes on:
        "drift": [float(f"{abs(b / a - 1):.1e}") for a, b in pairs],
        "score": other.score,
        "seconds": other.seconds,
        "step_ms": 1000 * statistics.median(steps) if steps else None,
    }


def measured(job: Job, python: str, limit: float) -> dict[str, Any]:
    """Return one program's results: by ranks, as usual and bare, and resumed on one rank."""

    def seen(name: str, **changes: Any) -> Seen:
        say(f"{job.peer}: {name}")
        one = job._replace(**{"work": f"{job.work}/{name}", "out": f"{job.out}/{name}", **changes})
        found = run(one, python, limit)
        say(f"  {found.problem or f'{found.seconds:.0f} s'}")
        return found

    result: dict[str, Any] = {}
    for kind, ranks in (("usual", RANKS), ("bare", BARE_RANKS)):
        alone = seen(f"{kind}-1", bare=kind == "bare")
        result.setdefault("version", next((rank.get("version") for rank in alone.ranks), None))
        result[kind] = {"1": compared(alone, alone)}
        if alone.problem:
            continue
        if kind == "usual":
            killed = seen("killed", stop=STOP)
            result["again"] = repeated(alone, killed)
            again = seen("resumed", resume=True, work=f"{job.work}/killed")
            result["resumed"] = {
                key: value
                for key, value in compared(alone, again).items()
                if key in ("problem", "steps", "max", "relative")  # the others are of steps side by side
            }
        for count in ranks[1:]:
            result[kind][str(count)] = compared(
                alone, seen(f"{kind}-{count}", bare=kind == "bare", ranks=count)
            )
    return result


def repeated(one: Seen, again: Seen) -> bool | None:
    """Return whether the killed run had computed what the whole one had: pixels and gradients."""
    if again.problem:
        return None
    first, second = one.ranks[0], again.ranks[0]
    return all(first[name][: len(second[name])] == second[name] for name in ("images", "norms"))


def tables(found: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    rows = {name: found["rows"][name] for name in TITLES if name in found["rows"]}
    lines = [
        f"{found['machine']}; {found['date']}.",
        "",
        "| | version | images of a step | pixels | weights, 2 ranks | weights, 4 ranks "
        "| weights, 2 ranks, bare | score on 1, 2, 4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        usual, bare = row["usual"], row["bare"]
        cells = [
            _either(bare.get("2") or bare["1"], _images),
            _either(usual.get("4") or usual["1"], _images),
            *(_either(usual.get(ranks) or usual["1"], _apart) for ranks in ("2", "4")),
            _either(bare.get("2") or bare["1"], _apart),
            ", ".join(_score(one) for one in usual.values()),
        ]
        lines.append(_line(f"{TITLES[name]}", row["version"] or "", *cells))
    lines += [
        "",
        "| | batch option counts images of | rate, 4 ranks / 1 | gradient, 2 ranks / 1 | trained twice "
        "| killed and resumed | CPU s | CPU ms per step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        usual, bare, again = row["usual"], row["bare"], row.get("again")
        cells = [
            "all ranks" if name in WHOLE else "a rank",
            _either(usual.get("4"), lambda it: f"{it['rate']:.3g}"),
            _either(bare.get("2"), lambda it: f"{it['gradient']:.3f}"),
            "" if again is None else "the same" if again else "different",
            _either(row.get("resumed"), _resumed),
            _either(usual["1"], lambda it: f"{it['seconds']:.0f} | {it['step_ms']:.0f}"),
        ]
        lines.append(_line(TITLES[name], *cells))
    lines += ["", "Not started or not offered, in the words of the programs:", ""]
    said = set()
    for name, row in rows.items():
        for one in (*row["usual"].values(), *row["bare"].values(), row.get("resumed", {})):
            words = textwrap.shorten(re.sub(r"\x1b\[\d*m", "", one.get("problem", "")), 110, placeholder=" …")
            if words and (name, words[:30]) not in said:
                said.add((name, words[:30]))
                lines.append(f"- {TITLES[name]}: {words}")
    return "\n".join(lines)


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _either(it: dict[str, Any] | None, show: Callable[[dict[str, Any]], str]) -> str:
    if it is None:
        return ""
    return "not started" if "problem" in it else show(it)


def _images(it: dict[str, Any]) -> str:
    return IMAGES[it["images"]]


def _apart(it: dict[str, Any]) -> str:
    return "**0**" if it["max"] == 0 else f"{it['max']:.1e}; {100 * it['relative']:.3g} %"


def _score(it: dict[str, Any]) -> str:
    return "–" if it.get("score") is None else f"{it['score']:.3f}"


def _resumed(it: dict[str, Any]) -> str:
    twice = it["steps"] - (STEPS - STOP)
    steps = f"{abs(twice)} steps {'repeated' if twice >= 0 else 'left out'}"
    return f"{steps}; {'the same' if it['max'] == 0 else _apart(it)}"


def draw(page: Path, found: dict[str, Any]) -> None:
    """Write the tables into the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n{tables(found)}\n\n{END}{after}", encoding="utf-8")


def say(what: str) -> None:
    """Print progress."""
    print(f"… {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", **PYTHON)
    parser.add_argument("--scripts", metavar="NAME=FOLDER", action="append", default=[])
    parser.add_argument("--only", action="append", choices=list(PEERS))
    parser.add_argument("--limit", type=float, default=1200, help="seconds of a run")
    parser.add_argument("--work", type=Path, help="an empty folder to keep everything in")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        if not RESULTS.exists():
            parser.error(f"{RESULTS} does not exist; measure first, without --page")
        draw(PAGE, json.loads(RESULTS.read_text()))
        return
    scripts = dict(pair.partition("=")[::2] for pair in options.scripts)
    with tempfile.TemporaryDirectory(prefix="invariance-") as made:
        home = options.work or Path(made)
        if not (home / "data").exists():
            write_data(home / "data")
        for name in options.only or PEERS:
            folder = f"{home}/{name}"
            job = Job(name, 1, f"{home}/data", f"{folder}/work", f"{folder}/out", scripts.get(name, ""))
            python = sys.executable if name.startswith("rankless") else python_of(name, options.python)
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": {}}
            found["rows"][name] = measured(job, python, options.limit)
            found |= {"machine": machine(), "date": time.strftime("%Y-%m-%d")}
            text = re.sub(r"\[[^]]*\]", lambda it: " ".join(it[0].split()), json.dumps(found, indent=1))
            RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
