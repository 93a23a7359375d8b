"""What a task does not know is told, all of it at once."""

from __future__ import annotations

import pytest

from rankless.data.augment_keys import refuse_unknown
from rankless.errors import UserError
from rankless.recipe import Augment


def test_what_both_know_is_taken_by_both():
    both = Augment(
        rotate=3, shear=2, perspective=0.1, blur=1, noise=1, jpeg=1, mixup=1, crop=0.5, close_mosaic=3
    )
    refuse_unknown(both, detection=True)
    refuse_unknown(both, detection=False)


def test_strangers_are_told_together():
    every = Augment(mosaic=1, copy_paste=0.5, policy="randaugment", erase=0.5, cutmix=1)
    with pytest.raises(UserError) as caught:
        refuse_unknown(every, detection=True)
    assert [fault.split(" is ")[0] for fault in caught.value.faults] == [
        "data.augment.policy",
        "data.augment.erase",
        "data.augment.cutmix",
    ]
    assert "only classification knows: leave it out, or set it to none." in caught.value.faults[0]
    with pytest.raises(UserError) as caught:
        refuse_unknown(every, detection=False)
    assert [fault.split(" is ")[0] for fault in caught.value.faults] == [
        "data.augment.mosaic",
        "data.augment.copy_paste",
    ]
