"""What a rank of a cluster's launcher does before the ranks meet."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from rankless.errors import UserError
from rankless.launch import environments
from rankless.launch.job import Wanted
from rankless.launch.member_run import MemberRun, _job_and_path
from rankless.world.process_group import World


@pytest.mark.parametrize("mine", [True, False])
def test_a_remembered_run_is_only_used_if_this_user_created_it(mine, tmp_path, monkeypatch):
    """Every user of the machine can write into torchrun's store."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    if not mine and os.geteuid():
        pytest.skip("needs root to give a folder to another user")
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RANKLESS_JOB_ID"))]:
        monkeypatch.delenv(name)
    world = World(0, 1, torch.device("cpu"), launcher_store=dist.HashStore())
    world.remember("run", str(tmp_path / "elsewhere" / "runs" / "small"))
    if not mine:
        os.chown(tmp_path / "elsewhere", os.geteuid() + 1, -1)
    _, path = _job_and_path(world, Wanted(None, "small"))
    assert path.absolute() == tmp_path / ("elsewhere/runs/small" if mine else "runs/small")


def test_another_number_of_devices_than_ranks_is_refused():
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    run = MemberRun(environments.detect(ranks), Wanted(None, "small", devices=3), output=None)
    with pytest.raises(UserError, match="--devices is 3, but the launcher has started 2 ranks"):
        run._prepared()
