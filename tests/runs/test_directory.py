"""The run directory: names of steps, pointers that are never half-written, and which weights are meant."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from rankless.errors import UserError
from rankless.files.writing import write_atomically
from rankless.runs.directory import RunDirectory, weights_of
from rankless.runs.trained_weights import not_safetensors


def make(folder: Path, *steps: int, average: bool = True) -> RunDirectory:
    run = RunDirectory(folder)
    for step in steps:
        run.step_directory(step).mkdir(parents=True)
        (run.step_directory(step) / "model.safetensors").touch()
        if average:
            (run.step_directory(step) / "ema.safetensors").touch()
    return run


def test_steps_are_read_from_names_alone(tmp_path: Path) -> None:
    run = make(tmp_path, 200, 5, 1_234_567_890_123)
    assert run.step_directory(5).name == "step-000000005"
    for other in ("step-5", "step-00000000x", ".step-000000007.12.tmp", "best"):
        (run.checkpoints / other).mkdir()
    (run.checkpoints / "step-000000008").symlink_to(run.checkpoints)
    os.mkfifo(run.checkpoints / "step-000000009")  # to open it would be to wait for ever
    assert run.steps() == [5, 200, 1_234_567_890_123]
    assert RunDirectory(tmp_path / "none").steps() == []


def test_pointers(tmp_path: Path) -> None:
    run = make(tmp_path, 5)
    assert run.pointed("last") is None
    run.point("last", 5)
    assert run.pointed("last") == 5
    assert (run.checkpoints / "last").read_text() == "step-000000005\n"
    (run.checkpoints / "best").write_text("nonsense")
    assert run.pointed("best") is None


def link(run: RunDirectory, name: str) -> str:
    return str((run.path / f"{name}.safetensors").readlink())


def test_links_lead_to_the_weights_that_the_pointers_name(tmp_path: Path) -> None:
    run = make(tmp_path / "run", 5, 10)
    plain = make(tmp_path / "plain", 5, average=False)
    plain.point("last", 5)
    assert link(plain, "last") == "checkpoints/step-000000005/model.safetensors"
    run.point("best", 5)
    run.point("last", 10)
    assert link(run, "best") == "checkpoints/step-000000005/ema.safetensors"
    (tmp_path / "run").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "last.safetensors").samefile(
        tmp_path / "moved/checkpoints/step-000000010/ema.safetensors"
    )
    run = RunDirectory(tmp_path / "moved")
    # A process was killed while it made a link, or after the pointer and before the link.
    (run.path / ".best.safetensors.tmp").symlink_to("anything")
    write_atomically(run.checkpoints / "best", "step-000000010\n")
    run.link("best")
    assert link(run, "best") == "checkpoints/step-000000010/ema.safetensors"
    (run.checkpoints / "best").unlink()
    run.link("best")
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "last.safetensors"]


def test_links_replace_nobodys_files_and_are_never_needed(tmp_path):
    run = make(tmp_path, 5)
    (tmp_path / "best.safetensors").write_text("mine")
    (tmp_path / "last.safetensors").symlink_to("elsewhere")
    for name in ("best", "last"):
        run.point(name, 5)
    assert (tmp_path / "best.safetensors").read_text() == "mine" and link(run, "last") == "elsewhere"
    with pytest.raises(UserError, match="a link to elsewhere, which does not exist; expected a run"):
        weights_of(tmp_path / "last.safetensors")

    other = make(tmp_path / "other", 5)
    (other.path / ".last.safetensors.tmp").mkdir()  # no link can be made
    other.point("last", 5)
    assert other.pointed("last") == 5 and not os.path.lexists(other.path / "last.safetensors")


def test_a_file_is_replaced_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_atomically(path, "ünew")
    assert path.read_text(encoding="utf-8") == "ünew" and list(tmp_path.iterdir()) == [path]


def test_a_run_means_its_best_and_then_its_last(tmp_path: Path) -> None:
    run = make(tmp_path, 5, 10)
    run.point("last", 10)
    assert weights_of(tmp_path) == run.step_directory(10) / "ema.safetensors"
    run.point("best", 5)
    assert weights_of(tmp_path) == run.step_directory(5) / "ema.safetensors"
    assert weights_of(run.checkpoints / "last") == run.step_directory(10) / "ema.safetensors"
    assert weights_of(run.checkpoints / "best") == run.step_directory(5) / "ema.safetensors"
    assert weights_of(run.step_directory(10)) == run.step_directory(10) / "ema.safetensors"
    file = run.step_directory(10) / "model.safetensors"
    assert weights_of(file) == file
    assert weights_of(tmp_path / "best.safetensors").samefile(run.step_directory(5) / "ema.safetensors")
    (tmp_path / "last").write_bytes(b"weights")  # only those in ``checkpoints`` are pointers
    assert weights_of(tmp_path / "last") == tmp_path / "last"
    plain = make(tmp_path / "plain", 5, average=False)
    plain.point("last", 5)
    assert weights_of(plain.path) == plain.step_directory(5) / "model.safetensors"


def test_what_holds_no_weights_is_reported(tmp_path: Path) -> None:
    begun, dangling = tmp_path / "my run", make(tmp_path / "other")
    begun.mkdir()
    (begun / "recipe.yaml").touch()
    dangling.checkpoints.mkdir(parents=True)
    dangling.point("best", 7)
    for target, said in (
        (tmp_path / "nowhere", r"nowhere: no such file or directory; expected a run"),
        (tmp_path, "not a run directory"),
        (begun, r"has no saved weights yet.*`rankless train --resume --run '.*run'"),
        (dangling.path, r"best: points to a missing checkpoint .*; available checkpoints: none"),
    ):
        with pytest.raises(UserError, match=said):
            weights_of(target)


@pytest.mark.parametrize("what", ["names nothing", "damaged", "not text", "a line of 10 MB", "a folder"])
def test_a_run_whose_best_is_gone_means_its_last_and_says_so(tmp_path: Path, what: str) -> None:
    run = make(tmp_path, 5, 10)
    run.point("last", 10)
    best = run.checkpoints / "best"
    if what == "a folder":
        best.mkdir()
    else:
        content = {"names nothing": b"step-000000007\n", "damaged": b"step-00000\xff005\n"}
        content |= {"not text": bytes(range(256)), "a line of 10 MB": b"step-" + b"1" * 10**7}
        best.write_bytes(content[what])
    said: list[str] = []
    assert weights_of(tmp_path, said.append) == run.step_directory(10) / "ema.safetensors"
    assert len(said) == 1 and said[0].startswith(f"{best}: ")
    assert f"using {run.checkpoints / 'last'} (step-000000010) instead" in said[0]
    (run.checkpoints / "last").write_bytes(b"\xff")
    assert weights_of(tmp_path, said.append) == run.step_directory(10) / "ema.safetensors"
    assert "using the newest checkpoint (step-000000010) instead" in said[1]
    if what != "a folder":
        with pytest.raises(UserError, match=r"best: .*available checkpoints: step-000000005, step-000000010"):
            weights_of(best)


def test_an_average_that_is_missing_is_not_replaced_in_silence(tmp_path: Path) -> None:
    run = make(tmp_path, 5)
    run.point("last", 5)
    folder = run.step_directory(5)
    (folder / "state.json").touch()
    sums = "".join(f"{'0' * 64}  {name}\n" for name in ("ema.safetensors", "model.safetensors"))
    (folder / "SHA256SUMS").write_text(sums)
    (folder / "ema.safetensors").unlink()
    for target in (tmp_path, folder, run.checkpoints / "last"):
        with pytest.raises(UserError, match=r"ema\.safetensors: is missing, but SHA256SUMS lists it"):
            weights_of(target)
    assert weights_of(folder / "model.safetensors") == folder / "model.safetensors"  # asked for by name
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"SHA256SUMS: is missing or damaged, .*model\.safetensors"):
        weights_of(tmp_path)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        # The header's length is written first. It may look like the start of a pickle or of a zip file.
        *((struct.pack("<Q", length) + b"{", None) for length in (0x80, 0x4B50, 0x04034B50, 1000)),
        (b"", "it is empty"),
        (b"\x80\x02}q\x00(X\x05\x00", "looks like a pickle"),
        (b"PK\x03\x04\x00\x00\x00\x00\x00", "looks like a pickle"),
        (b"hello, world", "does not start like a safetensors file"),
    ],
)
def test_the_first_bytes_tell_what_a_file_is(start, said):
    found = not_safetensors(Path("w.safetensors"), start[:9])
    assert said in found if said else found == ""
