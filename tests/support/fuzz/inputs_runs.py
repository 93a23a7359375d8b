"""Run directories that were damaged, mixed up or built by somebody else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Fifo, Folder, Hole, Link
from support.fuzz.mutations import damaged, damaged_text, damaged_value, json_values, words

TOKENS = (
    "step-000000001",
    "step-000000002",
    "step-000000009",
    "step-1",
    "../run",
    "step-" + "9" * 40,
    "best",
    "last",
)
_odd: st.SearchStrategy[Entry] = st.sampled_from([
    Fifo(), Folder(), Link("/dev/zero"), Link("gone"), Link("."), Link("../../stranger"), Link("/proc/1/cwd"),
    Hole(0), Hole(2**34), b"", b"\0" * 64, b"\xff\xfe", b"[]", b"null", b"{}", b"1" * 5000, b"[" * 10_000,
])  # fmt: skip


@st.composite
def _damaged(draw: st.DrawFn, files: dict[str, Entry], name: str) -> Entry | None:
    """Another content of a file of the run; None where it is to go."""
    content = files[name]
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return None
    if kind == 1 or not isinstance(content, bytes):
        return draw(_odd)
    if name.endswith((".json", ".jsonl")) and kind < 5:
        lines = content.decode().splitlines() if name.endswith("l") else [content.decode()]
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = json.dumps(draw(damaged_value(json.loads(lines[at]))))
        return ("\n".join(lines) + "\n").encode()
    if content.isascii():
        return draw(damaged_text(content.decode(), TOKENS))
    return draw(damaged(content))


def _sums(files: dict[str, Entry]) -> None:
    """True checksums again: what a program would have written that was wrong, or somebody on purpose."""
    for sums in [name for name in files if name.endswith("SHA256SUMS")]:
        folder = sums.removesuffix("SHA256SUMS")
        lines = [
            f"{hashlib.sha256(content).hexdigest()}  {name.removeprefix(folder)}\n"
            for name, content in sorted(files.items())
            if name.startswith(folder) and name != sums and isinstance(content, bytes)
        ]
        files[sums] = "".join(lines).encode()


CHECKPOINTS = ("step-000000001", "step-000000003")
"""Something else under the name of one, which the next one replaces or which is too old to stay."""
CHANGES = (
    "recipe.yaml",
    "environment.json",
    "evaluation.json",
    "journal.jsonl",
    ".lock",
    "checkpoints/best",
    "checkpoints/last",
)


def runs() -> st.SearchStrategy[Case]:
    """Something is wrong with up to three files; then the run is used or gone on with."""
    seeds.run_files()  # trained before the first draw: training uses the global random numbers
    return _runs()


@st.composite
def _runs(draw: st.DrawFn) -> Case:
    files: dict[str, Entry] = dict(seeds.run_files())
    parts = [name for name in files if "step-000000002" in name] if draw(st.booleans()) else sorted(files)
    for name in draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3, unique=True)):
        content = draw(_damaged(files, name))
        del files[name]
        if content is not None:
            files[name] = content
    if draw(st.integers(0, 2)) == 0:
        _sums(files)
    if draw(st.integers(0, 9)) == 0:
        more = draw(st.sampled_from([*CHECKPOINTS, "step-x", ".x.tmp", "step-000000000"]))
        files[f"run/checkpoints/{more}"] = draw(_odd)
    entries: dict[str, Entry] = {
        **files,
        **seeds.darknet(),
        "stranger": b"not ours",
        "a.png": seeds.encoded_image(),
        **seeds.EVIL,
    }
    target = draw(st.sampled_from(["run", "run", "run", "run/checkpoints/best",
    "run/checkpoints/step-000000002",
                                   "run/checkpoints", "run/checkpoints/last"]))  # fmt: skip
    return draw(st.sampled_from([
        _resume(files), _resume(files), _resume(files, "epochs=3"), _resume(files, "epochs=1"),
        _resume(files, "workers=0"),
        Case(("digest", target), entries), Case(("predict", target, "a.png", "--out", "out"), entries,
        ("out",)),
        Case(("evaluate", target, "--devices", "1"), entries),
        Case(("export", target, "--format", "darknet", "--out", "out"), entries, ("out",)),
        Case(("train", "small.yaml", "--run", "run"), entries, ("run/",)),
    ]).map(lambda case: replace(case, entries=entries)))  # fmt: skip


def _resume(files: dict[str, Entry], *changes: str) -> Case:
    may = (*(f"run/{name}" for name in CHANGES), *(name for name in files if "/step-" in name))
    may += tuple(f"run/checkpoints/{name}" for name in CHECKPOINTS)
    # A start that failed is an event in the journal and in the report, and what it computed with is recorded.
    logs = ("run/journal.jsonl", "run/.lock", "run/environment.json", "run/report.html", "run/epochs.csv")
    words = ("train", "--resume", "--run", "run", "--devices", "1", *changes)
    return Case(words, {}, ("run/",), may, logs)


@st.composite
def strange_folders(draw: st.DrawFn) -> Case:
    """A folder of somebody else's, with some of the names that a run uses."""
    names = ["recipe.yaml", "environment.json", "evaluation.json", "report.html", "journal.jsonl", ".lock",
             "checkpoints", "logs",
    "checkpoints/last",
             "checkpoints/best", "checkpoints/step-000000001/state.json", "logs/rank-0.log",
             "notes.txt"]  # fmt: skip
    content: Any = _odd | json_values.map(lambda value: json.dumps(value).encode()) | words.map(
        lambda text: text.encode("utf-8", "replace"))  # fmt: skip
    files: dict[str, Entry] = {
        f"run/{name}": draw(content)
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))
    }
    files |= {
        **seeds.darknet(),
        "small.cfg": seeds.CFG.encode(),
        "r.yaml": seeds.RECIPE.encode(),
        "stranger": b"not ours",
    }
    words_ = draw(st.sampled_from([
        ("train", "r.yaml", "--run", "run", "--devices", "1"), ("train", "--resume", "--run", "run"),
        ("digest", "run"), ("evaluate", "run", "--devices", "1"), ("export", "run", "--format", "darknet",
        "--out", "out"),
    ]))  # fmt: skip
    return Case(words_, files, ("run/", "out"))
