"""Find data sets by torchvision's names (``data.root: torchvision/CIFAR10``) where torchvision stores them.

Nothing is downloaded unless requested (``--download``). Rankless reads the files with its own readers, so no
pickle in them is loaded.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rankless.errors import UserError, nearest, one_of
from rankless.recipe.schema import Data, Format

PREFIX = "torchvision/"


class _Known(NamedTuple):
    """The format and folder of a torchvision data set, and a pattern for the files that must be present."""

    format: Format
    files: str
    root: str = ""


_KNOWN = {
    "CIFAR10": _Known("cifar", "cifar-10-batches-py/batches.meta", "cifar-10-batches-py"),
    "CIFAR100": _Known("cifar", "cifar-100-python/meta", "cifar-100-python"),
    "CocoDetection": _Known("coco", "annotations/*.json"),
    "OxfordIIITPet": _Known("oxford-pets", "oxford-iiit-pet/annotations/trainval.txt", "oxford-iiit-pet"),
    "VOCDetection": _Known("voc", "VOCdevkit/VOC*/Annotations"),
}


def named(data: Data) -> str:
    """Return the name of the recipe's torchvision data set, such as ``CIFAR10``, or "" for other data."""
    if not data.root.startswith(PREFIX) or Path(data.root).exists():
        return ""
    name = data.root.removeprefix(PREFIX)
    if name not in _KNOWN:
        raise UserError(
            f"data.root is '{data.root}': expected "
            f"{one_of(PREFIX + each for each in _KNOWN)}{nearest(name, _KNOWN)}; for any other data set, "
            "give its folder"
        )
    return name


def located(data: Data) -> Data:
    """Replace a torchvision data set's name with its folder and format; return other data unchanged."""
    name = named(data)
    if not name:
        return data
    known, folder = _KNOWN[name], Path(data.folder).expanduser()
    if not any(folder.glob(known.files)):
        raise UserError(
            f"{data.root}: its files are not in {folder} ({folder.absolute()}); expected {known.files} "
            f"there, as torchvision stores it; give data.folder=FOLDER{_by_download(name)}"
        )
    if data.format not in ("auto", known.format):
        raise UserError(
            f"data.format is '{data.format}', but {data.root} is read as '{known.format}'; leave "
            "data.format out"
        )
    return replace(data, root=str(folder / known.root), folder=Data.folder, format=known.format)


def _by_download(name: str) -> str:
    return "" if name == "CocoDetection" else ", or add --download to get them from their publisher"


def download(data: Data) -> list[str]:
    """Download missing files of the recipe's torchvision data set; return a description of the download.

    torchvision provides the addresses and MD5 sums, and downloads and unpacks the files.
    """
    name = named(data)
    if not name or not _by_download(name):
        what = f"{data.root} is your own data" if not name else "torchvision does not download CocoDetection"
        known = one_of(PREFIX + each for each in _KNOWN if _by_download(each))
        raise UserError(f"--download: {what}; expected {known} as data.root; leave --download out")
    folder = Path(data.folder).expanduser()
    if any(folder.glob(_KNOWN[name].files)):
        return []
    from torchvision.datasets.utils import download_and_extract_archive

    said = []
    for url, file, md5, into in _archives(name):
        try:
            (folder / into).mkdir(parents=True, exist_ok=True)
            download_and_extract_archive(url, str(folder / into), filename=file, md5=md5)
        except (OSError, RuntimeError) as error:  # no network, or bytes that differ from the published ones
            raise UserError(
                f"{url}: cannot be downloaded: {error}; expected a network connection and the published "
                f"file; put the files into {shlex.quote(str(folder))} by hand, or try again"
            ) from error
        said.append(f"downloaded {url} into {folder / into}")
    return said


def _archives(name: str) -> list[tuple[str, str, str, str]]:
    """Return each archive's URL, file name and MD5, and its folder below ``data.folder``."""
    from torchvision import datasets
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    kind = getattr(datasets, name)
    if name == "OxfordIIITPet":
        return [(url, url.rpartition("/")[2], md5, "oxford-iiit-pet") for url, md5 in kind._RESOURCES]
    if name == "VOCDetection":
        year = DATASET_YEAR_DICT["2012"]  # torchvision's default
        return [(year["url"], year["filename"], year["md5"], "")]
    return [(kind.url, kind.filename, kind.tgz_md5, "")]
