"""Detector families of the user's own, named ``package.module:Family`` or ``file.py:Family`` in a recipe.

The fields of a family's dataclass are its options, which ``model.options`` of the recipe sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from rankless.errors import UserError
from rankless.models.detectors.protocol import DetectorSpec, Exports
from rankless.recipe.model_kinds import FamilyModel
from rankless.recipe.own_options import with_options
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
    family = with_options(made, ("model", "options"), model.options, model.name)
    size = family.size
    if not (isinstance(size, tuple) and len(size) == 2 and all(s > 0 and s % 32 == 0 for s in size)):
        raise UserError(f"{what}, whose size is {size!r}; expected (height, width) in multiples of 32")
    unknown = Exports(problem="its family has no attribute 'exports'")
    return FamilySpec(model=model, size=size, exports=getattr(family, "exports", unknown), family=family)
