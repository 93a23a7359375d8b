"""Nothing that came over a socket or out of a file is unpickled: every place that could is listed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rankless"

# Modules whose purpose is to make objects out of bytes, or that do so with what they are sent.
MODULES = {
    "_pickle", "cPickle", "cloudpickle", "copyreg", "dill", "joblib", "jsonpickle", "marshal",
    "multiprocessing", "pickle", "pickletools", "shelve", "torch.distributed.rpc", "torch.multiprocessing",
    "torch.package", "xmlrpc",
}  # fmt: skip
# Functions and classes that unpickle, by whatever module they are reached.
NAMES = {
    "BaseManager", "DataLoader", "ProcessPoolExecutor", "SyncManager", "all_gather_object",
    "broadcast_object_list", "find_class", "gather_object", "read_pickle", "recv_object_list",
    "scatter_object_list", "send_object_list", "unsafe_load",
    "TCPStore",  # listens on every interface, and torch keeps pickles in it
}  # fmt: skip
LOADERS = {"torch", "np", "numpy", "jit", "export", "joblib", "yaml"}  # whose `load` may
SAFE = ("weights_only", "allow_pickle", "Loader")

ALLOWED = {
    # torch.load with weights_only=True, after pickle_inspection.py has walked through the pickle.
    ("models/weights_files/foreign.py", "torch.load(weights_only=True)"),
    # Follows the operations of a pickle as far as plain values go; calls and imports nothing.
    ("files/pickle_machine.py", "pickletools"),
    # The file that this process has just written into a folder of its own, compared with PyTorch.
    ("interop/torch_files.py", "torch.jit.load"),
    ("interop/torch_files.py", "torch.export.load"),
    # Ranks and loader processes, over pipes that only they and the process that started them hold.
    ("data/loader.py", "multiprocessing"),
    ("data/loader.py", "DataLoader"),
    ("hardware/forking.py", "multiprocessing"),
    ("hardware/forking.py", "pickle"),
    # Only written: what does not pickle is reported before it is sent.
    ("data/loader.py", "pickle"),
    # A Pickler that only collects the objects that it meets; its bytes are dropped.
    ("data/alignment.py", "pickle"),
    ("data/alignment.py", "copyreg"),
    ("data/index/scan_worker.py", "multiprocessing"),
    ("data/index/scan_worker.py", "ProcessPoolExecutor"),
    # safetensors.torch.load: a format without code.
    ("models/weights_files/tensor_file.py", "safetensors.torch.load"),
    # Its values are read as bytes; the one of rank 0 listens at one address.
    ("world/rendezvous.py", "TCPStore"),
    # Arrays; pickled ones are refused, which is NumPy's default too.
    ("data/index/scan.py", "np.load(allow_pickle=False)"),
}


def imported(node: ast.AST) -> Iterator[str]:
    """The dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(node: ast.AST) -> str:
    """The last part of a name, wherever it stands, as text too: ``getattr(dist, "gather_object")``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def loads(node: ast.AST) -> Iterator[str]:
    """A call of somebody's ``load``, with the words that keep it from unpickling."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
        whose = ast.unparse(node.func.value)
        if named(node.func.value) in LOADERS:
            words = [ast.unparse(k) for k in node.keywords if k.arg in SAFE]
            yield f"{whose}.load({', '.join(words)})" if words else f"{whose}.load"


def places(text: str) -> set[str]:
    """What of all this a module has."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        for name in imported(node):
            parts = name.split(".")
            found |= {head for at in range(len(parts)) if (head := ".".join(parts[: at + 1])) in MODULES}
            found |= {parts[-1]} & NAMES
        found |= {named(node)} & NAMES
        if isinstance(node, ast.keyword):
            found |= {str(node.arg)} & NAMES
        found |= set(loads(node))
    return found


@pytest.mark.slow
def test_every_place_that_could_unpickle_is_known() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), what)
        for file in SOURCE.rglob("*.py")
        for what in places(file.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED == set(), "not allowed"
    assert ALLOWED - found == set(), "no longer there"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import pickle", {"pickle"}),
        ("def f():\n    from pickle import loads as harmless", {"pickle"}),
        ("import multiprocessing.managers as m", {"multiprocessing"}),
        ("from torch.distributed import rpc", {"torch.distributed.rpc"}),
        ("import torch.distributed as dist\ndist.gather_object(1)", {"gather_object"}),
        ("from torch.distributed import broadcast_object_list as b", {"broadcast_object_list"}),
        ("getattr(dist, 'all_gather_object')(x, y)", {"all_gather_object"}),
        ("import torch\ntorch.load(file)", {"torch.load"}),
        ("torch.load(file, weights_only=False)", {"torch.load(weights_only=False)"}),
        ("np.load(file, allow_pickle=True)", {"np.load(allow_pickle=True)"}),
        ("torch.jit.load(file)", {"torch.jit.load"}),
        ("import json\njson.load(file)", set()),
    ],
)
def test_such_places_are_found(text: str, found: set[str]) -> None:
    assert places(text) == found
