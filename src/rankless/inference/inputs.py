"""Read images that Python programs pass: paths, PIL images, NumPy arrays and tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from rankless.data.datasets import detection
from rankless.data.images import image_file
from rankless.data.images.image_file import Decoded, UnreadableImage
from rankless.errors import UserError
from rankless.inference.model_loading import Finder
from rankless.inference.pipeline import Source
from rankless.inference.predict_custom import CustomFinder
from rankless.inference.predict_detect import BoxFinder
from rankless.inference.sources import scenes
from rankless.recipe.schema import Data

ImageLike = str | os.PathLike[str] | Image.Image | NDArray[Any] | Tensor
"""One image: a path, a built-in scene, a PIL image, a NumPy array (uint8 RGB (H, W, 3) or gray (H, W)), or a
tensor (3, H, W) or (1, H, W) of uint8 or floats in 0..1."""

_EXPECTED = (
    "expected a path, a PIL image, a NumPy array of uint8 (H, W, 3) or (H, W), or a tensor (3, H, W) of "
    "uint8 or floats in 0..1"
)


def file_source(name: str) -> Source:
    """Return an image source for a file or a built-in scene."""
    return Source(name, lambda finder: read(name, finder))


def read(name: str, finder: Finder) -> tuple[Tensor, Decoded]:
    """Return an image, uint8 (3, H, W), and a copy for the network that is reduced as in training."""
    scene = scenes(name)
    if scene is None or Path(name).exists():
        image = image_file.read(Path(name), values=_values(finder))
        height, width = image.shape[-2:]
        if not isinstance(finder, CustomFinder) and finder.shown.reduction(height, width) > 1:
            return image, image_file.read_for(Path(name), finder.shown)
    else:
        root, split, numbers = scene
        image = _built_in(Data(root=root), split, numbers.start, finder)
    return image, whole(image)


def _built_in(data: Data, split: str, index: int, finder: Finder) -> Tensor:
    if not isinstance(finder, BoxFinder | CustomFinder):
        from rankless.data.datasets import classification  # imports torchvision, which detectors do not need

        images = classification.open_images(data, split)
        if index >= len(images):
            reason = f"the built-in data has only the images 0 to {len(images) - 1} in '{split}'"
            raise UnreadableImage(f"{data.root}:{split}:{index}", reason)
        return images.read(index)
    # As in training, validation scenes do not depend on the seed.
    seed = finder.task.recipe.seed if split == "train" and isinstance(finder, BoxFinder) else 0
    size = finder.task.size if isinstance(finder, BoxFinder) else None
    return detection.open_images(data, split, index + 1, seed, size).read(index).image


def source_of(image: ImageLike, number: int) -> Source:
    """Return the source of any :data:`ImageLike`. Messages mention its index, ``number``."""
    if isinstance(image, str | os.PathLike):
        return file_source(os.fspath(image))
    where = f"image {number}"
    name = str(getattr(image, "filename", "") or "")
    if isinstance(image, Image.Image) and image.mode[0] in "IF":  # more than 8 bits
        return Source(name, lambda finder: reduced(_deep(image, where, _values(finder)), finder))
    tensor = _tensor(image, where)
    return Source(name, lambda finder: reduced(tensor, finder))


def whole(image: Tensor) -> Decoded:
    """Convert an image (3, H, W) to a ``Decoded`` of full size."""
    return Decoded(image, 1, (image.shape[-2], image.shape[-1]))


def reduced(image: Tensor, finder: Finder) -> tuple[Tensor, Decoded]:
    """Return an image, and a copy for the network that is reduced like a file of the same size."""
    height, width = image.shape[-2:]
    factor = 1 if isinstance(finder, CustomFinder) else finder.shown.reduction(height, width)
    if factor == 1:
        return image, whole(image)
    smaller = np.array(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).reduce(factor))
    return image, Decoded(torch.from_numpy(smaller).permute(2, 0, 1), factor, (height, width))


def _values(finder: Finder) -> image_file.Values:
    return "full" if isinstance(finder, CustomFinder) else finder.shown.values


def _deep(image: Image.Image, where: str, values: image_file.Values) -> Tensor:
    try:
        upright = image_file.rgb(ImageOps.exif_transpose(image), values)
    except (OSError, ValueError) as error:
        raise UnreadableImage(where, str(error)) from error
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def _tensor(image: Any, where: str) -> Tensor:
    if isinstance(image, Image.Image):
        try:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        except OSError as error:
            raise UnreadableImage(where, str(error)) from error
        return torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
            raise UserError(f"{where}: is an array of {image.dtype} with shape {image.shape}; {_EXPECTED}")
        rgb = image if image.ndim == 3 else np.repeat(image[..., None], 3, 2)
        tensor = torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
    elif isinstance(image, Tensor):
        tensor = _rgb(image.detach().cpu(), where)
    else:
        raise UserError(f"{where}: is {type(image).__name__}; {_EXPECTED}")
    if 0 in tensor.shape:
        raise UserError(f"{where}: has no pixels (its shape is {tuple(image.shape)}); {_EXPECTED}")
    return tensor


def _rgb(image: Tensor, where: str) -> Tensor:
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise UserError(f"{where}: is a tensor of shape {tuple(image.shape)}; {_EXPECTED}")
    if image.is_floating_point():
        if not bool(((image >= 0) & (image <= 1)).all()):
            raise UserError(f"{where}: is a tensor with values outside 0..1; {_EXPECTED}")
        image = (image * 255).round().to(torch.uint8)
    elif image.dtype != torch.uint8:
        raise UserError(f"{where}: is a tensor of {image.dtype}; {_EXPECTED}")
    return image.expand(3, -1, -1).clone()
