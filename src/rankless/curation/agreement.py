"""Whether the splits' classes agree: what a training refuses, found before it."""

from __future__ import annotations

import numpy as np

from rankless.curation.data_set import DataSet
from rankless.errors import listed


def disagreements(data: DataSet) -> list[str]:
    """What of the classes stops a training on these splits, as sentences; none if they agree.

    A model gets its classes from the training split: ``train`` or, without one, the first. Of boxes, every
    split must number the classes alike; of class folders, no other split may have a class of its own.
    """
    parts = data.parts
    first = "train" if "train" in parts else next(iter(parts))
    names = parts[first].class_names
    told = []
    if not parts[first].has_boxes and len(names) < 2:
        told.append(f"'{first}' has images of one class only ({listed(names)}), expected two or more")
    for name, each in parts.items():
        if each.has_boxes != parts[first].has_boxes:
            told.append(f"one of '{first}' and '{name}' has boxes, the other one class for each image")
        elif each.has_boxes and each.class_names != names:
            told.append(
                f"'{name}' has the classes {listed(each.class_names)}, but '{first}' {listed(names)}: "
                "expected the same in the same order"
            )
        elif not each.has_boxes:
            used = [each.class_names[label] for label in np.unique(each.labels).tolist()]
            if strange := [label for label in used if label not in names]:
                told.append(f"'{name}' has classes that '{first}' does not have: {listed(strange)}")
    return told
