"""The data and the page of ``benchmarks/same_budget.py``."""

from pathlib import Path

import pytest
from PIL import Image, ImageDraw

import same_budget
from same_budget_data import SHAPES, draw

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("side", [6, 33, 96])
def test_box_encloses_the_pixels_of_a_shape(shape: str, side: int):
    canvas = Image.new("L", (110, 110))
    box = draw(ImageDraw.Draw(canvas), shape, (5, 7, 5 + side, 7 + side), 255)
    assert canvas.getbbox() == box


def test_page_has_the_table_of_the_stored_runs():
    page = (ROOT / "docs" / "same-budget.md").read_text(encoding="utf-8")
    assert "\n".join(same_budget.table(same_budget.stored())) in page
