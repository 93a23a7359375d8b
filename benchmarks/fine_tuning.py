"""Fine-tune a small detector on 10, 50 and all images of a data set, beside training it from nothing.

    python benchmarks/fine_tuning.py                            # print the table of the stored runs
    python benchmarks/fine_tuning.py path/to/data --work FOLDER # first train what is not stored, one by one

The network is YOLO-Fastest 1.1, the data are blood cells (BCCD) and raccoons, reduced to 128 pixels. A seed
draws the images, the new weights and the augmentation. Both sides have a quarter of the epochs that
`fine-tune` chooses, or all: the recipe `fine-tune`, and from nothing that of `rankless new`. A run is
a line of ``fine_tuning.jsonl``, with the scores of its last weights on the test images, which decide nothing.
``path/to/data`` has det_bccd, det_raccoon and weights with yolo-fastest-1.1.{weights,cfg} and coco.names.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

import rankless
from rankless.curation import fine_tuning, new_recipe
from rankless.curation.facts import Facts
from rankless.recipe.load import default

STORED = Path(__file__).with_suffix(".jsonl")
SIDE = 128
SEEDS = range(5)
# One process computes a whole batch, and bf16 would depend on the processor.
COMMON = (
    *("data.format=lines", "data.val=test", "data.cache=ram", f"model.image_size={SIDE}"),
    *("batch.micro=8", "precision=fp32", "workers=0"),
)


def _of_voc(root: Path, split: str) -> list[str]:
    return (root / "ImageSets" / "Main" / f"{split}.txt").read_text().split()


def _of_table(root: Path, split: str) -> list[str]:
    rows = (root / "data" / f"{split}_labels.csv").read_text().split()[1:]
    return sorted({row.partition(".")[0] for row in rows})


class Set(NamedTuple):
    """A data set: its folders, its splits, its classes, and the numbers of training images to use."""

    folder: str
    images: str
    annotations: str
    split: Callable[[Path, str], list[str]]
    classes: tuple[str, ...]
    counts: tuple[int, ...]


SETS = {
    "bccd": Set("det_bccd", "JPEGImages", "Annotations", _of_voc, ("Platelets", "RBC", "WBC"), (10, 50, 205)),
    "raccoon": Set("det_raccoon", "images", "annotations", _of_table, ("raccoon",), (10, 50, 160)),
}


class Case(NamedTuple):
    """A run: the data, the number of its images, the weights it starts from, the seed, and its length.

    A ``part`` of 4 is a run of a quarter of the epochs.
    """

    data: str
    images: int
    start: str
    seed: int
    part: int = 4


def cases() -> Iterator[Case]:
    """Yield all runs, the short ones first."""
    starts = ("", "coco", *SETS)
    for column in range(3):
        for seed in SEEDS:
            for name, (*_, counts) in SETS.items():
                for start in starts:
                    if name != start or column == 0:
                        yield Case(name, counts[column], start, seed)
    yield from (Case("raccoon", 10, start, 2, 1) for start in ("", "bccd", "coco"))


def prepare(data: Path, work: Path) -> None:
    """Write each set with small images and a list for each split, in the format `lines`."""
    for name, one in SETS.items():
        root, new = data / one.folder, work / name
        (new / "images").mkdir(parents=True)
        (new / "classes.txt").write_text("".join(f"{each}\n" for each in one.classes))
        for split in ("train", "test"):
            lines = []
            for stem in one.split(root, split):
                with Image.open(root / one.images / f"{stem}.jpg") as opened:
                    image = opened.convert("RGB")
                scale = min(1, SIDE / max(image.size))
                small = [max(1, round(side * scale)) for side in image.size]
                image.resize(small, Image.Resampling.LANCZOS).save(new / "images" / f"{stem}.png")
                words = [f"images/{stem}.png"]
                for each in ElementTree.parse(root / one.annotations / f"{stem}.xml").iter("object"):
                    keys = ("xmin", "ymin", "xmax", "ymax")
                    box = [float(each.findtext(f"bndbox/{key}", "")) * scale for key in keys]
                    label = one.classes.index(each.findtext("name", ""))
                    words.append(",".join([*(f"{side:.2f}" for side in box), str(label)]))
                lines.append(" ".join(words))
            (new / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
    weights = str(data / "weights" / "yolo-fastest-1.1")
    command = [sys.executable, "-m", "rankless", "import", f"{weights}.weights", "--cfg", f"{weights}.cfg"]
    names = str(data / "weights" / "coco.names")
    subprocess.run([*command, "--names", names, "--out", str(work / "coco.safetensors")], check=True)
    shutil.copy(f"{weights}.cfg", work / "network.cfg")


def some(work: Path, case: Case) -> str:
    """Write the list of a run's training images, and return its name."""
    lines = (work / case.data / "train.txt").read_text().splitlines()
    random.Random(f"{case.data}-{case.seed}").shuffle(lines)
    name = f"some{case.images}x{case.seed}"
    (work / case.data / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines[: case.images]))
    return name


def from_nothing(case: Case) -> list[str]:
    """Return what `rankless new` chooses for the data, except for network, data and length."""
    classes = dict.fromkeys(SETS[case.data].classes, case.images)
    facts = Facts(
        root="", format="lines", classes="auto", train="train", val="test", split_note="", boxed=True,
        train_images=case.images, val_images=1, counts=classes, height=SIDE, width=SIDE, is_uniform=False,
        box_side=20, gpus=0, cores=1, memory=8 << 30,
    )  # fmt: skip
    ours = ("data.augment.", "batch.", "optim.", "schedule.", "ema.")
    return [f"{each.key}={each.value}" for each in new_recipe.settings(facts) if each.key.startswith(ours)]


def recipe_of(case: Case, work: Path, epochs: int | None = None) -> rankless.Recipe:
    """Return a run's recipe; by default, with its part of the epochs of `fine-tune`."""
    chosen = fine_tuning.words(case.images, known=case.start == case.data)
    full = next(int(word.partition("=")[2]) for word in chosen if word.startswith("epochs="))
    words = [f"data.root={work / case.data}", f"data.train={some(work, case)}", f"seed={case.seed}", *COMMON]
    words.append(f"epochs={epochs or -(-full // case.part)}")
    if case.start:
        curve = "10%" if case.start == case.data else 0
        more = [f"model.pretrained={work / case.start}.safetensors", f"evaluate.every={curve}"]
        return rankless.load_recipe("fine-tune", [*chosen, *words, *more])
    return default([*from_nothing(case), *words, f"model.cfg={work / 'network.cfg'}", "evaluate.every=0"])


def trained(recipe: rankless.Recipe, run: Path) -> list[dict[str, Any]]:
    """Train, and return the scores of each evaluation of the average, the last one of the last weights."""
    shutil.rmtree(run, ignore_errors=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = rankless.train(recipe, run, devices=1, inline=True)
    if code:
        raise SystemExit(f"{run}: training ended with {code}\n{said.getvalue()[-3000:]}")
    lines = map(json.loads, (run / "journal.jsonl").read_text().splitlines())
    return [line["scores"] for line in lines if "evaluation" in line]


SOURCES = {name: Case(name, one.counts[-1], "", 77) for name, one in SETS.items()}
"""The detectors that others start from, trained from nothing in 20 epochs."""


def store(case: Case, recipe: rankless.Recipe, work: Path) -> None:
    """Train, and append the result to the stored ones."""
    began = time.process_time()
    scores = trained(recipe, work / "run")
    found = {
        "case": case,
        **{name: [round(each[name], 4) for each in scores] for name in ("AP", "AP50")},
        "seen": recipe.epochs * case.images,
        "seconds": round(time.process_time() - began, 1),
    }
    with STORED.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found), flush=True)


def stored() -> dict[Case, dict[str, Any]]:
    """Return the stored results by case."""
    if not STORED.exists():
        return {}
    lines = map(json.loads, STORED.read_text(encoding="utf-8").splitlines())
    return {Case(*line.pop("case")): line for line in lines}


def train(data: Path, work: Path) -> None:
    """Train every run that is not stored."""
    if not (work / "network.cfg").exists():
        prepare(data, work)
    for name, source in SOURCES.items():
        if not (work / f"{name}.safetensors").exists():
            store(source, recipe_of(source, work, 20), work)
            shutil.copy(work / "run" / "last.safetensors", work / f"{name}.safetensors")
    for case in cases():
        if case not in stored():
            store(case, recipe_of(case, work), work)


def cell(results: Sequence[dict[str, Any]]) -> str:
    """Return mean and range of the last AP, the mean of AP50, and the number of seeds if some are missing."""
    if not results:
        return ""
    last = [each["AP"][-1] for each in results]
    fifty = statistics.mean(each["AP50"][-1] for each in results)
    fewer = f"; {len(results)} seeds" if len(results) < len(SEEDS) else ""
    return f"{statistics.mean(last):.3f} ({min(last):.3f}–{max(last):.3f}), {fifty:.3f}{fewer}"


def table(found: dict[Case, dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table, what ten images more made of the detectors, and whole runs."""
    yield "| data | started from | 10 images | 50 images | all |"
    yield "|---|---|---|---|---|"
    names = {"": "nothing", "bccd": "blood cells", "raccoon": "raccoons", "coco": "COCO"}
    runs = {case: found[case] for case in found if case not in SOURCES.values()}
    for data, one in SETS.items():
        for start, name in names.items():
            columns = [
                [runs[case] for case in runs if case == (data, count, start, case.seed, 4)]
                for count in one.counts
            ]
            if any(columns):
                yield f"| {names[data]} | {name} | {' | '.join(map(cell, columns))} |"
    yield ""
    for data, source in SOURCES.items():
        kept = [runs[case] for case in runs if case[:3] == (data, 10, data)]
        if source in found and kept:
            low = min(min(each["AP"]) for each in kept)
            yield (
                f"The detector of {names[data]}: {found[source]['AP'][-1]:.3f}, with ten images more "
                f"{cell(kept)}; lowest {low:.3f}."
            )
    for case, one in runs.items():
        if case.part == 1:
            scores = f"{one['AP'][-1]:.3f}, {one['AP50'][-1]:.3f}"
            yield f"All epochs, {case.images} {names[case.data]}, from {names[case.start]}: {scores}"


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="?", type=Path, help="the folder with the data; trains what is missing")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/fine-tuning"), help="for small images and runs"
    )
    options = parser.parse_args()
    if options.data:
        os.environ["RANKLESS_CPU"] = "1"
        train(options.data, options.work)
    print("\n".join(table(stored())))


if __name__ == "__main__":
    main()
