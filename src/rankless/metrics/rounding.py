"""Round numbers for a report."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rounded(values: NDArray[np.float64], digits: int = 5) -> list[float | None]:
    """Return the rounded values as a JSON-compatible list, with None in place of NaN."""
    return [None if value != value else round(value, digits) for value in values.tolist()]
