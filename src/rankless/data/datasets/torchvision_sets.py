"""Find and download data sets by their torchvision names, such as ``data.root: torchvision/CIFAR10``.

Files are downloaded only with ``--download``. Rankless reads them with its own readers, which never unpickle
anything.
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
    """A torchvision data set; ``files`` is a pattern for files that must exist in ``data.folder``."""

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
    """Return the torchvision name of a data set, such as ``CIFAR10``, or "" for other data."""
    if not data.root.startswith(PREFIX) or Path(data.root).exists():
        return ""
    name = data.root.removeprefix(PREFIX)
    if name not in _KNOWN:
        raise UserError(
            f"data.root is '{data.root}': expected {one_of(PREFIX + each for each in _KNOWN)}"
            f"{nearest(name, _KNOWN)}; for other data sets, set data.root to the folder"
        )
    return name


def located(data: Data) -> Data:
    """Replace the torchvision name of a data set with its folder and format; return other data unchanged."""
    name = named(data)
    if not name:
        return data
    known, folder = _KNOWN[name], Path(data.folder).expanduser()
    if not any(folder.glob(known.files)):
        raise UserError(
            f"{data.root}: no files found in {folder} ({folder.absolute()}); expected {known.files}, as "
            f"stored by torchvision; set data.folder{_by_download(name)}"
        )
    if data.format not in ("auto", known.format):
        raise UserError(
            f"data.format is '{data.format}', but {data.root} has the format '{known.format}'; remove "
            "data.format"
        )
    return replace(data, root=str(folder / known.root), folder=Data.folder, format=known.format)


def _by_download(name: str) -> str:
    return "" if name == "CocoDetection" else ", or add --download to download the data set"


def download(data: Data) -> list[str]:
    """Download a torchvision data set unless it is present; return notes on the downloaded files.

    torchvision provides the URLs and MD5 sums, and downloads and unpacks the files.
    """
    name = named(data)
    if not name or not _by_download(name):
        what = "torchvision cannot download CocoDetection"
        if not name:
            what = f"{data.root} is not a torchvision data set"
        known = one_of(PREFIX + each for each in _KNOWN if _by_download(each))
        raise UserError(f"--download: {what}; expected data.root to be {known}; remove --download")
    folder = Path(data.folder).expanduser()
    if any(folder.glob(_KNOWN[name].files)):
        return []
    from torchvision.datasets.utils import download_and_extract_archive

    said = []
    for url, file, md5, into in _archives(name):
        try:
            (folder / into).mkdir(parents=True, exist_ok=True)
            download_and_extract_archive(url, str(folder / into), filename=file, md5=md5)
        except (OSError, RuntimeError) as error:  # no network, or a wrong MD5 sum
            raise UserError(
                f"{url}: cannot be downloaded: {error}; check the network connection and try again, or copy "
                f"the files to {shlex.quote(str(folder))}"
            ) from error
        said.append(f"downloaded {url} to {folder / into}")
    return said


def _archives(name: str) -> list[tuple[str, str, str, str]]:
    """Return the URL, file name, MD5 sum and target folder (relative to ``data.folder``) of each archive."""
    from torchvision import datasets
    from torchvision.datasets.voc import DATASET_YEAR_DICT

    kind = getattr(datasets, name)
    if name == "OxfordIIITPet":
        return [(url, url.rpartition("/")[2], md5, "oxford-iiit-pet") for url, md5 in kind._RESOURCES]
    if name == "VOCDetection":
        year = DATASET_YEAR_DICT["2012"]  # torchvision's default
        return [(year["url"], year["filename"], year["md5"], "")]
    return [(kind.url, kind.filename, kind.tgz_md5, "")]
