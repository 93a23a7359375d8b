"""Train on five data sets from nothing with Rankless, Ultralytics and LibreYOLO, on as many images each.

    python benchmarks/same_budget.py                         # print the table of the stored runs, and plot
    python benchmarks/same_budget.py path/to/data --python PATH       # first train what is not stored

Training goes seed by seed and can be stopped at any time. A run is a line of ``same_budget.jsonl``: the CPU
seconds of the training, and the scores of its last weights on the set's test images, which decide nothing;
Rankless computes all scores. Every program has one thread and its own defaults, see
``same_budget_trainers.py``. ``path/to/data`` has det_bccd, det_raccoon and cls_signs, see
``same_budget_data.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foreign import PYTHON, python_of
from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import open_annotations
from rankless.metrics.coco import Truth, coco_scores
from rankless.structures import Detections
from same_budget_data import SETS, SIDE, prepare
from same_budget_trainers import Box, Job

STORED = Path(__file__).with_suffix(".jsonl")
PLOT = Path(__file__).parent.parent / "docs" / "images" / "same-budget.svg"
TRAINERS = {"rankless": "Rankless", "ultralytics": "Ultralytics", "libreyolo": "LibreYOLO"}
SEEDS = range(5)
SEEN = 1536  # images in a run: whole epochs of each set, in whole batches
MIRRORED = ("cells", "raccoons", "shapes")  # sets whose classes are the same in a mirror


class Case(NamedTuple):
    """A run: the data, the program, the seed and the number of images seen."""

    data: str
    trainer: str
    seed: int
    seen: int


def cases(only: Sequence[str]) -> Iterator[Case]:
    """Yield all runs, or those of some sets, seed by seed."""
    for seed in SEEDS:
        for data in only:
            for trainer in TRAINERS:
                yield Case(data, trainer, seed, SEEN)


def scores(folder: Path, split: str, boxes: Sequence[Sequence[Box]]) -> dict[str, float]:
    """Return AP and AP50 of the boxes of a split's images."""
    images = BoxedImages(open_annotations(str(folder / "data.yaml"), split))
    truths = [images.ground_truth(index) for index in range(len(images))]
    found = []
    for index, rows in enumerate(boxes):
        table = torch.tensor(sorted(rows, key=lambda row: -row[4])).reshape(-1, 6)
        found.append(Detections(index, table[:, :4], table[:, 4], table[:, 5].long()))
    known = [Truth(truth.boxes, truth.labels) for truth in truths]
    return {
        name: score
        for name, score in coco_scores(found, known, images.class_names).items()
        if name in ("AP", "AP50")
    }


def run(
    case: Case, work: Path, python: Sequence[str], split: str = "test", changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Train in a process of its own, and return what is stored."""
    folder = (work / case.data).absolute()
    epochs = round(case.seen / sum(1 for _ in (folder / "train" / "images").iterdir()))
    home = (work / f"{case.data}-{case.trainer}").absolute()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    job = Job(
        case.trainer, str(folder), str(home), split, len(SETS[case.data].classes), SIDE, epochs, case.seed,
        case.data in MIRRORED, changes or {},
    )  # fmt: skip
    done = subprocess.run(
        [
            sys.executable if case.trainer == "rankless" else python_of(case.trainer, python),
            str(Path(__file__).with_name("same_budget_trainers.py")),
            json.dumps(job._asdict()),
        ],
        cwd=home,
        env=environment(case.trainer),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{case}: ended with {done.returncode}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    return {"case": case, **scores(folder, split, found.pop("boxes")), **found}


def environment(trainer: str) -> dict[str, str]:
    """Return the variables of a run: one thread and no GPU."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    kept = {key: text for key, text in os.environ.items() if trainer == "rankless" or key != "PYTHONPATH"}
    return {**kept, **threads, "RANKLESS_CPU": "1", "CUDA_VISIBLE_DEVICES": ""}


def stored() -> dict[Case, dict[str, Any]]:
    """Return the stored runs."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {Case(*line.pop("case")): line for line in map(json.loads, lines)}


def train(work: Path, python: Sequence[str], only: Sequence[str]) -> None:
    """Train every run that is not stored."""
    for case in cases(only):
        if case not in stored():
            line = json.dumps(run(case, work, python))
            with STORED.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
            print(line, flush=True)


def cell(values: Sequence[float], digits: int) -> str:
    """Return mean and range, and the number of seeds if some are missing."""
    fewer = f"; {len(values)} of {len(SEEDS)}" if len(values) < len(SEEDS) else ""
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f}{fewer})"


def by_row(found: dict[Case, dict[str, Any]]) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Yield each set and program with its runs."""
    for data in SETS:
        for trainer in TRAINERS:
            if runs := [found[case] for case in found if (*case[:2], case.seen) == (data, trainer, SEEN)]:
                yield data, trainer, runs


def table(found: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table, if any run is stored."""
    if not found:
        return
    yield "| data | trained by | AP | AP50 | CPU minutes |"
    yield "|---|---|---|---|---|"
    for data, trainer, runs in by_row(found):
        each = [cell([one[name] for one in runs], 3) for name in ("AP", "AP50")]
        minutes = cell([one["cpu"] / 60 for one in runs], 2)
        name = f"{TRAINERS[trainer]} {runs[-1]['version']}"
        yield f"| {SETS[data].title} | {name} | {' | '.join(each)} | {minutes} |"


def draw(found: dict[Case, dict[str, Any]]) -> None:
    """Draw AP over CPU minutes, a panel for each set and a point for each run."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "same_budget"
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = dict(zip(SETS, figure.subplots(2, 3).flat, strict=False))
    marks = dict(zip(TRAINERS, ("o", "s", "^"), strict=True))
    for data, trainer, runs in by_row(found):
        minutes, ap = [one["cpu"] / 60 for one in runs], [one["AP"] for one in runs]
        panels[data].scatter(minutes, ap, label=TRAINERS[trainer], marker=marks[trainer], alpha=0.7)
    for data, axes in panels.items():
        axes.set(title=SETS[data].title, xlabel="CPU minutes", ylabel="AP", xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
    spare = figure.axes[-1]
    spare.axis("off")
    spare.legend(*panels["cells"].get_legend_handles_labels(), loc="center")
    figure.savefig(PLOT, metadata={"Date": None})


def main() -> None:
    """Train what is missing, print the table and draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="the folder with the data; trains what is missing")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/same-budget"), help="for small images and runs"
    )
    parser.add_argument("--python", **PYTHON)
    parser.add_argument("--only", action="append", choices=list(SETS), help="this set; may be repeated")
    parser.add_argument(
        "--trial",
        nargs=2,
        metavar=("PROGRAM", "CHANGES"),
        help="train one program once with changed settings, as JSON, and score it on the validation images",
    )
    options = parser.parse_args()
    only = options.only or list(SETS)
    if options.data:
        for name in only:
            if not (options.work / name / "data.yaml").exists():
                shutil.rmtree(options.work / name, ignore_errors=True)
                prepare(name, options.data, options.work / name)
    if options.data and options.trial:
        trainer, changes = options.trial
        for name in only:
            case = Case(name, trainer, 0, SEEN)
            print(json.dumps(run(case, options.work, options.python, "val", json.loads(changes))))
        return
    if options.data:
        train(options.work, options.python, only)
    found = stored()
    print("\n".join(table(found)))
    if found:
        draw(found)


if __name__ == "__main__":
    main()
