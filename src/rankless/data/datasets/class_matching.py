"""Match the classes of a data set with the classes of a trained model by name.

The data may have only some of the classes, in a different order or with a different spelling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError, counted, listed, nearest

Pairs = Sequence[tuple[str, str]]
"""Pairs of class names in the data and in the model. An empty name in the model drops the class."""

LEFT_OUT = -2  # -1 is the label IGNORED_LABEL
_SHOWN = 20
# Different names for the same class in Pascal VOC, COCO and other data, normalized by `_plain`.
_SAME = (
    ("aeroplane", "airplane", "plane"),
    ("motorbike", "motorcycle"),
    ("sofa", "couch"),
    ("tvmonitor", "tv", "television"),
    ("cellphone", "mobilephone"),
    ("donut", "doughnut"),
    ("hairdrier", "hairdryer"),
)
_GROUPS = {name: group[0] for group in _SAME for name in group}


@dataclass(frozen=True)
class ClassMatch:
    """The model's label (or ``LEFT_OUT``) for each class of the data, and notes on differences."""

    labels: tuple[int, ...]
    notes: tuple[str, ...]


class UnmatchedClassesError(UserError):
    """Raised when the data has classes (``names``) that the model does not have."""

    def __init__(self, names: Sequence[str], problems: Sequence[str]) -> None:
        super().__init__(problems)
        self.names = tuple(names)


@contextmanager
def between_splits(root: str, training: str, other: str) -> Iterator[None]:
    """Inside the context, report unmatched classes as classes of ``other`` that are not in ``training``."""
    try:
        yield
    except UnmatchedClassesError as error:
        raise UserError(
            f"{root}: {further_classes(root, training, other, error.names)}; use the same classes "
            "in both splits, or select classes with data.classes"
        ) from None


def further_classes(root: str, training: str, other: str, names: Sequence[str]) -> str:
    """Return a note on classes in the split ``other`` that the split ``training`` does not have."""
    said = f"'{other}' has classes that '{training}' does not have: {listed(names)}"
    top = Path(root).expanduser()
    empty = [str(Path(root, training, name)) for name in names if (top / training / name).is_dir()]
    folders = [str(Path(root, other, name)) for name in names if (top / other / name).is_dir()]
    if empty:
        return f"{said}; there are no images in {listed(empty)}"
    return f"{said}; see {listed(folders)}" if folders else said


def match_classes(
    data: Sequence[str], model: Sequence[str], given: Pairs, where: str, *, may_leave_out: bool = True
) -> ClassMatch:
    """Match the class names of the data with the class names of the model.

    Classes are matched, in this order, by ``given`` (the pairs from ``--classes-map``, which may map two
    classes to one), by equal names, by equal letters and digits, and by known alternative names, such as
    ``sofa`` and ``couch``. With ``may_leave_out``, ``given`` may drop classes of the data.
    """
    of_model = {name: label for label, name in enumerate(model)}
    found = dict(_given(data, of_model, given, where, may_leave_out))
    found |= {name: of_model[name] for name in data if name in of_model and name not in found}
    taken = {label for label in found.values() if label != LEFT_OUT}
    free = [name for name in model if of_model[name] not in taken]
    alike = spelled_otherwise([name for name in data if name not in found], free)
    found |= {name: of_model[other] for name, other in alike.items()}
    if missing := [name for name in data if name not in found]:
        raise UnmatchedClassesError(missing, _unmatched(missing, model, found, where, may_leave_out))
    return ClassMatch(tuple(found[name] for name in data), tuple(_table(data, model, found, where)))


def _given(
    data: Sequence[str], of_model: Mapping[str, int], given: Pairs, where: str, may_leave_out: bool
) -> Iterator[tuple[str, int]]:
    problems = []
    for theirs, ours in given:
        if theirs not in data:
            problems.append(
                f"--classes-map: '{theirs}' is not a class of {where}; expected one of {listed(data)}"
                f"{nearest(theirs, data)}"
            )
        if not ours and not may_leave_out:
            problems.append(
                f"--classes-map: '{theirs}=' drops a class of {where}, which is supported only for data with "
                "boxes; select classes with data.classes instead"
            )
        if ours and ours not in of_model:
            known = tuple(of_model)
            problems.append(
                f"--classes-map: '{ours}' is not a class of the model; expected one of {listed(known)}"
                f"{nearest(ours, known)}"
            )
    if problems:
        raise UserError(problems)
    for theirs, ours in given:
        yield theirs, of_model[ours] if ours else LEFT_OUT


def spelled_otherwise(names: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Map names to known names of the same class: with equal letters and digits, or known alternatives."""
    found: dict[str, str] = {}
    for key in (_plain, _group):
        free = _unique({name: key(name) for name in known if name not in found.values()})
        wanted = _unique({name: key(name) for name in names if name not in found})
        found |= {wanted[word]: free[word] for word in wanted if word in free}
    return found


def nearest_class(name: str, known: Sequence[str]) -> str:
    """Return ``; did you mean 'x'?`` with another spelling or a similar name, or an empty string."""
    other = spelled_otherwise([name], known).get(name)
    return f"; did you mean '{other}'?" if other else nearest(name, known)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _group(name: str) -> str:
    return _GROUPS.get(plain := _plain(name), plain)


def _unique(words: Mapping[str, str]) -> dict[str, str]:
    """Invert a mapping from names to words, omitting empty words and words that several names share."""
    every = list(words.values())
    return {word: name for name, word in words.items() if word and every.count(word) == 1}


def _unmatched(
    missing: Sequence[str], model: Sequence[str], found: Mapping[str, int], where: str, may_leave_out: bool
) -> list[str]:
    problems = [
        f"{where}: the model has no class '{name}'{nearest(name, model)}" for name in missing[:_SHOWN]
    ]
    if len(missing) > _SHOWN:
        others = counted(len(missing) - _SHOWN, "other class", "other classes")
        problems.append(f"{where}: the model also lacks {others} of the data")
    taken = set(found.values())
    free = next((name for label, name in enumerate(model) if label not in taken), model[0])
    if not found and list(model) == [str(label) for label in range(len(model))]:
        return [
            *problems,
            f"the names of the model's {len(model)} classes are only numbers; match the classes, for example "
            f"with --classes-map '{missing[0]}={free}', or import the model again with --names FILE",
        ]
    known = f"the model has the classes {listed(model)}; match the classes, for example with --classes-map"
    if not may_leave_out:
        return [*problems, f"{known} '{missing[0]}={free}'"]
    pairs = f"{missing[0]}={free}" + (f", {missing[-1]}=" if len(missing) > 1 else "")
    return [*problems, f"{known} '{pairs}' (an empty name drops a class)"]


def _table(data: Sequence[str], model: Sequence[str], found: Mapping[str, int], where: str) -> Iterator[str]:
    pairs = {name: "(dropped)" if label == LEFT_OUT else model[label] for name, label in found.items()}
    differ = [name for name in data if pairs[name] != name]
    used = {label for label in found.values() if label != LEFT_OUT}
    without = [name for label, name in enumerate(model) if label not in used]
    if differ or without:
        yield f"{where}: the classes were matched with those of the model by name"
    else:
        yield f"{where}: the classes are the same as those of the model, but in a different order"
    width = max((len(name) for name in differ[:_SHOWN]), default=0)
    for name in differ[:_SHOWN]:
        yield f"  {name:{width}}  → {pairs[name]}"
    if len(differ) > _SHOWN:
        yield f"  … and {len(differ) - _SHOWN} more"
    if without:
        have = "has" if len(without) == 1 else "have"
        yield f"  {len(without)} of the model's {len(model)} classes {have} no images: {listed(without)}"
