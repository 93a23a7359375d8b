"""Detector families of the user's own, named ``package.module:Family`` or ``file.py:Family`` in a recipe.

The fields of a family's dataclass are its options, which ``model.options`` of the recipe sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from torch import nn

from rankless.errors import UserError, nearest, one_of
from rankless.models.detectors.protocol import DetectorSpec, Exports
from rankless.recipe.keys import OPEN, Key
from rankless.recipe.mistakes import wrong_value
from rankless.recipe.model_kinds import FamilyModel
from rankless.user_modules import load_class, refuse_lacking

_FAMILY = {
    "size": "size = (height, width), the usual input in pixels, multiples of 32",
    "build": "build(self, classes) returns the detector, a torch.nn.Module",
}
_DETECTOR = {
    "head_names": 'head_names = ("head.",), the beginnings of the names of all parameters of the heads',
    "head_layout": "head_layout(self, name) returns the layout of a head parameter's rows",
    "decode": "decode(self, raw) returns boxes (B, P, 4) and scores (B, P, C)",
    "loss": "loss(self, raw, batch) returns a rankless.LossSum",
    "backbone": "backbone(self) returns a list of the backbone's modules",
}


@dataclass(frozen=True, kw_only=True)
class FamilySpec(DetectorSpec):
    """The specification of a detector of the user's own family."""

    family: Any

    def build(self, classes: int) -> nn.Module:
        made = self.family.build(classes)
        what = f"build() of '{self.model.name}' returned {type(made).__name__}"
        if not isinstance(made, nn.Module):
            raise UserError(f"{what}; expected a torch.nn.Module")
        refuse_lacking(made, what, _DETECTOR, "member")
        return made


def spec(model: FamilyModel) -> FamilySpec:
    """Import the family that ``model.name`` names, and validate its options.

    Raises:
        UserError: the class or one of its members is missing, or an option is unknown or has a wrong value.
    """
    what = f"model.name is '{model.name}'"
    made = load_class(model.name, "model.name")
    refuse_lacking(made, what, _FAMILY, "member")
    if problems := [*_wrong_options(made, model.options, model.name)]:
        raise UserError(problems)
    try:
        family = made(**{key: _tuples(value) for key, value in model.options.items()})
    except ValueError as error:  # from __post_init__
        raise UserError(f"model.options: {error}") from error
    size = family.size
    if not (isinstance(size, tuple) and len(size) == 2 and all(s > 0 and s % 32 == 0 for s in size)):
        raise UserError(f"{what}, whose size is {size!r}; expected (height, width) in multiples of 32")
    unknown = Exports(problem="its family has no attribute 'exports'")
    return FamilySpec(model=model, size=size, exports=getattr(family, "exports", unknown), family=family)


def _wrong_options(family: Any, options: Mapping[str, Any], name: str) -> Iterator[str]:
    known = {one.name: one for one in fields(family) if one.init} if is_dataclass(family) else {}
    types = get_type_hints(family, include_extras=True) if known else {}
    for option in options.keys() - known.keys():
        expected = f"expected {one_of(known)}{nearest(option, known)}" if known else "it has no options"
        yield f"key 'model.options.{option}': '{name}' has no such option; {expected}"
    for option, one in known.items():
        info = FieldInfo.from_annotated_attribute(types[option], one.default)
        key = Key((*OPEN, option), family, info, ())
        if option not in options:
            if one.default is MISSING and one.default_factory is MISSING:
                yield f"'model.options.{option}' is missing; '{name}' requires this option"
            continue
        try:
            key.values.validate_json(json.dumps(options[option]), strict=True)
        except ValidationError:
            yield wrong_value(key, options[option])


def _tuples(value: Any) -> Any:
    """Return tuples instead of lists, so that a family's options cannot change."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
