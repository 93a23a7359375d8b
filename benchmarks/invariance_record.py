"""What a run of ``invariance.py`` is, and what each of its ranks notes through PyTorch's public hooks."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

BATCH = 16  # images of a step, on all ranks together


class Job(NamedTuple):
    """One run.

    Attributes:
        peer: which program.
        ranks: how many processes share a step of ``BATCH`` images.
        data: folder with ``classes/`` and ``scenes/``.
        work: the program's folder, which a resumed run finds again.
        out: folder for what was seen.
        scripts: folder of the program's scripts, where its wheel lacks them.
        bare: without random augmentation and, where the program lets one choose, without batch norm.
        stop: exit at once after this many steps, as if killed; 0 never does.
        resume: continue from the last checkpoint in ``work``.
    """

    peer: str
    ranks: int
    data: str
    work: str
    out: str
    scripts: str = ""
    bare: bool = False
    stop: int = 0
    resume: bool = False

    @property
    def share(self) -> int:
        """Images of a step on each rank."""
        return BATCH // self.ranks

    @property
    def classes(self) -> str:
        return str(Path(self.data, "classes"))

    @property
    def scenes(self) -> str:
        return str(Path(self.data, "scenes"))

    def newest(self, pattern: str) -> str:
        """Return the checkpoint written last."""
        found = sorted(Path(self.work).glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        if not found:
            raise FileNotFoundError(f"no checkpoint: nothing matches {pattern}")
        return str(found[-1])


class Recorder:
    """What one rank trains: images, rates, gradients and weights."""

    def __init__(self, stop: int, out: Path, rank: int) -> None:
        import torch
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim import optimizer

        self.torch, self.stop, self.out, self.rank = torch, stop, out, rank
        self.root: Any = None  # the first module that is called with images
        self.images: list[str] = []
        self.record: dict[str, Any] = {"images": [], "rates": [], "norms": [], "times": []}
        self.parameters: list[Any] = []
        self.hooks = [
            register_module_forward_pre_hook(self.forward),
            optimizer.register_optimizer_step_pre_hook(self.before),
            optimizer.register_optimizer_step_post_hook(self.after),
        ]

    def forward(self, module: Any, inputs: Any) -> None:
        """Note the pixels of every image that is trained."""
        if not module.training or not self.torch.is_grad_enabled() or self.root not in (None, module):
            return
        for images in inputs:
            is_batch = isinstance(images, self.torch.Tensor) and images.ndim == 4 and images.shape[1] == 3
            if is_batch and images.amax() > images.amin():  # programs measure their networks with zeros
                self.root = module
                rows = images.detach().float().cpu().contiguous().numpy()
                self.images += [hashlib.sha256(row.tobytes()).hexdigest()[:12] for row in rows]

    def before(self, optimizer: Any, *_: Any) -> None:
        if not self.parameters:
            self.parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self.save("start")

    def after(self, optimizer: Any, *_: Any) -> None:
        """Note the step; Lightning computes the gradients within it."""
        norms = [self.torch.linalg.vector_norm(one.grad) for one in self.parameters if one.grad is not None]
        self.record["images"].append(self.images)
        self.record["rates"].append(optimizer.param_groups[0]["lr"])
        self.record["norms"].append(float(self.torch.stack(norms).norm()))
        self.record["times"].append(time.process_time())
        self.images = []
        if len(self.record["rates"]) == self.stop:
            self.close()
            os._exit(0)

    def save(self, name: str) -> None:
        import numpy as np

        if self.rank == 0 and self.parameters:
            flat = [one.detach().float().cpu().flatten().numpy() for one in self.parameters]
            np.save(self.out / f"{name}.npy", np.concatenate(flat))

    def close(self, **more: Any) -> None:
        """Write what was seen, and see no more."""
        for hook in self.hooks:
            hook.remove()
        self.save("end")
        (self.out / f"rank-{self.rank}.json").write_text(json.dumps({**self.record, **more}))
