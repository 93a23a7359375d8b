"""The types of recipe values, and annotations of recipe keys.

Every number has a limit, so that a typo cannot exhaust memory.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, Strict
from pydantic_core import PydanticCustomError

from rankless.recipe.durations import RunLength
from rankless.task_kinds import BUILT_IN, KINDS

config = ConfigDict(extra="forbid", allow_inf_nan=False)

# --- declarations of a key, as in ``key: Annotated[Fraction, DETECT_ONLY, PREDICTING] = 0.6`` ------------


@dataclass(frozen=True)
class Only:
    """Declares that a recipe key has an effect only if another key has certain values."""

    key: str
    values: tuple[str | int, ...]


@dataclass(frozen=True)
class Reads:
    """Declares which built-in tasks read a recipe key after training.

    A section's declaration applies to its keys. Keys without a declaration are read by training and scoring.
    """

    scoring: tuple[str, ...] = ()  # tasks that read the key when a trained model is scored
    predicting: tuple[str, ...] = ()  # tasks that read the key when a trained model predicts


def is_task(name: str) -> bool:
    """Check whether a name is a built-in task or has the form of a class, such as ``file.py:Class``."""
    return name in BUILT_IN or bool(name.rpartition(":")[0])


def similar_task(name: str) -> str | None:
    """Return the built-in task with a similar name, such as ``detect`` for ``detection``, or None."""
    return next(iter(difflib.get_close_matches(name.lower(), BUILT_IN, n=1)), None)


_WITH_BOXES, _WITHOUT_BOXES = (
    tuple(kind.name for kind in KINDS if kind.boxes == boxes) for boxes in (True, False)
)
DETECT_ONLY, CLASSIFY_ONLY = Only("task", _WITH_BOXES), Only("task", _WITHOUT_BOXES)
TRAINING = Reads()
SCORING, PREDICTING = Reads(BUILT_IN), Reads(BUILT_IN, BUILT_IN)
CLASSIFYING = Reads(_WITHOUT_BOXES, _WITHOUT_BOXES)
FREE = "can be changed when a run is resumed, because it does not affect earlier results"

# --- types --------------------------------------------------------------------------------------------------

Float = Annotated[float, Strict()]  # accepts whole numbers, but no text
Int = Annotated[int, Strict()]
Bool = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), Field(description="text")]
Name = Annotated[str, Field(strict=True, min_length=1)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
ProperFraction = Annotated[Float, Field(ge=0, lt=1)]
Positive = Annotated[Float, Field(gt=0, le=1e9)]
NotNegative = Annotated[Float, Field(ge=0, le=1e9)]
Factor = Annotated[Float, Field(ge=0, le=1000)]
Count = Annotated[Int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[Int, Field(ge=0, le=10**9)]
Seed = Annotated[Int, Field(ge=0, le=10**40)]
Images = Annotated[Int, Field(ge=1, le=10_000_000)]
BatchImages = Annotated[Int, Field(ge=1, le=1 << 20)]
Side = Annotated[Int, Field(ge=8, le=16_384)]
Size = tuple[Side, Side]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Activation = Literal["auto", "leaky", "mish", "swish", "relu", "prelu"]
Anchors = Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]
NamesFile = Annotated[Name, Field(description="auto, or a file with one class name per line")]
ClassPairs = tuple[tuple[Text, Text], ...]
ClassWeights = Annotated[tuple[NotNegative, ...], Field(min_length=1)]


def _number_as_text(name: Any) -> Any:
    """Convert a class name such as ``7`` to text, because class names in data sets are text."""
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


def _no_bool(number: Any) -> Any:
    if isinstance(number, bool):  # because True and False equal 1 and 0
        raise ValueError  # noqa: TRY004 (pydantic reports it)
    return number


ClassName = Annotated[Name, BeforeValidator(_number_as_text)]
ClassNames = Annotated[tuple[ClassName, ...], Field(min_length=1)]
NoBool = BeforeValidator(_no_bool)


def _as_json(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as they are read back from a recipe's file; refuse values that JSON lacks."""
    try:
        read: dict[str, Any] = json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, RecursionError) as error:
        raise ValueError from error
    return read


_OPTIONS = "a section with the options of your class, which contain only numbers, text, true, false and lists"
Options = Annotated[dict[str, Any], Field(description=_OPTIONS), AfterValidator(_as_json)]


LINK_VALUES: Mapping[str, int | float] = {"epoch": 1, "step": 1, "loss": 1.0, "val_loss": 1.0, "lr": 1.0}
"""The fields of ``checkpoint.name``, each with an example value."""
_IN_LINKS = re.compile(
    rf"(?:[^{{}}/\0-\x1f]|{{({'|'.join(LINK_VALUES)})(:0?\d{{0,2}}(\.\d{{1,2}})?[dfeg]?)?}}){{1,80}}"
)


def _link_name(pattern: str) -> str:
    """Refuse a pattern that cannot be formatted, has no epoch or step, or gives no valid file name."""
    with suppress(ValueError):
        known = not pattern or (_IN_LINKS.fullmatch(pattern) and re.search("{(epoch|step)[:}]", pattern))
        if known and len(pattern.format(**LINK_VALUES)) <= 200:
            return pattern
    expected = "expected a file name with {epoch} or {step}, as in 'ep{epoch:03d}-loss{loss:.3f}'"
    raise PydanticCustomError("expected", "{expected}", {"expected": expected})


_LINK = "a file name with {epoch} or {step}"
LinkName = Annotated[str, Strict(), AfterValidator(_link_name), Field(description=_LINK)]


def _plain_steps(duration: int | str) -> int | str:
    """Convert ``'20 steps'`` to 20, and refuse more than 100%."""
    if isinstance(duration, str) and duration.endswith(("step", "steps")):
        return int(duration.partition("s")[0])
    if isinstance(duration, str) and duration.endswith("%") and float(duration.rstrip(" %")) > 100:
        raise ValueError
    return duration


def _text(pattern: str, about: str) -> Any:
    return Field(strict=True, pattern=pattern, description=about)


_ABOVE_0 = r"(0{0,9}[1-9][0-9]{0,8}(\.[0-9]{1,9})?|0{1,9}\.[0-9]{0,8}[1-9][0-9]{0,8})"
_DESCRIBED = "a duration such as '5 epochs' or '80%'"
_IN_UNITS = Annotated[
    str, _text(rf"^({_ABOVE_0} ?(epochs?|%)|0{{0,9}}[1-9][0-9]{{0,8}} ?steps?)$", _DESCRIBED)
]
_IN_UNITS_OR_0 = Annotated[str, _text(rf"^({_ABOVE_0} ?(epochs?|%)|[0-9]{{1,9}} ?steps?)$", _DESCRIBED)]
Minutes = Annotated[
    str,
    _text(r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*) ?min$", "a number of minutes such as '10 min'"),
]
# A bare number means steps; it is recorded with the unit, because older recipes recorded bare epochs.
_RECORDED = PlainSerializer(
    lambda duration: f"{duration} steps" if isinstance(duration, int) else duration,
    return_type=str,
    when_used="json",
)
Duration = Annotated[CountOrZero | _IN_UNITS_OR_0, AfterValidator(_plain_steps), _RECORDED]
Period = Annotated[Count | _IN_UNITS, AfterValidator(_plain_steps), _RECORDED]


def _rising(milestones: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Refuse durations in the same unit that do not increase; different units need the data to compare."""
    for earlier, later in itertools.pairwise(milestones):
        units = {re.sub("[0-9. ]|s$", "", str(one)) for one in (earlier, later)}
        if len(units) == 1 and not _ONE_STEP.exact(earlier) < _ONE_STEP.exact(later):
            raise PydanticCustomError("expected", "expected durations in increasing order")
    return milestones


_ONE_STEP = RunLength(1, 1, 1)
Milestones = Annotated[tuple[Period, ...], AfterValidator(_rising)]


def get(value: Any, key: str, default: Any) -> Any:
    """Return the value of a key in a section (an instance or a mapping)."""
    return value.get(key, default) if isinstance(value, Mapping) else getattr(value, key, default)


def given(section: Any) -> Mapping[str, Any]:
    """Return the keys and values of a mapping, or the name and the non-default values of an instance."""
    if isinstance(section, Mapping):
        return section
    known = getattr(section, "__pydantic_fields__", {}).items()
    defaults = {name: one.get_default(call_default_factory=True) for name, one in known}
    return {
        name: getattr(section, name)
        for name, default in defaults.items()
        if name == "name" or getattr(section, name) != default
    }


def by_tag(union: Any) -> dict[str, Any]:
    """Return the classes of a tagged union by their tags."""
    kinds, _ = get_args(union)
    return {get_args(kind)[1].tag: get_args(kind)[0] for kind in get_args(kinds)}
