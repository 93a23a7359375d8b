"""The types of a recipe's values. Every number has an upper limit, so that a typing error costs no memory."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

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
Size = Annotated[tuple[Side, Side], Field(strict=False)]  # not strict: a list serves as well
Name = Annotated[str, StringConstraints(min_length=1)]
Text = Annotated[str, Field(description="text")]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Activation = Literal["auto", "leaky", "mish", "swish", "relu", "prelu"]
Minutes = Annotated[
    str,
    StringConstraints(pattern=r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*) ?min$"),
    Field(description="minutes as in '10 min'"),
]
Anchors = Annotated[
    tuple[Annotated[tuple[Positive, Positive], Field(strict=False)], ...], Field(strict=False, min_length=1)
]
ClassWeights = Annotated[tuple[NotNegative, ...], Field(strict=False, min_length=1)]


def _rising(milestones: tuple[int, ...]) -> tuple[int, ...]:
    if any(later <= earlier for earlier, later in itertools.pairwise(milestones)):
        raise PydanticCustomError("rising", "expected increasing steps, each larger than the one before")
    return milestones


Milestones = Annotated[tuple[Count, ...], Field(strict=False), AfterValidator(_rising)]


Clash = tuple[str, tuple[str, ...]]
"""A message about values that are each valid but do not go together, and their keys, the culprit first."""


def clash(sentence: str, *keys: str) -> PydanticCustomError:
    """The error of a single :data:`Clash`; the keys are those of the class that raises it."""
    return clashes([(sentence, keys)])


def clashes(found: list[Clash]) -> PydanticCustomError:
    """The error of several at once."""
    text = "; ".join(sentence for sentence, _ in found)
    return PydanticCustomError("clash", "{text}", {"text": text, "found": found})
