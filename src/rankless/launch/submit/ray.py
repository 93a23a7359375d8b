"""Submit training to a Ray cluster, where each Ray Train worker starts one rank."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankless.errors import UserError, counted
from rankless.launch.environments import RAY_WORKER
from rankless.launch.submit.request import Request

_FINAL = (0, 2)  # success, or a user's mistake, which a restart would repeat
_MISSING = (
    "ray: not installed here (extra 'ray'); expected the same version as on the cluster; run "
    "`pip install 'rankless[ray]'`"
)


@dataclass(frozen=True)
class Settings:
    """Settings for training on a Ray cluster."""

    address: str  # as for ray.init
    folder: str  # working directory of the ranks on machines where it exists
    job: str  # name that stays the same after restarts
    restarts: int = 10


def work(request: Request, settings: Settings) -> dict[str, Any]:
    """Return the configuration that each worker passes to :func:`be_a_rank`."""
    # The choice between CPU and GPU applies to all machines.
    ours = {name: value for name, value in os.environ.items() if name == "RANKLESS_CPU"}
    return {
        "words": request.words(),
        "folder": settings.folder,
        "recipe_text": request.recipe_text,
        "variables": {"RANKLESS_JOB_ID": settings.job, **ours},
    }


def described(request: Request, settings: Settings) -> str:
    """Return a readable description of the submission."""
    lines = {
        "address": settings.address,
        "workers": f"{request.ranks}, each with {counted(request.cpus or 1, 'CPU')}, and a GPU if available",
        "folder": settings.folder,
        "job": settings.job,
        "restarts": f"at most {settings.restarts}",
        "each runs": shlex.join(["python", "-m", *request.words()]),
    }
    return "".join(f"{name + ':':10} {value}\n" for name, value in lines.items())


def run(request: Request, settings: Settings) -> int:
    """Train on the Ray cluster, wait until the run ends, and return the exit code."""
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
        from ray.train.v2.api.exceptions import TrainingFailedError
    except ImportError as error:
        raise UserError(_MISSING) from error
    try:
        ray.init(address=settings.address, log_to_driver=True)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"--address: no cluster responds at '{settings.address}' ({reason}); expected HOST:PORT, or auto "
            "on a machine of the cluster; see the output of ray status"
        ) from error
    try:
        every = ray.cluster_resources()
        per_worker = _resources(request, every)
        with tempfile.TemporaryDirectory(prefix="rankless-ray-") as storage:
            trainer = DataParallelTrainer(
                be_a_rank,
                train_loop_config=work(request, settings),
                scaling_config=ScalingConfig(
                    num_workers=request.ranks, use_gpu="GPU" in per_worker, resources_per_worker=per_worker
                ),
                run_config=RunConfig(
                    name=settings.job,
                    storage_path=storage,  # for Ray's files; the run directory is separate
                    failure_config=FailureConfig(max_failures=settings.restarts),
                ),
            )
            try:
                result = trainer.fit()
            except TrainingFailedError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                print(f"error: the ranks could not continue: {''.join(lines[-1:])}", file=sys.stderr)
                return 1
            return int(result.return_value or 0)
    finally:
        ray.shutdown()


def _resources(request: Request, every: Mapping[str, float]) -> dict[str, float]:
    each: dict[str, float] = {"CPU": request.cpus or 1}
    if every.get("GPU"):
        each["GPU"] = 1
    for name, count in each.items():
        if every.get(name, 0) < count * request.ranks:
            raise UserError(
                f"--devices: {request.ranks} ranks need {count * request.ranks:g} {name}s, but the cluster "
                f"has {every.get(name, 0):g}; use fewer devices, or add machines"
            )
    return each


def be_a_rank(config: dict[str, Any]) -> int:
    """Run a worker's rank in a separate process, which can receive signals, and return its exit code.

    ``config`` is the result of :func:`work`. Unless the exit code is final, raise a RuntimeError, so that Ray
    restarts the workers.
    """
    import ray.train
    import ray.util
    from ray.train.collective import broadcast_from_rank_zero

    context = ray.train.get_context()
    is_first = context.get_world_rank() == 0
    address = ray.util.get_node_ip_address()
    where = broadcast_from_rank_zero([address, _free_port(address)] if is_first else None)
    variables = {
        RAY_WORKER: "1",
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": where[0],
        "MASTER_PORT": str(where[1]),
    }
    with tempfile.TemporaryDirectory(prefix="rankless-ray-") as folder:
        words = list(config["words"])
        if config["recipe_text"] is not None:
            file = Path(folder) / Path(words[2]).name
            file.write_text(config["recipe_text"], encoding="utf-8")
            words[2] = str(file)
        code = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=config["folder"] if Path(config["folder"]).is_dir() else folder,
            env={**os.environ, **config["variables"], **variables},
            check=False,
        ).returncode
    if code not in _FINAL:
        raise RuntimeError(f"rank {context.get_world_rank()} ended with code {code}")
    return code


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])
