"""The types of a recipe's values. Every number has a limit, so that a typo cannot exhaust the memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, StringConstraints
from pydantic_core import PydanticCustomError

from rankless.recipe.durations import RunLength

config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
# What the JSON Schema of a key says that only one of the built-in tasks reads.
DETECT_ONLY: Any = Field(json_schema_extra={"x-task": "detect"})
CLASSIFY_ONLY: Any = Field(json_schema_extra={"x-task": "classify"})

Fraction = Annotated[float, Field(ge=0, le=1)]
ProperFraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, le=1e9)]
NotNegative = Annotated[float, Field(ge=0, le=1e9)]
Factor = Annotated[float, Field(ge=0, le=1000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=10**40)]
Images = Annotated[int, Field(ge=1, le=10_000_000)]
Side = Annotated[int, Field(ge=8, le=16_384)]
Size = Annotated[tuple[Side, Side], Field(strict=False)]  # not strict: a list is accepted too
Name = Annotated[str, StringConstraints(min_length=1)]
Text = Annotated[str, Field(description="text")]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Activation = Literal["auto", "leaky", "mish", "swish", "relu", "prelu"]
_ABOVE_0 = r"(0{0,9}[1-9][0-9]{0,8}(\.[0-9]{1,9})?|0{1,9}\.[0-9]{0,8}[1-9][0-9]{0,8})"
Minutes = Annotated[
    str,
    StringConstraints(pattern=r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*) ?min$"),
    Field(description="minutes as in '10 min'"),
]
Anchors = Annotated[
    tuple[Annotated[tuple[Positive, Positive], Field(strict=False)], ...], Field(strict=False, min_length=1)
]


def _number_as_text(name: Any) -> Any:
    """Return the class name ``7`` as the text that it is in the data."""
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


NamesFile = Annotated[
    str, StringConstraints(min_length=1), Field(description="auto, or a file with a class name a line")
]
ClassNames = Annotated[
    tuple[Annotated[Name, BeforeValidator(_number_as_text)], ...], Field(strict=False, min_length=1)
]
ClassPairs = Annotated[tuple[Annotated[tuple[Text, Text], Field(strict=False)], ...], Field(strict=False)]
ClassWeights = Annotated[tuple[NotNegative, ...], Field(strict=False, min_length=1)]


LINK_VALUES: Mapping[str, int | float] = {"epoch": 1, "step": 1, "loss": 1.0, "val_loss": 1.0, "lr": 1.0}
"""What the name of a link to weights may hold, by an example of each."""
_IN_LINKS = re.compile(
    rf"(?:[^{{}}/\0-\x1f]|{{({'|'.join(LINK_VALUES)})(:0?\d{{0,2}}(\.\d{{1,2}})?[dfeg]?)?}}){{1,80}}"
)


def _link_name(pattern: str) -> str:
    """Refuse a name that cannot be formatted, is the same for all epochs, or is no file's."""
    with suppress(ValueError):
        known = not pattern or (_IN_LINKS.fullmatch(pattern) and re.search("{(epoch|step)[:}]", pattern))
        if known and len(pattern.format(**LINK_VALUES)) <= 200:
            return pattern
    expected = "expected a file name with {epoch} or {step}, as in 'ep{epoch:03d}-loss{loss:.3f}'"
    raise PydanticCustomError("name", "{expected}", {"expected": expected})


LinkName = Annotated[str, AfterValidator(_link_name), Field(description="a file name with {epoch} or {step}")]


def _plain_steps(duration: int | str) -> int | str:
    """Return ``'20 steps'`` as 20, and refuse more than the whole run."""
    if isinstance(duration, str) and duration.endswith(("step", "steps")):
        return int(duration.partition("s")[0])
    if isinstance(duration, str) and duration.endswith("%") and float(duration.rstrip(" %")) > 100:
        raise ValueError
    return duration


def _with_unit(duration: int | str) -> str:
    return f"{duration} steps" if isinstance(duration, int) else duration


_DESCRIBED = Field(description="a duration as in '5 epochs' or '80%'")
_IN_UNITS = Annotated[
    str,
    StringConstraints(pattern=rf"^({_ABOVE_0} ?(epochs?|%)|0{{0,9}}[1-9][0-9]{{0,8}} ?steps?)$"),
    _DESCRIBED,
]
_IN_UNITS_OR_0 = Annotated[
    str, StringConstraints(pattern=rf"^({_ABOVE_0} ?(epochs?|%)|[0-9]{{1,9}} ?steps?)$"), _DESCRIBED
]
# A bare number means steps; it is recorded with that word, which tells it from the epochs of older recipes.
_RECORDED = PlainSerializer(_with_unit, return_type=str, when_used="json")
Duration = Annotated[CountOrZero | _IN_UNITS_OR_0, AfterValidator(_plain_steps), _RECORDED]
Period = Annotated[Count | _IN_UNITS, AfterValidator(_plain_steps), _RECORDED]


def _rising(milestones: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Refuse durations of the same unit that do not rise; others are compared when the data is known."""
    for earlier, later in itertools.pairwise(milestones):
        units = {re.sub("[0-9. ]|s$", "", str(one)) for one in (earlier, later)}
        if len(units) == 1 and not _ONE_STEP.exact(earlier) < _ONE_STEP.exact(later):
            raise PydanticCustomError("rising", "expected increasing durations, each above the one before")
    return milestones


_ONE_STEP = RunLength(1, 1, 1)
Milestones = Annotated[tuple[Period, ...], Field(strict=False), AfterValidator(_rising)]


Clash = tuple[str, tuple[str, ...]]
"""A message about values that are each valid but do not go together, and their keys, the culprit first."""


def clash(sentence: str, *keys: str) -> PydanticCustomError:
    """Make the error of a single :data:`Clash`; the keys are those of the class that raises it."""
    return clashes([(sentence, keys)])


def clashes(all_of_them: list[Clash]) -> PydanticCustomError:
    """Make the error of several at once."""
    text = "; ".join(sentence for sentence, _ in all_of_them)
    return PydanticCustomError("clash", "{text}", {"text": text, "clashes": all_of_them})


def get(value: Any, key: str, default: Any) -> Any:
    """Return a key of a section, which is an instance or a mapping of its keys."""
    return value.get(key, default) if isinstance(value, Mapping) else getattr(value, key, default)


def by_tag(union: Any) -> dict[str, Any]:
    """Map the tags of a tagged union of classes to the classes."""
    kinds, _ = get_args(union)
    return {get_args(kind)[1].tag: get_args(kind)[0] for kind in get_args(kinds)}
