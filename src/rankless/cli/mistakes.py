"""The argument parser's errors in the words of all other errors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from rankless.errors import UserError, nearest, one_of, printable

_RECIPES = {"detect": "yolov4-tiny", "classify": "resnet18"}
_MODES = {
    "train": "rankless train {recipe}",
    **dict.fromkeys(("val", "validate", "eval", "test"), "rankless evaluate {target}"),
    "predict": "rankless predict {target} {source}",
    "export": "rankless export {target} --format onnx --out my",
}
"""What the tasks and modes of other programs' command lines are here."""

_EXPECTED = {int: "a whole number", float: "a number", bool: "no value: the option is a switch"}


def in_our_words(error: CycloptsError) -> UserError:
    """Return the same error as ``where: problem; …``, lower case, with what to do at the end."""
    see = f"see: {' '.join(('rankless', *(error.command_chain or ())))} --help"
    if isinstance(error, UnusedCliTokensError):
        return UserError(f"'{_first(error)}': unexpected argument; {see}")
    if isinstance(error, UnknownCommandError):
        return UserError(_unknown_command(error, see))
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0]
        names = [name for one in error.argument_collection if one.parse for name in one.names]
        others = [one for one in error.root_input_tokens or () if one.startswith("-")]
        options = dict.fromkeys((word, *(one.partition("=")[0] for one in others)))
        return UserError(
            f"{printable(one)}: no such option{meant or nearest(one, names)}; {see}"
            for one in options
            if one not in names and ((meant := _from_elsewhere(one, names)) or one == word)
        )
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        used = error.keyword or next((one.keyword for one in error.argument.tokens if one.keyword), None)
        if used:
            return UserError(f"{printable(used)} has no value: expected one after it; {see}")
        return UserError(f"{error.argument.name} is missing; {see}")
    if isinstance(error, CoercionError) and error.token is not None:
        name = error.token.keyword or (error.argument.name if error.argument else "the argument")
        expected = _EXPECTED.get(error.target_type or str, "another value")
        return UserError(
            f"{printable(name)} has '{printable(error.token.value)}': expected {expected}; {see}"
        )
    text = " ".join(str(error).split()).rstrip(".")
    return UserError(f"{text[:1].lower()}{text[1:]}; {see}")


def _from_elsewhere(option: str, names: Collection[str]) -> str:
    """Return what is written here for an option of a training script's, after a semicolon; else nothing."""
    from rankless.recipe.familiar import ELSEWHERE, OPTIONS, answer, key_of

    name = option.lstrip("-").replace("-", "_").lower()
    if name.startswith("conf") and "--confidence" in names:
        return "; here it is --confidence"
    meant = OPTIONS.get(name) or ELSEWHERE.get(name)
    if not meant or "--run" not in names:  # a command that takes no recipe
        return ""
    said = answer(meant)
    return f"; {said.replace(key, f'{key}=VALUE', 1) if (key := key_of(name)) else said}"


def _unknown_command(error: UnknownCommandError, see: str) -> str:
    app: App | None = error.app
    names = [name for name in (app or ()) if not name.startswith("-")]
    expected = f": expected {one_of(names)}" if names else ""
    word = _first(error)
    if line := _yolo_line(error.root_input_tokens or ()) if not error.command_chain else "":
        return f"'{word}': no such command; write: {line}"
    return f"'{word}': no such command{expected}{nearest(word, names)}; {see}"


def _yolo_line(tokens: Sequence[str]) -> str:
    """Return our command line for one of ``yolo``'s, as in ``detect train data=my.yaml``; else nothing."""
    from rankless.recipe.familiar import key_of

    given = [one.removeprefix("task=").removeprefix("mode=") for one in tokens]
    words = [one for one in given if "=" not in one and one != "yolo"]
    task = words.pop(0) if words and words[0] in _RECIPES else ""
    mode = words.pop(0) if words else ""
    if mode not in _MODES or len(words) > (mode != "train"):
        return ""
    values = dict(one.split("=", 1) for one in given if "=" in one)
    model = values.pop("model", words[0] if words else "")
    target = "runs/NAME" if not model or model.endswith((".pt", ".yaml")) else model
    source, data, device = (values.pop(name, "") for name in ("source", "data", "device"))
    line = _MODES[mode].format(
        recipe=_RECIPES.get(task, _RECIPES["detect"]), target=target, source=source or "IMAGES"
    )
    more = []
    if mode == "train":
        values = values if "data.root" in values else {"data": data or "FOLDER", **values}
        keys = ((name if "." in name else key_of(name), value) for name, value in values.items())
        more = [f"{key}={value}" for key, value in keys if key]
    if device[:1].isdecimal() and mode not in ("predict", "export"):
        more.append(f"--devices {device}{'' if ',' in device else ','}")  # one number there is a GPU's
    return printable(" ".join([line, *more]), 300)


def _first(error: CycloptsError) -> str:
    return printable((error.unused_tokens or ["?"])[0])
