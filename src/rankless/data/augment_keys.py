"""Which keys of ``data.augment`` a task knows, so that none is passed over in silence."""

from __future__ import annotations

from rankless.errors import UserError
from rankless.recipe import Augment

_ONLY_DETECTION = ("mosaic", "copy_paste")
_ONLY_CLASSIFICATION = ("policy", "erase", "cutmix")


def refuse_unknown(options: Augment, *, detection: bool) -> None:
    """Raise if pictures are to be varied in ways that the task does not know.

    Raises:
        UserError: every such key.
    """
    strangers, other = (
        (_ONLY_CLASSIFICATION, "classification") if detection else (_ONLY_DETECTION, "detection")
    )
    given = {name: getattr(options, name) for name in strangers}
    faults = [
        f"data.augment.{name} is {value}, which only {other} knows: leave it out, or set it to "
        f"{'none' if name == 'policy' else 0}."
        for name, value in given.items()
        if value not in (0, "none")
    ]
    if faults:
        raise UserError(faults)
