"""The contenders of ``peers.py``: the training loop of one program, which stops after every batch.

    python peers_contenders.py NAME DATA WORK

It says ``ready`` after its first batch, or ``missing: …`` and ends; then, for every number n on a line of its
input, it trains n batches of 16 and answers with a line. DATA is a data.yaml, or a folder with a folder per
class in train/ and val/; WORK a folder that it may fill. Only its own library is imported, so that it can run
under another Python, and only the public part of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

BATCH, CLASSES = 16, 10
DETECTOR_SIDE, CLASSIFIER_SIDE = 320, 224
CORES = len(os.sched_getaffinity(0))
NEVER = 1_000_000  # epochs: the input's end comes first


class Turns:
    """Waits after every batch for this contender's turn, in this process or one that it started."""

    def __init__(self) -> None:
        home = Path(f"/proc/{os.environ['PEERS_PROCESS']}/fd")
        self.input = (home / "0").open()
        self.output = (home / os.environ["PEERS_OUTPUT"]).open("w")
        self.answer = "ready"
        self.left = 1

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left:
            return
        print(self.answer, file=self.output, flush=True)
        self.answer = "done"
        line = self.input.readline()
        if not line:  # nobody is there any more
            os.kill(int(os.environ["PEERS_PROCESS"]), signal.SIGTERM)
        self.left = int(line or NEVER)


class Sink:
    """The same as a sink of Rankless, which rank 0 calls."""

    def __init__(self) -> None:
        self.turns = Turns()

    def start(self, run: Any) -> None:
        """Nothing yet."""

    def step(self, entry: Any) -> None:
        """Wait."""
        self.turns()

    def scores(self, step: int, scores: Any, is_best: bool) -> None:
        """None come."""

    def event(self, name: str, step: int, text: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def rankless(recipe: str, *changes: str) -> Callable[[Path, Path], None]:
    """``rankless train`` as it runs by default: a process per core, bf16 where the CPU has it."""

    def train(data: Path, work: Path) -> None:
        import rankless as library

        endless = (f"epochs={NEVER}", "evaluate.every=0", f"checkpoint.every={NEVER}", f"data.root={data}")
        loaded = library.load_recipe(recipe, [*endless, f"batch.images={BATCH}", *changes])
        library.train(loaded, work / "run", sinks=[f"{Path(__file__).resolve()}:Sink"])

    return train


def ultralytics(data: Path, work: Path, threads: int = 0) -> None:
    """Its own trainer, which on a CPU uses fp32, no loader processes, and one thread fewer than cores.

    SGD is not its default. ``threads`` overrides the number of threads.
    """
    os.environ.update(YOLO_OFFLINE="1", YOLO_CONFIG_DIR=str(work))
    from ultralytics import YOLO

    def on_start(trainer: Any) -> None:
        import torch

        torch.set_num_threads(threads or torch.get_num_threads())

    model = YOLO("yolov3-tiny.yaml")
    model.add_callback("on_train_start", on_start)
    model.add_callback("on_train_batch_end", Turns())
    model.train(
        data=str(data),
        imgsz=DETECTOR_SIDE,
        batch=BATCH,
        device="cpu",
        epochs=1000,
        optimizer="SGD",
        val=False,
        plots=False,
        save=False,
        project=str(work),
    )


def libreyolo(data: Path, work: Path) -> None:
    """Its YOLOX-tiny from scratch, the trainable network with about as many operations."""
    from libreyolo import LibreYOLOX
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(Turns())  # it has no callback for a batch
    model = LibreYOLOX(size="t", nb_classes=CLASSES, device="cpu")
    model.train(
        data=str(data),
        imgsz=DETECTOR_SIDE,
        batch=BATCH,
        device="cpu",
        workers=CORES,
        eval_interval=0,
        project=str(work),
    )


def torchvision(data: Path, work: Path) -> None:
    """The plain loop that its references describe: Pillow, crops, mirrors, SGD; top-1 of every batch."""
    import torch
    from torch import nn
    from torchvision.datasets import ImageFolder
    from torchvision.models import resnet18
    from torchvision.transforms import v2

    way = v2.Compose(
        [
            v2.RandomResizedCrop(CLASSIFIER_SIDE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images = ImageFolder(str(data / "train"), way)
    loader = torch.utils.data.DataLoader(
        images, BATCH, shuffle=True, num_workers=CORES, drop_last=True, persistent_workers=True
    )
    model = resnet18(num_classes=CLASSES).train()
    _plain_steps(
        model,
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4),
        nn.CrossEntropyLoss(),
        loader,
        lambda loss, outputs, labels: (loss.item(), (outputs.argmax(1) == labels).float().mean().item()),
    )


def timm(data: Path, work: Path) -> None:
    """The parts of its training script, with that script's defaults except for the loader processes."""
    import torch
    from timm.data import create_dataset, create_loader, resolve_data_config
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.models import create_model
    from timm.optim import create_optimizer_v2

    model = create_model("resnet18", num_classes=CLASSES).train()
    config = resolve_data_config({}, model=model)
    loader = create_loader(
        create_dataset("", str(data), split="train", is_training=True),
        input_size=config["input_size"],
        batch_size=BATCH,
        is_training=True,
        mean=config["mean"],
        std=config["std"],
        interpolation="random",
        num_workers=CORES,
        device=torch.device("cpu"),
    )
    optimizer = create_optimizer_v2(model, "sgd", lr=0.05, weight_decay=2e-5)
    _plain_steps(model, optimizer, LabelSmoothingCrossEntropy(0.1), loader, lambda *_: None)


def _plain_steps(
    model: Any, optimizer: Any, criterion: Any, loader: Any, show: Callable[[Any, Any, Any], Any]
) -> None:
    """Train for ever: forward, backward, step, and the numbers that the loop shows."""
    turns = Turns()
    for inputs, labels in _endless(loader):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(loss, outputs, labels)
        turns()


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


OF_DETECTOR = ("yolov3-tiny", f"model.image_size={DETECTOR_SIDE}", "data.multi_scale=0")
WAYS: dict[str, Callable[[Path, Path], None]] = {
    "rankless-detector": rankless(*OF_DETECTOR),
    "rankless-detector-fp32": rankless(*OF_DETECTOR, "precision=fp32"),
    "rankless-classifier": rankless("resnet18"),
    "rankless-classifier-fp32": rankless("resnet18", "precision=fp32"),
    "ultralytics": ultralytics,
    "ultralytics-all-cores": partial(ultralytics, threads=CORES),
    "libreyolo": libreyolo,
    "torchvision": torchvision,
    "timm": timm,
}


def main(name: str, data: str, work: str) -> None:
    """Train until the input ends."""
    out = os.dup(1)
    os.dup2(2, 1)  # libraries chat
    os.environ.update(PEERS_PROCESS=str(os.getpid()), PEERS_OUTPUT=str(out))
    try:
        WAYS[name](Path(data), Path(work))
    except ImportError as error:
        os.write(out, f"missing: {error}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
