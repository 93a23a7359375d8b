"""Recipes: YAML files and what is changed on the command line."""

from __future__ import annotations

import functools
import typing
from dataclasses import fields, is_dataclass
from typing import Any

from hypothesis import strategies as st

from support.fuzz import seeds
from support.fuzz.case import Case, Entry, Fifo, Folder, Hole, Link
from support.fuzz.mutations import argument, damaged_text, encoded, json_values, odd, words

YAML = (
    "optim", "lr", ":", ": ", "\n", "  ", "- ", "[", "]", "{", "}", ",", "1e9", ".nan", "'", '"', "&a ", "*a",
    "!!int ", "!!python/object/apply:os.system [touch evil-was-here]", "!!python/name:evil.Task", "#", "|",
    ">", "? ", "null", "%", "---", "...", "<<: *a", "&a [*a]", "!!binary aaaa", "\\ud800", "2001-01-01",
    "0o7", "1:30", "model:", "task: evil:Task", "data: {root: /dev/zero}", "{a: {a: {a: ", "[[[[[[[[",
)  # fmt: skip
_BOMBS = (
    "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(f"{c}: &{c} [*{b}, *{b}, *{b}]\n" for b, c in zip("bcdefghi",
    "cdefghij", strict=True)),
    "[" * 2000, "{a: " * 2000, "- " * 5000, "a: " + "9" * 5000, "optim: {lr: 1}\n" * 3000, "x" * 100_000,
    "seed: " + "1" * 5000, "? " * 3000, "a:\n" + " b:\n" * 2000, "'" + "a" * 200_000, "# " + "c" * 10**6,
    "model: {anchors: [" + "[1, 2], " * 20_000 + "]}", "data: {root: " + "x" * 300_000 + "}",
)  # fmt: skip


@functools.cache
def keys() -> tuple[str, ...]:
    from rankless.recipe.schema import Recipe

    def inside(value: Any, before: str) -> list[str]:
        found = []
        for each in fields(value):
            below = getattr(value, each.name)
            found.append(before + each.name)
            if is_dataclass(below):
                found += inside(below, f"{before}{each.name}.")
        return found

    return tuple(inside(Recipe(), ""))


@functools.cache
def _likely() -> dict[str, tuple[str, ...]]:
    """To every key that holds a value some that it may have, and their neighbors, which it may not."""
    from rankless.recipe.schema import Recipe

    def inside(value: Any, before: str) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        hints = typing.get_type_hints(type(value))
        for each in fields(value):
            below, name = getattr(value, each.name), before + each.name
            named = tuple(word for word in _literals(hints[each.name]) if isinstance(word, str))
            if is_dataclass(below):
                found |= inside(below, f"{name}.")
            elif isinstance(below, bool):
                found[name] = ("true", "false", "1")
            elif isinstance(below, int):
                found[name] = (str(below), str(below + 1), "0", "1", "2", "7", "-1", "1000000000", *named)
            elif isinstance(below, float):
                found[name] = (str(below), "0", "0.5", "1", "1.5", "1e6", "-0.1", "1e-9", "1e300", *named)
            else:
                found[name] = (
                    str(below),
                    *(named or ("32", "[32,64]", "data", "n.cfg", "kmeans", "resnet18")),
                )
        return found

    return inside(Recipe(), "")


def _literals(hint: Any) -> list[Any]:
    """What a type names as its values, wherever in it."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [value for part in typing.get_args(hint) for value in _literals(part)]


_values = (
    odd
    | st.sampled_from([
        "0", "1", "-1", "2", "1000000", "1e6", "1e9", "1000000000", "32", "[32,32]", "auto", "none", "true",
        "[]", "{}", "[[1,2]]", "yolov4", "resnet18", "digits", "0.5", "5 min", "evil:Task", "n.cfg", "data",
        "kmeans", "../w",
    ])
    | json_values.map(repr)
)  # fmt: skip


@st.composite
def _yaml(draw: st.DrawFn) -> Entry:
    kind = draw(st.integers(0, 9))
    if kind < 5:
        return draw(damaged_text(seeds.RECIPE, YAML))
    if kind == 5:
        return encoded("".join(draw(st.lists(st.sampled_from(YAML) | words, max_size=20))))
    if kind == 6:
        return draw(st.sampled_from(_BOMBS)).encode()
    if kind == 7:
        return draw(
            st.sampled_from([Fifo(), Folder(), Link("/dev/zero"), Link("r.yaml"), Hole(2**33), Link("gone")])
        )
    chosen = draw(st.dictionaries(st.sampled_from(keys()), _values, min_size=1, max_size=4))
    lines = []
    for key, value in chosen.items():
        section, _, name = key.rpartition(".")
        lines.append(f"{section.split('.')[0]}: {{{name}: {value}}}" if section else f"{name}: {value}")
    return encoded("\n".join(lines))


@st.composite
def recipes(draw: st.DrawFn) -> Case:
    """A file; every key is read, and then judged by what would train with it."""
    entries: dict[str, Entry] = {**seeds.darknet(), "small.cfg": seeds.CFG.encode(), "r.yaml": draw(_yaml())}
    verb: tuple[str, ...] = ("train", "r.yaml", "--devices", "1", "--run", "out")
    if draw(st.integers(0, 4)) == 0:
        verb = ("data", "show", "data", "r.yaml", "--augmented", "--count", "2", "--out", "out.png")
    return Case(verb, entries, ("out",))


@st.composite
def overrides(draw: st.DrawFn) -> Case:
    entries: dict[str, Entry] = {
        **seeds.darknet(),
        "small.cfg": seeds.CFG.encode(),
        "r.yaml": seeds.RECIPE.encode(),
    }
    pair = st.tuples(
        st.sampled_from(keys()) | words, st.sampled_from(["=", "=", "=", "", "==", ":"]), _values
    )
    likely = st.sampled_from(sorted(_likely())).flatmap(
        lambda key: st.sampled_from(_likely()[key]).map(lambda value: f"{key}={value}")
    )
    change = likely | likely | likely | pair.map("".join)
    changes = draw(st.lists(change.map(argument), min_size=1, max_size=4))
    verb = ("train", "r.yaml", *changes, "--devices", "1", "--run", "out")
    return Case(verb, entries, ("out",))
