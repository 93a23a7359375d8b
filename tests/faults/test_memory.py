"""Too little memory: one sentence that says what to change, and no restart that would only meet it again."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rankless import load_recipe
from rankless.errors import ShortageError
from rankless.launch.job import Job
from rankless.launch.rank_job import note_of
from rankless.models.weights_files import weights
from rankless.recipe.load import to_json
from support.faults.harness import HERE, Run, finish, kill, loaders, outcome, recipe_file
from support.faults.small_task_for_faults import Small
from support.process_server import SERVER

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
HAS_NAMESPACES = not subprocess.run(
    ["unshare", "--mount", "true"], capture_output=True, check=False
).returncode


def reported(run: Run) -> str:
    """What the run ended with: one sentence, and nothing else that a person should not read."""
    said = run.ends(2)
    *before, last = said.splitlines()
    assert "restarting" not in said and not [line for line in before if "error" in line], said
    assert [(e["event"], e["text"]) for e in run.events("error")] == [("error", last.removeprefix("error: "))]
    return last


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ([], "use a smaller batch.micro (now 2); the global batch (batch.images: 8) and the learning rate"),
        (["batch_norm=sync"], "use more devices or a smaller batch.images (now 8)"),
        (["batch.micro=1"], "batch.micro is already 1, so use a smaller model or smaller images"),
    ],
)
def test_the_advice_depends_on_the_recipe(words, advice, tmp_path):
    job = Job("train", to_json(load_recipe(str(recipe_file(tmp_path / "run")), words)), "")
    assert advice in note_of(ShortageError("out of memory"), job)["problems"][0]


def test_a_limit_on_the_memory_of_one_rank(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 2, environment={"FAULT_SLEEP": "0.2", "FAULT_MEMORY": str(512 << 20)}) as run:
        run.until(lambda: run.run.pointed("last") == 3)
        rank = run.pid("rank 1")
        pages = int(Path(f"/proc/{rank}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (256 << 20)
        resource.prlimit(rank, resource.RLIMIT_AS, (limit, limit))
        last = reported(run)
    assert last.startswith("error: out of memory: 512 MiB more were requested (")
    assert "use a smaller batch.micro (now 2)" in last
    assert finish(folder, 1) == expected


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("memory", r"out of memory: 931,322\.6 GiB more were requested \(.* are free\); use a smaller "
         r"batch\.micro \(now 2\)"),
        ("unpool", r".* uses max_unpooling2d_forward_out, which has no deterministic implementation on this "
         r"device; use another layer or operation, or set reduce: fast, .*"),
    ],
)  # fmt: skip
def test_an_evaluation_says_the_same(tmp_path, problem, said):
    """One of two ranks fails; the other does not wait for it, and a person reads one line."""
    recipe = load_recipe(str(recipe_file(tmp_path / "run")))
    made, file = Small(recipe), tmp_path / "small.safetensors"
    weights.save(file, made.model().state_dict(), recipe=recipe, class_names=made.class_names)
    words = ["evaluate", file, "--task", "small_task_for_faults:Small", "--devices", "2"]
    done = SERVER.run("-m", "rankless", *map(str, words), cwd=HERE, seconds=150, FAULT_SCORED=problem)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(f"error: {said}\n", done.stderr) and not done.stdout


def test_a_loader_process_that_is_killed_is_named(tmp_path, expected):
    folder = tmp_path / "run"
    with Run(folder, 1, "workers=1", environment={"FAULT_SLEEP": "0.1"}) as run:
        run.until(lambda: run.step() >= 4 and run.run.pointed("last"))
        for pid in loaders(run):
            kill(pid)  # as the kernel does when memory runs out
        assert (
            "warning: rank 0: a loader process was killed by SIGKILL, probably because memory ran out; use "
            "fewer `workers`, a smaller batch.micro or data.cache=none; restarting from the newest "
            "checkpoint\n"
        ) in run.ends(0)
        (death,), (resumed,) = run.events("death"), run.events("resume")
        assert (death["rank"], death["code"]) == (0, 1)
        assert death["text"] == resumed["reason"]
    assert outcome(folder) == expected


SCRIPT = """\
import subprocess
from rankless.data.loader import MicroBatches
from rankless.data.order import Line
from rankless.errors import UserError
from support.faults.large_items import Large, collate
for size in ("4k", "1m"):  # not even the semaphores; not the batches
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", "/dev/shm"], check=True)
    try:
        with MicroBatches(Large(), collate, [Line(0, [(0, 0), (0, 1)])] * 9, workers=1) as batches:
            for batch in batches:
                assert len(batch.values)
    except UserError as error:
        print(error)
"""


@pytest.mark.skipif(not HAS_NAMESPACES, reason="a small /dev/shm can only be mounted by root")
def test_a_small_shared_memory_is_reported():
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", SCRIPT],
        cwd=HERE.parents[1], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert len(said) == 2, done
    for line, limit in zip(said, ("4 KiB", "1 MiB"), strict=True):
        assert line.startswith(f"/dev/shm is full ({limit} in total)") and "workers=0" in line
