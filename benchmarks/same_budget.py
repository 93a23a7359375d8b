"""Train the recipe ``blood-cells`` with each small detector from scratch, on one budget.

    python benchmarks/same_budget.py path/to/BCCD [--epochs 40] [--devices 2] [--only ROW]

Each is trained on the training images and scored on the test images, which no choice
depended on. The rows differ only in their network and its loss.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

import rankless
from rankless.recipe.installed import shipped_text

# Its optimizer was tuned for one of them; all have AdamW here, at full width.
_COMMON = ("model.width=1", "optim.name=adamw", "optim.lr=0.003", "optim.momentum=0.9")
# The recipe is the anchor-free model's; this is what the others need. YOLOv4's box factor of 0.07 is meant
# for half a million steps, as in the recipe `digits`.
_YOLOV4 = ("model.name=yolov4-tiny", "loss.box=3.5", "loss.anchor_iou=0.213")
ROWS = {
    "yolov3-tiny, YOLOv3's loss": ("model.name=yolov3-tiny",),
    "yolov4-tiny, YOLOv3's loss": ("model.name=yolov4-tiny", "loss.name=yolov3"),
    "yolov4-tiny, YOLOv4's loss": _YOLOV4,
    "yolov4-tiny-anchor-free": (),
}


def trained(name: str, data: str, epochs: int, devices: int, folder: Path) -> dict[str, Any]:
    """Train one row, and return its scores on the test images and the duration."""
    keys = yaml.safe_load(shipped_text("blood-cells"))
    del keys["model"]["dfl"]  # which anchor-free models alone have
    (folder / "recipe.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    changes = [f"data.root={json.dumps(data)}", f"epochs={epochs}", *_COMMON, *ROWS[name]]
    command = [sys.executable, "-m", "rankless", "train", str(folder / "recipe.yaml"), *changes, "--run"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, str(folder / "run"), "--devices", str(devices)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name}: training ended with {done.returncode}\n{done.stderr}{done.stdout[-2000:]}")
    seconds = time.perf_counter() - began
    return {"seconds": seconds, **rankless.evaluate(folder / "run", split="test", devices=devices)}


def main() -> None:
    """Train all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="the blood-cell data set, in Pascal VOC's layout")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--only", choices=ROWS)
    arguments = parser.parse_args()
    print(f"| model | AP | AP50 | {' | '.join(f'AP {c}' for c in ('RBC', 'WBC', 'Platelets'))} | minutes |")
    print("|---|---|---|---|---|---|---|")
    for name in [arguments.only] if arguments.only else ROWS:
        with tempfile.TemporaryDirectory() as folder:
            found = trained(name, arguments.data, arguments.epochs, arguments.devices, Path(folder))
            classes = next(value for value in found.values() if isinstance(value, dict))
            each = " | ".join(f"{classes[c]['AP']:.3f}" for c in ("RBC", "WBC", "Platelets"))
            minutes = found["seconds"] / 60
            print(
                f"| {name} | {found['AP']:.3f} | {found['AP50']:.3f} | {each} | {minutes:.1f} |", flush=True
            )


if __name__ == "__main__":
    main()
