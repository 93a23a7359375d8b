"""Print the digests of every shipped recipe's first steps, before and after a change that must change no bit.

    python benchmarks/recipe_digests.py > before.txt    # some five minutes on two cores
    ... the change ...
    python benchmarks/recipe_digests.py | diff before.txt -

Model, loss, optimizer and augmentation are the recipe's; the data is the built-in digits; input, batch and
width are small. `rankless verify` trains three steps on one rank and on two, and the script prints the
SHA-256 of the weights. It only uses the command line, so it survives any move of code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import rankless

SMALL = [
    "data.root=digits", "data.format=auto", "data.train=train", "data.val=val", "batch.images=4",
    "batch.micro=2", "workers=0", "precision=fp32",
]  # fmt: skip
DETECTOR = ["data.train_images=16", "data.val_images=8", "model.image_size=64", "model.width=0.25"]
QUERIES = ["data.train_images=16", "data.val_images=8", "model.image_size=256"]  # cells for 300 queries
CLASSIFIER = ["model.image_size=32"]
VARIANTS = {
    "digits, mosaic, mixup, copy-paste, sync": [
        "digits", *DETECTOR, "batch_norm=sync", "data.augment.mosaic=0.5", "data.augment.mixup=0.5",
        "data.augment.copy_paste=0.5", "data.augment.flip=0.5", "data.augment.hue=0.1",
    ],
    "digits, multi-scale, bf16": ["digits", *DETECTOR, "precision=bf16", "data.multi_scale=0.5"],
    "blood-cells, rectangular": ["blood-cells", *DETECTOR, "evaluate.rectangular=true"],
    "digits-classify, mixup, cutmix": [
        "digits-classify", *CLASSIFIER, "data.augment.mixup=0.5", "data.augment.cutmix=0.5",
        "data.augment.flip=0.5", "data.augment.crop=0.3",
    ],
}  # fmt: skip


def measure(words: list[str]) -> str:
    """Return the digest after three steps, or end the script with the command's error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANKLESS_CPU": "1"}
    environment["PYTHONPATH"] = str(Path(rankless.__file__).parents[1])
    name, *overrides = words
    by_key = {word.partition("=")[0]: word for word in (*SMALL, *overrides)}  # a later value replaces one
    command = ["verify", name, *by_key.values(), "--worlds", "1,2", "--steps", "3", "--json"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rankless", *command], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"rankless {' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return str(json.loads(done.stdout)["worlds"][0]["digest"])


def small_recipes() -> dict[str, list[str]]:
    """Return the words of every shipped recipe with small sizes, by its name."""
    shipped = (Path(rankless.__file__).parent / "recipe" / "shipped").glob("*.yaml")
    cases = {}
    for path in sorted(shipped, key=lambda one: one.stem):  # digits before digits-classify
        text = path.read_text(encoding="utf-8")
        if "pretrained: path/to" in text:  # fine-tune, which needs a file of weights
            continue
        small = CLASSIFIER if "\ntask: classify" in text else [*DETECTOR, "data.multi_scale=0"]
        cases[path.stem] = [path.stem, *(QUERIES if "name: hf/" in text else small)]
    return cases


def main() -> None:
    """Print a line per recipe and variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words", nargs="*", help="names of recipes or variants (all if none is given), and KEY=VALUE for each"
    )
    parser.add_argument("--tiny", action="store_true", help="one recipe, to see that the script works")
    options = parser.parse_args()
    words: list[str] = ["digits"] if options.tiny else options.words
    changes = [word for word in words if "=" in word]
    chosen = [word for word in words if word not in changes]
    cases = small_recipes() | VARIANTS
    if unknown := set(chosen) - set(cases):
        parser.error(f"no such recipe or variant: {', '.join(sorted(unknown))}")
    for name, case in cases.items():
        if not chosen or name in chosen:
            print(f"{name:<42} {measure([*case, *changes])}", flush=True)


if __name__ == "__main__":
    main()
