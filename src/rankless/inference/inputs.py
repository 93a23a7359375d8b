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

from rankless.data.images import image_file
from rankless.data.images.image_file import Decoded, UnreadableImage
from rankless.errors import UserError
from rankless.inference.finder import Finder
from rankless.inference.pipeline import Source
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
        image = image_file.read(Path(name), values=finder.shown.values)
        height, width = image.shape[-2:]
        if finder.shown.reduction(height, width) > 1:
            return image, image_file.read_for(Path(name), finder.shown)
    else:
        root, split, numbers = scene
        image = finder.scene(Data(root=root), split, numbers.start)
    return image, whole(image)


def source_of(image: ImageLike, number: int) -> Source:
    """Return the source of any :data:`ImageLike`. Messages mention its index, ``number``."""
    if isinstance(image, str | os.PathLike):
        return file_source(os.fspath(image))
    where = f"image {number}"
    name = str(getattr(image, "filename", "") or "")
    if isinstance(image, Image.Image) and image.mode[0] in "IF":  # more than 8 bits
        return Source(name, lambda finder: reduced(_deep(image, where, finder.shown.values), finder))
    tensor = _tensor(image, where)
    return Source(name, lambda finder: reduced(tensor, finder))


def whole(image: Tensor) -> Decoded:
    """Convert an image (3, H, W) to a ``Decoded`` of full size."""
    return Decoded(image, 1, (image.shape[-2], image.shape[-1]))


def reduced(image: Tensor, finder: Finder) -> tuple[Tensor, Decoded]:
    """Return an image, and a copy for the network that is reduced like a file of the same size."""
    height, width = image.shape[-2:]
    factor = finder.shown.reduction(height, width)
    if factor == 1:
        return image, whole(image)
    smaller = np.array(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).reduce(factor))
    return image, Decoded(torch.from_numpy(smaller).permute(2, 0, 1), factor, (height, width))


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
