"""What else may be there: an outer launcher, a busy port, another run, invalid data that one rank finds."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket

import pytest

from rankless import UserError, load_recipe, train
from rankless.data.order import micro_batch
from rankless.recipe.load import load
from rankless.recipe.schema import Batch
from support.faults.harness import HERE, Run, finish, kill, outcome, recipe_file
from support.faults.small_task_for_faults import IMAGES

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_variables_of_an_outer_launcher_and_a_busy_port_change_nothing(tmp_path, expected):
    folder = tmp_path / "run"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as busy:
        outer = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(busy.getsockname()[1]),
            # With RANK and WORLD_SIZE, too, it would be that rank.
            "LOCAL_RANK": "3",
            "LOCAL_WORLD_SIZE": "5",
            "GROUP_RANK": "1",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "TORCHELASTIC_RUN_ID": "outer",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "FAULT_SLEEP": "0.1",
        }
        with Run(folder, 2, environment=outer) as run:
            run.until(lambda: run.step() >= 1)
            with pytest.raises(UserError, match="another process is training in this directory"):
                train(load(folder / "recipe.yaml"), folder, devices=1, resume=True)
            run.ends(0)
    assert outcome(folder) == expected


def test_deleted_temporary_files_and_a_moved_run_change_nothing(tmp_path, expected):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    with Run(tmp_path / "run", 2, environment={"TMPDIR": str(scratch), "FAULT_SLEEP": "0.1"}) as run:
        run.until(lambda: run.step() >= 4)
        private = tmp_path / "run" / ".job"
        assert private.stat().st_mode & 0o777 == 0o700
        for left in scratch.iterdir():
            shutil.rmtree(left)
        kill(run.pid("rank 1"))
        run.until(lambda: run.events("resume"))
        run.process.send_signal(signal.SIGTERM)
        run.ends(85)
    assert not private.exists()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert finish(tmp_path / "elsewhere", 1) == expected


def test_nothing_of_a_start_is_left_in_the_callers_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)  # the ranks find the task there

    def variables() -> dict[str, str]:
        return {name: os.environ[name] for name in os.environ if name.startswith(("GLOO", "NCCL", "TORCHE"))}

    before = variables()
    assert train(load(recipe_file(tmp_path / "run")), tmp_path / "run", devices=1, dry_run_steps=1) == 0
    assert variables() == before


def test_an_error_that_one_rank_finds_ends_the_run_at_once(tmp_path):
    batch = Batch(images=8, micro=2)
    # Of the four micro-batches of step 1, two ranks have two each: the last one is rank 1's.
    (_, image), *_ = micro_batch(IMAGES, 3, 1, 3, batch)
    with Run(tmp_path / "run", 2, environment={"FAULT_IMAGE": str(image)}) as run:
        said = run.ends(2)
        assert said.splitlines()[-1] == f"error: stripes {image}: cannot be read; take the image out"
        assert "restarting" not in said
        assert "lost a peer" in (run.run.logs / "rank-0.log").read_text(encoding="utf-8"), "rank 1 found it"


def test_an_error_in_the_users_code_is_reported_at_once_with_its_lines(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, environment={"FAULT_BUG": "loss 9"}) as run:  # two passes a step: in the fifth
        said = run.ends(1, noisy=True)
        assert "restarting" not in said
        lines = said[said.index("error: ") :].splitlines()
        assert lines[0].endswith(
            "the task small_task_for_faults:Small failed: ZeroDivisionError: division by zero"
        )
        assert re.fullmatch(r"  .*/small_task_for_faults.py:\d+, in loss", lines[1])
        assert lines[2] == "    return divided(batch, 0)"
        assert re.fullmatch(r"  .*/small_task_for_faults.py:\d+, in divided", lines[3])
        again = f"once the error is fixed, continue with: rankless train --resume --run {folder}"
        assert lines[5:] == [f"the checkpoint of step 3 is complete; {again}"]
        assert "Traceback" in (run.run.logs / "rank-0.log").read_text(encoding="utf-8"), "the whole of it"
    assert finish(folder, 3) == expected


def test_an_error_of_user_code_in_a_loader_process_of_one_rank_ends_the_run_at_once(tmp_path):
    (_, image), *_ = micro_batch(IMAGES, 3, 1, 3, Batch(images=8, micro=2))  # rank 1's
    with Run(tmp_path / "run", 2, "workers=1", environment={"FAULT_BUG": f"item {image}"}) as run:
        said = run.ends(1, noisy=True)
    assert "restarting" not in said and ", in item\n    raise KeyError(" in said
    assert f"error: the task small_task_for_faults:Small failed: KeyError: 'image {image}'" in said


def test_a_run_that_never_began_leaves_nothing(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    for run in (tmp_path, tmp_path / "run"):
        with pytest.raises(UserError, match="no such file"):
            train(load_recipe("digits", [f"data.root={tmp_path}/none"]), run, devices=1)
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
