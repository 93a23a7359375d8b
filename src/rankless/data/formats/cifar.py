"""Read the Python versions of CIFAR-10 and CIFAR-100, as stored by torchvision.

See Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Each file is a Python 2 pickle
of a dict with lists of numbers and strings, and a NumPy array of pixels whose bytes are contiguous in the
file. The files are not unpickled: only opcodes for plain values are interpreted, and nothing is imported. An
image is a byte range with three planes of 32 × 32 pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rankless.data.index.byte_ranges import CIFAR_BYTES, CIFAR_ENDING, CIFAR_SIDE, path_in
from rankless.data.index.raw import Raw, RawBuilder
from rankless.errors import UserError
from rankless.files import reading
from rankless.files.pickle_machine import Machine
from rankless.recipe.schema import IN_RECIPE

MOST_BYTES = 1 << 28
_TEXTS = {"SHORT_BINSTRING": 2, "BINSTRING": 5, "SHORT_BINBYTES": 2, "BINBYTES": 5, "BINUNICODE": 5}
"""Operations of texts, and the offset from each operation to its text."""
_LONG = 1024  # maximum length of names; longer texts become a Run


class Run(NamedTuple):
    """The byte range of a long string in a file, for example of an array's pixels."""

    offset: int
    length: int


class _Values(Machine):
    """A machine that replaces objects with their state, whose last item is an array's content."""

    literals = Machine.literals | {"INT"}

    def step(self, name: str, argument: Any) -> None:
        if name in _TEXTS:
            text = argument.decode("latin-1") if isinstance(argument, bytes) else argument
            run = Run(self.read + _TEXTS[name], len(text))
            self.stack.append(run if len(text) > _LONG else text)
        else:
            super().step(name, argument)

    def call(self, _: Any) -> None:
        self.stack[-2:] = [None]

    def build(self, _: Any) -> None:
        self.stack[-2:] = self.stack[-1:]


_Values.operations = {
    **Machine.operations,
    "FRAME": lambda machine, _: None,
    "PUT": Machine.put,
    "GET": Machine.operations["BINGET"],
    "GLOBAL": lambda machine, _: machine.stack.append(None),
    "REDUCE": _Values.call,
    "BUILD": _Values.build,
}


def contents(file: Path) -> dict[str, Any]:
    """Return the dict in a file. Its values are numbers, strings, lists, tuples or :class:`Run`."""
    try:
        data = reading.read_bytes(file, MOST_BYTES)
        found = _Values().run(data).result
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {reading.reason(error)}; expected a CIFAR file") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        found = f"{error or type(error).__name__}"
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise UserError(
            f"{file}: is damaged or does not belong to the Python version of CIFAR; expected a pickled dict "
            "of plain values; download the data set again"
        )
    return found


TITLE = "CIFAR"
LAYOUT = "'cifar-10-batches-py' or 'cifar-100-python', as torchvision stores them"


class _Kind(NamedTuple):
    """The folder name of a CIFAR data set, its files by split, and the keys of labels and class names."""

    folder: str
    files: dict[str, tuple[str, ...]]
    labels: str
    meta: tuple[str, str]


_KINDS = (
    _Kind(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
        "labels",
        ("batches.meta", "label_names"),
    ),
    _Kind(
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "fine_labels",
        ("meta", "fine_label_names"),
    ),
)


def recognize(root: Path) -> str:
    kind, folder = _find(root)
    return f"it has '{folder.name}/{kind.meta[0]}'" if kind and folder else ""


def splits(root: Path) -> list[str]:
    return ["train", "test"]


def read(root: Path, split: str) -> Raw:
    """Read one split; ``val`` is a synonym for ``test``."""
    kind, folder = _find(root)
    if kind is None or folder is None:
        raise UserError(f"{root}: no CIFAR files found; expected {LAYOUT}")
    wanted = "test" if split == "val" else split
    if wanted not in kind.files:
        raise UserError(
            f"{root}: no split '{split}'; expected 'train', 'test' or 'val'; choose one of these{IN_RECIPE}"
        )
    meta = folder / kind.meta[0]
    names = contents(meta).get(kind.meta[1])
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{meta}: '{kind.meta[1]}' is not a list of class names; download the data set again")
    made, side = RawBuilder(), (CIFAR_SIDE, CIFAR_SIDE)
    files = [folder / name for name in kind.files[wanted]]
    for file in files:
        labels, start = _images(file, kind.labels, len(names))
        for number, label in enumerate(labels):
            path = path_in(str(file), f"{number:05}{CIFAR_ENDING}")
            where = start + number * CIFAR_BYTES, CIFAR_BYTES
            made.add_label(made.add_image(path, str(file), size=side, byte_range=where), label)
    about = ["'val' is the test split, because CIFAR has no validation split"] if split == "val" else []
    return made.raw(boxed=False, names=names, depends=[str(folder), *map(str, (meta, *files))], about=about)


def _find(root: Path) -> tuple[_Kind | None, Path | None]:
    there = [
        (kind, folder)
        for kind in _KINDS
        for folder in (root, root / kind.folder)
        if folder.name == kind.folder and (folder / kind.meta[0]).is_file()
    ]
    if len(there) > 1:
        raise UserError(
            f"{root}: contains both '{_KINDS[0].folder}' and '{_KINDS[1].folder}'; expected only one; use "
            f"data.root={there[0][1]} or data.root={there[1][1]}"
        )
    return there[0] if there else (None, None)


def _images(file: Path, key: str, classes: int) -> tuple[list[int], int]:
    found = contents(file)
    labels, data = found.get(key), found.get("data")
    pixels = data[-1] if isinstance(data, tuple) and data else data
    fine = isinstance(labels, list) and all(type(one) is int and 0 <= one < classes for one in labels)
    if not isinstance(labels, list) or not fine or not isinstance(pixels, Run):
        raise UserError(
            f"{file}: 'data' or '{key}' is missing or invalid; expected pixels, and labels from 0 to "
            f"{classes - 1}; download the data set again"
        )
    if pixels.length != len(labels) * CIFAR_BYTES:
        raise UserError(
            f"{file}: found {pixels.length:,} bytes of pixels for {len(labels):,} labels; expected "
            f"{len(labels) * CIFAR_BYTES:,}; download the data set again"
        )
    return labels, pixels.offset
