"""Read and write the YAML of recipes, with YAML 1.2 scalars, line numbers of keys, and no custom tags.

PyYAML follows YAML 1.1, where ``off`` is false, ``1e-2`` is text and ``012`` is ten. This module follows the
core schema of YAML 1.2 (chapter 10.3). Tags outside this schema and duplicate keys are errors. Reading
continues after such an error, so that all errors are reported, each with the file and the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from rankless.errors import UserError, printable

Path = tuple[str, ...]
"""Keys from the outermost to the innermost, such as ``("optim", "lr")``."""

_SCALARS = {
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")),
    "float": (
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        list("-+.0123456789"),
    ),
}
_TAG = "tag:yaml.org,2002:"
_UNREADABLE: Any = object()
"""A placeholder for an invalid value, which is removed together with the lists that contain it."""


class _Loader(yaml.SafeLoader):
    """A loader that composes nodes with the tags of YAML 1.2; :class:`_Reading` reads their values."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (as in PyYAML)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text that a parser of YAML 1.1 or 1.2 would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def _style(text: str) -> str | None:
    """Return PyYAML's style for a string: a literal block for several lines, unless it needs escapes."""
    if text.isprintable():
        return None
    # Readers fold other line breaks (U+0085, U+2028) unless they are escaped.
    return "|" if all(line.isprintable() for line in text.split("\n")) else '"'


_Dumper.add_representer(
    str, lambda dumper, data: dumper.represent_scalar(_TAG + "str", data, style=_style(data))
)
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence(_TAG + "seq", data, flow_style=True)
)


def read(text: str, name: str, *, lines: bool = True, as_text: bool = False) -> tuple[Any, dict[Path, int]]:
    """Read a YAML document and the line of each key; raise a UserError with all problems.

    With ``as_text``, numbers and other words remain text as written.
    """
    value, known, problems = read_in_part(text, name, lines=lines, as_text=as_text)
    if problems:
        where = (f"{name}:{line}" if lines else name for line, _ in problems)
        raise UserError(f"{at}: {problem}" for at, (_, problem) in zip(where, problems, strict=True))
    return value, known


def read_in_part(
    text: str, name: str, *, lines: bool = True, as_text: bool = False
) -> tuple[Any, dict[Path, int], list[tuple[int, str]]]:
    """Read a YAML document as far as possible; raise a UserError if it is not YAML.

    Return the value, the line number of each path, and the problems with keys and tags, each with its line
    number. Aliases of an anchor are the same object. The first value of a duplicate key is used. With
    ``lines=False``, messages name no lines.
    """
    try:
        loader = yaml.BaseLoader(text) if as_text else _Loader(text)
        node = loader.get_single_node()
        reading = _Reading(lines)
        value = reading.value(node, ()) if node is not None else None
    except (yaml.YAMLError, RecursionError) as error:
        raise not_yaml(error, name, lines=lines) from None
    return None if value is _UNREADABLE else value, reading.lines, reading.problems


def not_yaml(error: Exception, name: str, *, lines: bool = True) -> UserError:
    """Return a UserError for an error of PyYAML, with the line and column if they are known."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}: column {mark.column + 1}" if lines and mark else name
        what = ", ".join(part for part in (error.context, error.problem) if part)
        return UserError(f"{where}: invalid YAML: {what}{_advice(what)}")
    if isinstance(error, yaml.reader.ReaderError):
        return UserError(
            f"{name}: invalid YAML: character {error.position + 1} ({error.character:#x}) is not allowed"
        )
    return UserError(
        f"{name}: nested too deeply" if isinstance(error, RecursionError) else f"{name}: {error}"
    )


def write(tree: dict[str, Any]) -> str:
    """Return YAML with the keys in the given order and each list on one line."""
    text: str = yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10**9, allow_unicode=True
    )
    return text


class _Reading:
    def __init__(self, with_lines: bool) -> None:
        self.with_lines = with_lines
        self.lines: dict[Path, int] = {}
        self.problems: list[tuple[int, str]] = []
        self._made: dict[int, Any] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: Path) -> Any:
        if id(node) in self._open:
            self._report(node, "an anchor cannot contain itself")
            return _UNREADABLE
        if id(node) in self._made:
            return self._made[id(node)]
        self._open.add(id(node))
        self._made[id(node)] = made = self._make(node, path)
        self._open.discard(id(node))
        return made

    def _make(self, node: yaml.Node, path: Path) -> Any:
        tag = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and tag == "map":
            return dict(self._entries(node, path))
        if isinstance(node, yaml.SequenceNode) and tag == "seq":
            items = [self.value(item, path) for item in node.value]
            return _UNREADABLE if any(item is _UNREADABLE for item in items) else items
        if isinstance(node, yaml.ScalarNode) and (tag == "str" or tag in _SCALARS):
            if tag == "str" or _SCALARS[tag][0].match(node.value):
                return _scalar(tag, node.value)
            self._report(node, f"{node.value!r} cannot be read as !!{tag}: remove the tag")
            return _UNREADABLE
        self._report(node, f"the tag '{node.tag.replace(_TAG, '!!')}' is not allowed: remove the tag")
        return _UNREADABLE

    def _entries(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node, "a key must be a single word or number")
                continue
            name, line = key_node.value, key_node.start_mark.line + 1
            here = (*path, name)
            if name in first:
                before = first[name] if self.with_lines else 0
                self._report(key_node, given_twice(".".join(here), before))
                continue
            first[name] = line
            self.lines[here] = line
            value = self.value(value_node, here)
            if value is not _UNREADABLE:
                yield name, value

    def _report(self, node: yaml.Node, sentence: str) -> None:
        self.problems.append((node.start_mark.line + 1, sentence))


def given_twice(key: str, first: int) -> str:
    """Return an error message for a duplicate key. ``first`` is its first line, or 0 to leave it out."""
    before = f" (first on line {first})" if first else ""
    return f"key '{printable(key)}' is given twice{before}: keep only one"


def _scalar(tag: str, text: str) -> Any:
    if tag == "null":
        return None
    if tag == "bool":
        return text[0] in "tT"
    if tag == "int" and len(text) < 3000:  # Python converts at most 4,300 digits, and 0x needs fewer
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if tag == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _advice(what: str) -> str:
    if "'\\t'" in what:
        return " (indent with spaces)"
    if "cannot start any token" in what:
        return " (put the text in quotes)"
    if "mapping values are not allowed" in what:
        return " (text that contains ': ' needs quotes)"
    return ""
