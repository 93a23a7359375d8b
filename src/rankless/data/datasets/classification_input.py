"""Resize images to a classifier's input, and augment them for training.

Without random crops, the whole image is stretched to the input. With random crops, evaluation and prediction
use a center crop, as is usual for ImageNet, because subjects look larger in random crops. Each augmentation
has its own random generator, so turning one of them off does not change the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as TF

from rankless.data.augment.degrade import Key, degrade, drawing
from rankless.data.augment.resample import drawn_color, recolor
from rankless.data.augment.warp import Matrix, drawn_warp, origins, sampled, shrunk
from rankless.data.images.image_file import Shown, Values
from rankless.geometry.letterbox import GRAY
from rankless.hardware.cpu_threads import one_thread
from rankless.randomness import generator
from rankless.recipe.schema import Augment
from rankless.structures import Letterbox

MARGIN = 256 / 224  # size of a resized image relative to the center crop
_ASPECTS = (3 / 4, 4 / 3)  # range of the aspect ratio of random crops (Szegedy et al., 2015)
_POLICIES = {
    # Two operations of magnitude 9 of 30 (Cubuk et al., 2020); one of any magnitude (Müller and Hutter,
    # 2021).
    "randaugment": v2.RandAugment(num_ops=2, magnitude=9, fill=GRAY),
    "trivialaugment": v2.TrivialAugmentWide(fill=GRAY),
}


def place(image: Tensor, size: tuple[int, int], *, cropped: bool) -> Tensor:
    """Resize an image, uint8 (3, h, w), to the input ``size`` (H, W) for evaluation and prediction.

    With ``cropped``, the image is resized to cover 256/224 of the input, keeping its aspect ratio, and the
    center is cropped. Otherwise, the image is stretched.
    """
    if not cropped:
        return _resize(image, size)
    middle: Tensor = TF.center_crop(_resize(image, _covering(image.shape[-2:], size)), list(size))
    return middle


def placement(shape: Sequence[int], size: tuple[int, int], *, cropped: bool) -> Letterbox:
    """Return the placement that :func:`place` gives an image of shape (h, w)."""
    height, width = shape
    larger = _covering(shape, size) if cropped else size
    stretch = (larger[1] / width, larger[0] / height)
    return Letterbox(1.0, (size[1] - larger[1]) / 2, (size[0] - larger[0]) / 2, height, width, stretch)


def _covering(shape: Sequence[int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) of a resized image before the center crop, given its shape (h, w)."""
    height, width = shape
    scale = max(round(size[0] * MARGIN) / height, round(size[1] * MARGIN) / width)
    # Rounding must not make the image smaller than the input.
    return max(size[0], round(height * scale)), max(size[1], round(width * scale))


def shown_as(size: tuple[int, int], cropped: bool, detail: float, values: Values = "full") -> Shown:
    """Return the size at which :func:`place` shows images, so that decoding can reduce them.

    The enlargement by random crops is not taken into account.
    """
    if not cropped:
        return Shown(size, "stretch", detail, values)
    return Shown((round(size[0] * MARGIN), round(size[1] * MARGIN)), "cover", detail, values)


@one_thread()
def augment(image: Tensor, size: tuple[int, int], options: Augment, key: Key) -> Tensor:
    """Augment an image, uint8 (3, h, w), randomly and return the input, uint8 (3, H, W).

    The order is random crop, flips, zoom, shift and warp, color, policy, blur, noise, JPEG and erasing. If
    all of them are off, the result is bitwise equal to the result of :func:`place`.
    """
    rng = generator(*key)
    mirrored, upside_down = rng.random() < options.flip, rng.random() < options.flip_vertical
    *color, zoom, shift_x, shift_y = rng.uniform(-1, 1, 6).tolist()
    if options.crop < 1:
        with drawing(key, "crop"):
            crop = v2.RandomResizedCrop(1, scale=(options.crop, 1.0), ratio=_ASPECTS).make_params([image])
        top, left = crop["top"], crop["left"]
        image = image[:, top : top + crop["height"], left : left + crop["width"]]
    axes = [axis for axis, flipped in ((-1, mirrored), (-2, upside_down)) if flipped]
    factor = (1 + options.scale) ** zoom
    shift = [shift_x * options.translate * size[1], shift_y * options.translate * size[0]]
    warp = drawn_warp(options, size, rng)
    if warp is not None:
        augmented = _warped(image.flip(axes), size, factor, shift, warp)
    else:
        augmented = _resize(image, size).flip(axes)
        if options.scale or options.translate:
            augmented = _zoom_and_shift(augmented, factor, shift)
    if (matrix := drawn_color(options, *color)) is not None:
        augmented = recolor(augmented, matrix)
    if options.policy != "none":
        with drawing(key, "policy"):
            augmented = _POLICIES[options.policy](augmented)
    augmented = degrade(augmented, options, key)
    if options.erase:
        with drawing(key, "erase"):
            augmented = v2.RandomErasing(options.erase, value=GRAY)(augmented)
    return augmented


def _warped(image: Tensor, size: tuple[int, int], zoom: float, shift: list[float], warp: Matrix) -> Tensor:
    height, width = image.shape[-2:]
    corner = (size[1] * (1 - zoom) / 2 + shift[0], size[0] * (1 - zoom) / 2 + shift[1])
    image, scales = shrunk(image, (zoom * size[1] / width, zoom * size[0] / height))
    return sampled(image, origins(warp, size), scales, corner)


def _zoom_and_shift(image: Tensor, zoom: float, shift: list[float]) -> Tensor:
    moved: Tensor = TF.affine(
        image,
        angle=0.0,
        translate=shift,
        scale=zoom,
        shear=[0.0, 0.0],
        interpolation=InterpolationMode.BILINEAR,
        fill=[float(GRAY)] * 3,
    )
    return moved


def _resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(image.shape[-2:]) == tuple(size):
        return image
    resized: Tensor = TF.resize(image, list(size), antialias=True)
    return resized
