"""What a killed process left is removed, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankless.data.work_folder import work_folder

WAITS = """
import sys
from pathlib import Path
from rankless.data.work_folder import work_folder
with work_folder(Path(sys.argv[1])) as made:
    (made / "half").write_text("of it")
    print(made, flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path):
    out = tmp_path / "shards"
    alike = [tmp_path / name for name in (".shards-of-mine", ".shards", "shards-abcdefgh", ".other-abcdefgh")]
    for folder in alike:
        folder.mkdir()
    command = [sys.executable, "-c", WAITS, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        its = Path(other.stdout.readline().strip())
        with work_folder(out):
            assert (its / "half").exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert its.exists()
    with work_folder(out) as made:
        assert not its.exists()
        made.rename(out)
    assert sorted(tmp_path.iterdir()) == sorted([*alike, out])
