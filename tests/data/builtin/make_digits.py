"""Write the file of the built-in digits, from scikit-learn: ``python tests/data/builtin/make_digits.py``.

The file is a gzip of 65 bytes per digit: 64 gray levels from 0 to 16, row by row, and the class.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

FILE = Path(__file__).parents[3] / "src/rankless/data/builtin/digits/optdigits.gz"


def content() -> bytes:
    """Return the uncompressed content."""
    stored = load_digits()
    return np.column_stack([stored.data, stored.target]).astype(np.uint8).tobytes()


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress(content(), mtime=0))
