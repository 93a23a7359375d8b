"""The built-in data set ``digits``: handwritten digits, on textured scenes for detectors."""

from rankless.data.builtin.digits.scenes import SPLITS, DigitImages, DigitScenes

TITLE = "the built-in digits"
detection, classification = DigitScenes, DigitImages


def splits(root: object = None) -> list[str]:
    return [*SPLITS]
