"""Convert errors from the argument parser to UserErrors."""

from __future__ import annotations

import re
from collections.abc import Collection

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from rankless.errors import UserError, nearest, one_of, printable, similar

_EXPECTED = {int: "a whole number", float: "a number", bool: "no value, because it is a switch"}


def as_user_error(error: CycloptsError) -> UserError:
    """Convert an error from cyclopts to a UserError of the form ``where: problem; remedy``."""
    see = f"see: {' '.join(('rankless', *(error.command_chain or ())))} --help"
    if isinstance(error, UnusedCliTokensError):
        return UserError(f"'{_first(error)}': unexpected argument; {see}")
    if isinstance(error, UnknownCommandError):
        return UserError(_unknown_command(error, see))
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0]
        names = [name for one in error.argument_collection if one.parse for name in one.names]
        names += ["--help", "--version"]
        others = [one for one in error.root_input_tokens or () if re.match("-+[a-zA-Z]", one)]
        options = dict.fromkeys((word, *(one.partition("=")[0] for one in others)))
        command = (error.command_chain or ("",))[0]
        hints = {one: _from_elsewhere(one, names, command) for one in options if one not in names}
        if not hints:  # an option that every command has, such as --help
            return UserError(f"{printable(word)} takes no value; {see}")
        return UserError(
            f"{printable(one)}: no such option"
            f"{hint or nearest(one, names) or _near_key(one, names) or f'; {see}'}"
            for one, hint in hints.items()
        )
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        used = error.keyword or next((one.keyword for one in error.argument.tokens if one.keyword), None)
        if used:
            return UserError(f"{printable(used)} needs a value; {see}")
        what = str(error.argument.parameter.help or "a value").partition(". ")[0].rstrip(".")
        what = re.sub(r" \([^)]*\)", "", what)
        return UserError(f"{error.argument.name} is missing: expected {what[:1].lower()}{what[1:]}; {see}")
    if isinstance(error, CoercionError) and error.token is not None:
        name = error.token.keyword or (error.argument.name if error.argument else "the argument")
        expected = _EXPECTED.get(error.target_type or str, "another value")
        return UserError(f"{printable(name)} is '{printable(error.token.value)}': expected {expected}; {see}")
    if isinstance(error, RepeatArgumentError) and error.token is not None:
        name = printable(error.token.keyword or error.token.value)
        return UserError(f"{name} is given more than once: expected one value, or a list with commas; {see}")
    text = " ".join(str(error).split()).rstrip(".")
    return UserError(f"{text[:1].lower()}{text[1:]}; {see}")


def _from_elsewhere(option: str, names: Collection[str], command: str) -> str:
    from rankless.cli.foreign_options import COMMANDS, OPTIONS, WORDS, override
    from rankless.recipe.familiar import ELSEWHERE, answer

    name = option.lstrip("-").replace("-", "_").lower()
    if command in COMMANDS and (known := COMMANDS[command].get(name) or WORDS.get(name)):
        return f"; {answer(known, 'VALUE')}"
    meant = OPTIONS.get(name) or ELSEWHERE.get(name)
    if not meant:
        return ""
    if not _takes_recipe(names) or not {*re.findall("--[a-z]+", meant)} <= {*names}:
        return "; use --devices N" if "--devices" in names and "--devices" in meant else ""
    key, _, value = override(name, "VALUE").partition("=")
    said = answer(meant)
    return f"; {said.replace(key, f'{key}=VALUE', 1) if value == 'VALUE' else said}"


def _takes_recipe(names: Collection[str]) -> bool:
    return any("RECIPE" in name for name in names)


def _near_key(option: str, names: Collection[str]) -> str:
    """Return a hint about the recipe keys similar to an option, such as ``--epohcs``, or ""."""
    if not _takes_recipe(names):
        return ""
    from rankless.recipe.keys import leaves
    from rankless.recipe.schema import Recipe

    word = option.lstrip("-").replace("-", "_")
    keys = [".".join(path) for path in leaves(Recipe)]
    lasts = similar(word, [key.rpartition(".")[2] for key in keys])
    near = similar(word, keys) or [key for key in keys if key.rpartition(".")[2] in lasts]
    return f"; did you mean {' or '.join(f'{key}=VALUE' for key in near[:2])}?" if near else ""


def _unknown_command(error: UnknownCommandError, see: str) -> str:
    from rankless.cli.foreign_options import MODES

    app, word = error.app or App(), _first(error)
    if word.startswith("-"):
        near = nearest(word, [name for name in app if name.startswith("-")])
        return f"{word}: no such option{near or f'; {see}'}"
    if word in MODES and not error.command_chain:
        return f"'{word}': no such command; {MODES[word]}"
    shown = [name for name in app if not name.startswith("-") and app[name].show]
    names = sorted(shown, key=lambda name: app[name].sort_key)
    if near := nearest(word, names):
        return f"'{word}': no such command{near}"
    expected = f": expected {one_of(names)}" if names else ""
    return f"'{word}': no such command{expected}; {see}"


def _first(error: CycloptsError) -> str:
    return printable((error.unused_tokens or ["?"])[0])
