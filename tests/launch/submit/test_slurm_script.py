"""The batch script for Slurm: its text, and what bash makes of it where Slurm's commands are stand-ins."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankless import cli
from rankless.launch.submit import slurm
from rankless.launch.submit.request import Request
from support.waiting import until

GOLDEN = Path(__file__).parent / "golden" / "two_nodes.sbatch"
WORDS = ["--python", "/opt/venv/bin/python", "--dry-run"]
NASTY = 'a b\'; touch "x" `id` $(id) $HOME \\ & | > * # \n#SBATCH --nodes=9'
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)


def test_the_script_is_the_one_that_was_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "my project").mkdir()
    monkeypatch.chdir(tmp_path / "my project")
    words = "yolov4 data.root=mine --nodes 2 --devices 4 --time 4:00:00 --partition gpu"
    assert cli.main(["submit", "slurm", *words.split(), *WORDS]) == 0, capsys.readouterr()
    text = capsys.readouterr().out.replace(str(tmp_path), "/home/me")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "if that is meant: UPDATE_GOLDEN=1, and read it"


def test_every_option_is_in_the_script_of_a_single_rank(capsys):
    words = "digits --out runs/x --name x --gres none --cpus 2 --memory 64G --account me --qos low"
    more = ["data.augment={flip: 0.5}", "--sink", "mine.py:Sink"]
    assert cli.main(["submit", "slurm", *words.split(), *more, *WORDS]) == 0, capsys.readouterr()
    lines = capsys.readouterr().out.splitlines()
    given = ["job-name=x", "output=x-%j.log", "nodes=1", "ntasks-per-node=1", "cpus-per-task=2", "mem=64G"]
    assert lines[1:9] == [f"#SBATCH --{option}" for option in (*given, "account=me", "qos=low")]
    assert lines[9] == "#SBATCH --requeue"
    # Slurm's variables say of a single task only that it is one.
    assert "export RANK=0 WORLD_SIZE=1" in lines and "RANKLESS_SECRET" not in str(lines)
    (command,) = [line.strip() for line in lines if "srun " in line]
    assert command == (
        "srun --kill-on-bad-exit=0 --cpus-per-task=2 /opt/venv/bin/python -m rankless train digits "
        "'data.augment={flip: 0.5}' --out runs/x --devices 1 --sink mine.py:Sink &"
    )


def test_placeholders_and_folders_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--devices", "99", "--time", "soon", "--dry-run"]
    assert cli.main(["submit", "slurm", "fine-tune", *options]) == 2
    said = capsys.readouterr().err.splitlines()
    expected = ("99 devices", "data.root is not given", "model.pretrained is not given", "--time")
    assert all(words in line for words, line in zip(expected, said, strict=True)), said
    (tmp_path / "mine").mkdir()
    assert cli.main(["submit", "slurm", "mine", "--dry-run"]) == 2
    assert "if it contains data, add data.root=mine to a recipe, or create" in capsys.readouterr().err


@given(st.lists(words, min_size=1, max_size=4), words, words)
def test_any_word_reaches_the_ranks_as_it_is(overrides, folder, run):
    request = Request("my recipe.yaml", tuple(overrides), 2, 2, run, (), "job")
    text = slurm.script(request, folder, "/my venv/python", {})
    _, _, rest = text.partition("srun --kill-on-bad-exit=0 ")
    line, _, _ = rest.rpartition(" &\n    step=")
    assert shlex.split(line) == ["/my venv/python", "-m", *request.words()]
    options = [line for line in text.partition("\ncd ")[0].splitlines() if line.startswith("#SBATCH")]
    assert len(options) == 8


class Cluster:
    """A folder with stand-ins for srun, squeue and scontrol; ``log`` has a line for each call."""

    def __init__(self, folder: Path, srun: str, state: str = "RUNNING") -> None:
        self.folder, self.log = folder, folder / "log"
        self.log.touch()
        self._command("srun", f'printf "srun %s\\n" "${{*@Q}}" >> {self.log}\n{srun}')
        self._command("squeue", f"echo {state}")
        self._command("scontrol", f'echo "scontrol $*" >> {self.log}')

    def _command(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def start(self, text: str, more: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        path = f"{self.folder}:/usr/bin:/bin"
        return subprocess.Popen(
            ["/bin/bash", "-c", text], env={"PATH": path, "SLURM_JOB_ID": "7", **more}, text=True
        )

    def calls(self) -> list[str]:
        return [line.split()[0] for line in self.log.read_text().splitlines()]


def a_script(folder: Path, *overrides: str) -> str:
    return slurm.script(Request("digits", overrides, 2, 1, None, (), "job"), str(folder), "python", {})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("srun", "state", "code", "calls"),
    [
        ("exit 0", "RUNNING", 0, ["srun"]),
        ("exit 2", "RUNNING", 2, ["srun"]),
        ("exit 1", "RUNNING", 1, ["srun"]),
        ("exit 130", "RUNNING", 130, ["srun"]),
        ("exit 85", "RUNNING", 85, ["srun", "scontrol"]),
        ("exit 85", "COMPLETING", 85, ["srun"]),
        ("exit 75", "RUNNING", 75, ["srun"] * 4),
        ("exit 137", "RUNNING", 137, ["srun"] * 4),
        ("[ -e again ] && exit 0; touch again; exit 75", "RUNNING", 0, ["srun"] * 2),
    ],
)
def test_what_an_exit_code_leads_to(tmp_path, srun, state, code, calls):
    cluster = Cluster(tmp_path, srun, state)
    assert cluster.start(a_script(tmp_path)).wait(30) == code
    assert cluster.calls() == calls


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "passed_on"), [(signal.SIGUSR1, "USR1"), (signal.SIGTERM, "by itself")], ids=["USR1", "TERM"]
)
def test_a_warning_reaches_the_ranks_and_the_job_is_requeued(tmp_path, number, passed_on):
    """Slurm sends SIGTERM to the ranks itself; SIGUSR1 it sends to the shell alone."""
    # Bash cannot run a trap while it expands $(…), so it counts by itself.
    rank = f"trap 'echo USR1 >> {tmp_path}/log; exit 85' USR1\ntouch up\n"
    rank += "for ((n = 0; n < 1200; n++)); do [ -e end ] && break; sleep 0.05; done\n"
    rank += "echo by itself >> log; exit 85"
    cluster = Cluster(tmp_path, rank)
    process = cluster.start(a_script(tmp_path))
    until((tmp_path / "up").exists)
    process.send_signal(number)
    if number == signal.SIGTERM:
        time.sleep(0.2)
        assert process.poll() is None, "it waits for the ranks to save"
        (tmp_path / "end").touch()
    assert process.wait(30) == 85
    assert cluster.log.read_text().splitlines()[1:] == [passed_on, "scontrol requeue 7"]


@pytest.mark.processes
def test_bash_reads_nasty_words_as_words(tmp_path):
    folder = tmp_path / NASTY.replace("/", "")[:60]
    folder.mkdir()
    cluster = Cluster(tmp_path, f'printf "%s\\0" "$@" > {tmp_path}/arguments; pwd > {tmp_path}/pwd')
    assert cluster.start(a_script(folder, f"data.root={NASTY}")).wait(30) == 0
    assert (tmp_path / "pwd").read_text() == f"{folder}\n"
    expected = ["python", "-m", "rankless", "train", "digits", f"data.root={NASTY}", "--devices", "2"]
    assert (tmp_path / "arguments").read_text().split("\0")[1:-1] == expected
    assert not (folder / "x").exists()


def test_every_mistake_is_reported_at_once(capsys):
    options = ["--nodes", "0", "--cpus", "x", "--time", "soon", "--partition", "a b", "--memory", "lots"]
    assert cli.main(["submit", "slurm", "digits", "epochz=3", *options, "--dry-run"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    starts = ("epochz", "--nodes", "--cpus", "--time", "--partition", "--memory")
    lines = [line.removeprefix("error: ").replace("command line: key", "epochz") for line in err.splitlines()]
    assert sorted(line.split()[0].rstrip(":") for line in lines) == sorted(starts), err


@pytest.mark.processes
def test_sbatch_gets_the_script_and_its_refusal_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["submit", "slurm", "digits", "--gres", "none"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(command) == 2
    assert "error: sbatch: no such command on this machine" in capsys.readouterr().err
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/bash\nexec >&2\necho invalid partition\nexit 1\n")
    fake.chmod(0o755)
    assert cli.main(command) == 2
    refused = "error: sbatch: refused the job (invalid partition); expected values that this cluster accepts"
    assert refused in capsys.readouterr().err
    # Slurm's own words, of a GRES that no node has and of one that no node has enough of.
    for words in ("Invalid generic resource (gres) spec", "Requested node configuration is not available"):
        fake.write_text(f"#!/bin/bash\nexec >&2\necho 'Batch job submission failed: {words}'\nexit 1\n")
        assert cli.main(["submit", "slurm", "digits", "--devices", "2"]) == 2
        said = capsys.readouterr().err
        assert words in said and "sinfo --format '%N %G'" in said and "or to none if" in said
    fake.write_text('#!/bin/bash\nwhile IFS= read -r line; do echo "$line"; done > script; echo "41;lab"\n')
    assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert (tmp_path / "script").read_text() in out
    assert "submitted job 41 (log: digits-41.log)" in out
