"""The contenders of ``invariance.py``: one training by one program, as one of its ranks.

    python invariance_peers.py JOB      # JOB: JSON of the fields of Job

The program runs unchanged; ``invariance_record.py`` notes what it computes. Only the program's own library is
imported, so that it can run under another Python. Pages named in docstrings are of its documentation.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invariance_record import BATCH, Job, Recorder

SEED, CLASSES, SIDE, SCENE = 1, 10, 32, 64
STEPS, EPOCHS, SAVE = 32, 2, 8  # in all, and the steps from one checkpoint to the next
RATE, MOMENTUM, DECAY = 0.001, 0.9, 1e-4  # of every classifier: SGD


def rankless(*words: str) -> Callable[[Job], None]:
    """``rankless train`` under torchrun (page "Many machines")."""

    def train(job: Job) -> None:
        changes = [
            "batch.images=16", "batch.micro=4", "epochs=2", "precision=fp32", "workers=0", f"seed={SEED}",
            f"checkpoint.every={SAVE}", "evaluate.every=1 epoch",
        ]  # fmt: skip
        data = job.classes if "resnet18" in words else job.scenes + "/data.yaml"
        bare = ["data.augment=none"] if job.bare else []
        new = [*words, f"data.root={data}", *changes, *bare, "--out", f"{job.work}/run"]
        sys.argv = ["rankless", "train", *(["--resume", "--run", f"{job.work}/run"] if job.resume else new)]
        runpy.run_module("rankless", run_name="__main__", alter_sys=True)

    return train


def torchvision(job: Job) -> None:
    """``references/classification/train.py``, which has no option for a seed, so it is seeded here."""
    import torch

    if job.bare:
        raise NotImplementedError("its training images are always cropped and mirrored at random")
    torch.manual_seed(SEED)
    if job.ranks == 1:  # else it takes a GPU for the rank
        without_launcher()
    words = f"""--data-path {job.classes} --model resnet18 --device cpu -b {job.share} --epochs {EPOCHS} -j 0
        --lr {RATE} --momentum {MOMENTUM} --wd {DECAY} --val-resize-size {SIDE} --val-crop-size {SIDE}
        --train-crop-size {SIDE} --use-deterministic-algorithms --output-dir {job.work}"""
    resume = ["--resume", job.newest("checkpoint.pth")] if job.resume else []
    script(job, "train.py", [*words.split(), *resume])


def timm(job: Job) -> None:
    """``train.py``: --seed is its default way; --sync-bn needs GPUs (page "Training Scripts")."""
    words = f"""--data-dir {job.classes} --train-split train --val-split val --model resnet18 --num-classes 10
        --img-size {SIDE} -b {job.share} --epochs {EPOCHS} --lr {RATE} --momentum {MOMENTUM} --seed {SEED}
        --weight-decay {DECAY} --warmup-epochs 0 --workers 0 --device cpu --output {job.work} --experiment run
        --scale 0.6 1 --hflip 0"""
    bare = ["--no-aug", "--model-kwargs", "norm_layer=groupnorm"] if job.bare else []
    resume = ["--resume", job.newest("run/last.pth.tar")] if job.resume else []
    script(job, "train.py", [*words.split(), *bare, *resume])


def script(job: Job, name: str, words: list[str]) -> None:
    """Run a program's script as ``python`` would."""
    if not job.scripts:
        raise FileNotFoundError(f"{name} is not given; --scripts {job.peer}=FOLDER names its folder")
    path = Path(job.scripts, name)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *words]
    runpy.run_path(str(path), run_name="__main__")


def without_launcher() -> None:
    """Hide torchrun from a program that needs none for one rank."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def images(job: Job, split: str) -> Any:
    """Return the classes as torchvision's ``ImageFolder``; a crop and a mirror for training."""
    from torchvision import transforms as t
    from torchvision.datasets import ImageFolder

    crop = [t.RandomResizedCrop(SIDE, (0.6, 1))] if split == "train" and not job.bare else [t.Resize(SIDE)]
    return ImageFolder(f"{job.classes}/{split}", t.Compose([*crop, t.ToTensor(), t.Normalize(0.5, 0.5)]))


def network(job: Job) -> Any:
    """Return torchvision's ResNet-18; the bare one with group norms."""
    from torch import nn
    from torchvision.models import resnet18

    return resnet18(num_classes=CLASSES, norm_layer=(lambda c: nn.GroupNorm(32, c)) if job.bare else None)


def sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, RATE, momentum=MOMENTUM, weight_decay=DECAY)


def pytorch(job: Job) -> None:
    """PyTorch's tutorial "Multi GPU training with DDP", seeded, and with a snapshot of every epoch."""
    import torch
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    train, val = images(job, "train"), images(job, "val")
    sampler: DistributedSampler[Any] = DistributedSampler(train, seed=SEED)
    loader = DataLoader(train, job.share, sampler=sampler)
    model = DistributedDataParallel(network(job))
    optimizer, file, first = sgd(model.parameters()), Path(job.work, "snapshot.pt"), 0
    if job.resume:
        kept = torch.load(file)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epoch"]
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch + 1}, file)
    model.eval()
    with torch.no_grad():
        right = [(model.module(x).argmax(1) == y).sum().item() for x, y in DataLoader(val, BATCH)]
    print(f"score {sum(right) / len(val)}")
    dist.destroy_process_group()


def lightning(job: Job) -> None:
    """``seed_everything(workers=True)`` and ``deterministic=True`` (page "Reproducibility")."""
    import torch
    from lightning import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(job)

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            right = (self.net(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("score", right, sync_dist=True)

        def configure_optimizers(self) -> Any:
            return sgd(self.parameters())

    seed_everything(SEED, workers=True)
    trainer = Trainer(
        accelerator="cpu", devices=job.ranks, strategy="ddp", deterministic=True, max_epochs=EPOCHS,
        logger=False, enable_progress_bar=False, default_root_dir=job.work,
        callbacks=[ModelCheckpoint(job.work, every_n_train_steps=SAVE, save_top_k=-1)],
    )  # fmt: skip
    train = DataLoader(images(job, "train"), job.share, shuffle=True)
    val = DataLoader(images(job, "val"), job.share)
    path = job.newest("*.ckpt") if job.resume else None
    trainer.fit(Classifier(), train, val, ckpt_path=path)
    print(f"score {float(trainer.callback_metrics['score'])}")


def accelerate(job: Job) -> None:
    """``set_seed``, ``use_seedable_sampler`` (pages "Reproducibility" and "Checkpointing")."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed
    from torch.utils.data import DataLoader

    set_seed(SEED)
    torch.use_deterministic_algorithms(True)
    config = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=SEED)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    model = network(job)
    val = DataLoader(images(job, "val"), BATCH)
    train = DataLoader(images(job, "train"), BATCH, shuffle=True)
    model, optimizer, train, val = accelerator.prepare(model, sgd(model.parameters()), train, val)
    done = 0
    if job.resume:
        folder = job.newest("state-*")
        accelerator.load_state(folder)
        done = int(folder.rpartition("-")[2])
    for epoch in range(done // len(train), EPOCHS):
        train.set_epoch(epoch)
        model.train()
        ahead = done % len(train)
        for inputs, labels in accelerator.skip_first_batches(train, ahead) if ahead else train:
            accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done % SAVE == 0:
                accelerator.save_state(f"{job.work}/state-{done}")
    model.eval()
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((model(x).argmax(1), y)) for x, y in val]
    right = torch.cat([guesses == labels for guesses, labels in pairs])
    if accelerator.is_main_process:
        print(f"score {right.float().mean().item()}")


def mmengine(job: Job) -> None:
    """``randomness=dict(seed, deterministic)`` (page "Runner", section about reproducibility)."""
    import torch
    from mmengine.evaluator import BaseMetric
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Classifier(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = network(job)

        def forward(self, inputs: Any, labels: Any, mode: str) -> Any:
            outputs = self.net(inputs)
            if mode == "loss":
                return {"loss": torch.nn.functional.cross_entropy(outputs, labels)}
            return outputs.argmax(1), labels

    class Accuracy(BaseMetric):  # type: ignore[misc]
        def process(self, _: Any, outputs: Any) -> None:
            self.results.append((outputs[0] == outputs[1]).float())

        def compute_metrics(self, results: Any) -> dict[str, float]:
            return {"score": torch.cat(results).mean().item()}

    def loader(split: str) -> dict[str, Any]:
        sampler = {"type": "DefaultSampler", "shuffle": split == "train"}
        return {
            "batch_size": job.share, "num_workers": 0, "dataset": images(job, split), "sampler": sampler,
            "collate_fn": {"type": "default_collate"},
        }  # fmt: skip

    optimizer = {"type": "SGD", "lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY}
    torch.manual_seed(SEED)  # the network is made before the runner, which seeds
    torch.distributed.init_process_group("gloo")  # its launcher takes a GPU for every rank
    runner = Runner(
        Classifier(), job.work, loader("train"), loader("val"),
        train_cfg={"by_epoch": True, "max_epochs": EPOCHS, "val_interval": EPOCHS}, val_cfg={},
        val_evaluator=[Accuracy()], optim_wrapper={"optimizer": optimizer}, launcher="pytorch",
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": SAVE, "by_epoch": False}},
        randomness={"seed": SEED, "deterministic": True},
        cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParallel", "device_ids": None}},
        resume=job.resume,
    )  # fmt: skip
    runner.train()


def ultralytics(job: Job) -> None:
    """``seed`` and ``deterministic=True`` (page "Train", its settings); several devices are GPUs there."""
    os.environ.update(YOLO_OFFLINE="1", YOLO_CONFIG_DIR=job.work)
    without_launcher()
    from ultralytics import YOLO

    off = dict.fromkeys(("mosaic", "fliplr", "hsv_h", "hsv_s", "hsv_v", "translate", "scale"), 0.0)
    YOLO(job.newest("run/weights/last.pt") if job.resume else "yolo11n.yaml").train(
        data=f"{job.scenes}/data.yaml", imgsz=SCENE, batch=BATCH, nbs=BATCH, epochs=EPOCHS, seed=SEED,
        deterministic=True, device="cpu" if job.ranks == 1 else ",".join(map(str, range(job.ranks))),
        optimizer="SGD", amp=False, workers=0, plots=False, project=job.work, name="run", exist_ok=True,
        resume=job.resume,
        **(off if job.bare else {}),
    )  # fmt: skip


def libreyolo(job: Job) -> None:
    """``seed`` (its training settings), which comes after the first weights, so these are seeded here."""
    import torch
    from libreyolo import LibreYOLOX

    torch.manual_seed(SEED)
    off = dict.fromkeys(("mosaic_prob", "mixup_prob", "hsv_prob", "flip_prob"), 0.0)
    model = LibreYOLOX(
        job.newest("run*/weights/last.pt") if job.resume else None, size="n", nb_classes=CLASSES, device="cpu"
    )
    model.train(
        data=f"{job.scenes}/data.yaml", imgsz=SCENE, batch=BATCH, epochs=EPOCHS, device="cpu", workers=0,
        seed=SEED, project=job.work, name="run", exist_ok=True, eval_interval=1, resume=job.resume,
        sync_bn=False,  # on GPUs alone
        **(off if job.bare else {}),
    )  # fmt: skip


def rfdetr(job: Job) -> None:
    """``seed`` and Lightning's launcher (page "Training parameters"); its smallest network from nothing."""
    from rfdetr import RFDETRNano

    model = RFDETRNano(
        pretrain_weights=None, resolution=SCENE, positional_encoding_size=SCENE // 16, num_classes=CLASSES
    )
    model.train(
        dataset_dir=job.scenes, epochs=EPOCHS, batch_size=job.share, grad_accum_steps=1, output_dir=job.work,
        device="cpu", devices=job.ranks, strategy="ddp", num_workers=0, multi_scale=False, tensorboard=False,
        seed=SEED, checkpoint_interval=1, eval_backend="faster_coco_eval",
        resume=job.newest("*.ckpt") if job.resume else None,
        **({"aug_config": {}, "scale_jitter": False, "clip_max_norm": 1e9} if job.bare else {}),
    )  # fmt: skip


PEERS: dict[str, Callable[[Job], None]] = {
    "rankless": rankless(
        "resnet18", "model.image_size=32", f"optim.lr={RATE}", "ema.decay=0", "schedule.warmup=0"
    ),
    "rankless-detector": rankless(
        "yolov4-tiny", "model.image_size=64", "model.width=0.25", "schedule.warmup=0"
    ),
    **{one.__name__: one for one in (torchvision, timm, pytorch, lightning, accelerate, mmengine)},
    **{one.__name__: one for one in (ultralytics, libreyolo, rfdetr)},
}


def main(text: str) -> None:
    """Train, and write what was seen or what went wrong."""
    job = Job(**json.loads(text))
    rank = int(os.environ.get("RANK", "0"))
    recorder = Recorder(job.stop, Path(job.out), rank)
    error = ""
    try:
        name = {"pytorch": "torch"}.get(job.peer, job.peer.partition("-")[0])
        recorder.record["version"] = importlib.metadata.version(name)
        PEERS[job.peer](job)
    except SystemExit as ended:
        error = f"exit code {ended.code}" if ended.code else ""
    except BaseException as problem:
        error = f"{type(problem).__name__}: {str(problem).strip().splitlines()[0]}"
        raise
    finally:
        recorder.close(error=error)


if __name__ == "__main__":
    main(sys.argv[1])
