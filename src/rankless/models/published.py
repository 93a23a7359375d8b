"""Find and download published weights by name.

``published.yaml`` lists Darknet's files. The installed torchvision and timm list their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankless.errors import UserError, nearest
from rankless.files import checksums, hub, yaml12
from rankless.files.cache_folder import cache_folder
from rankless.files.download import Offer, obtain
from rankless.models.classifiers.adapters import timm_facts
from rankless.models.classifiers.catalog import CLASSIFIERS, TIMM
from rankless.models.detectors import torchvision as detectors
from rankless.models.detectors.transformers_configs import REPOSITORIES
from rankless.models.weights_files.darknet_weights import check_header
from rankless.recipe.model_kinds import ModelKeys
from rankless.recipe.transformers_config import folder_of

PUBLISHED = "published"
"""The value of ``model.pretrained`` for the weights that were published with the model."""


@dataclass(frozen=True)
class PublishedFile:
    """A file with published weights.

    Attributes:
        name: name of the file in Rankless: the file name without ``.weights`` for Darknet, ``MODEL.WEIGHTS``
            for torchvision, ``timm/MODEL.TAG`` for timm.
        models: values of ``model.name`` that the file fits. A model's default is the first file listed for
            it.
        score: the published score and the data set it was measured on.
        categories: class names; empty if they were not published with the file.
    """

    name: str
    models: tuple[str, ...]
    source: Offer | hub.HubAddress
    score: str = ""
    license: str = "not stated"
    categories: tuple[str, ...] = ()

    @property
    def is_darknet(self) -> bool:
        """Whether the file is in Darknet's format."""
        return isinstance(self.source, Offer) and (
            self.source.name.endswith(".weights") or ".conv." in self.source.name
        )

    @property
    def checked_by(self) -> str:
        """The kind of checksum that verifies the file, for messages."""
        if not isinstance(self.source, Offer):
            return "the Hub's SHA-256"
        if not self.source.digest:
            return "unconfirmed"
        return f"{self.source.checksum}{', first digits' if self.source.is_short else ''}"

    def as_json(self) -> dict[str, Any]:
        """Return the description of the file as a JSON-compatible dict."""
        offer = self.source if isinstance(self.source, Offer) else Offer("")
        return {
            "name": self.name,
            "models": list(self.models),
            "address": offer.url or str(self.source),
            "bytes": offer.length or None,
            "about_bytes": offer.length or offer.about or None,
            "checked_by": self.checked_by,
            "digest": offer.digest or None,
            "score": self.score or None,
            "license": self.license,
        }


_LICENSES = {"github.com": "Unlicense, like the repository (AlexeyAB/darknet, issue 8881)"}
_OF_DATA = "may depend on the training data (see torchvision's README)"


def all_published() -> list[PublishedFile]:
    """Return Darknet's and torchvision's files, with each model's default file first."""
    return [*_of_darknet(), *_of_torchvision()]


def all_of_timm(matches: Callable[[str], bool]) -> Iterator[PublishedFile]:
    """Return an iterator over timm's files whose names satisfy ``matches``."""
    import timm

    return (_of_timm(name) for name in timm.list_pretrained() if matches(TIMM + name))


def named(name: str) -> PublishedFile:
    """Return the file with the given name, or the default file of the model with that name."""
    if name.startswith(TIMM):
        timm_facts(name.removeprefix(TIMM))  # refuses unknown names
        return _of_timm(name.removeprefix(TIMM))
    files = all_published()
    for found in (*(one for one in files if one.name == name), *(one for one in files if name in one.models)):
        return found
    if name in REPOSITORIES:
        raise UserError(
            f"the weights of '{name}' are in a repository on the Hugging Face Hub; use "
            f"model.pretrained={hub.PREFIX}{REPOSITORIES[name]}"
        )
    known = [*(one.name for one in files), *(model for one in files for model in one.models)]
    raise UserError(
        f"no published weights are named '{name}'; expected a name listed by `rankless weights list`, or "
        f"timm/NAME{nearest(name, known)}"
    )


def asked_for(pretrained: str, model: str, *, is_cfg: bool = False) -> PublishedFile | None:
    """Return the published file that ``model.pretrained`` names, or None if it does not name one.

    ``model`` is the value of ``model.name``; it is empty if the model is not in the zoo.
    """
    try:
        if pretrained == "timm":
            if model not in CLASSIFIERS and not model.startswith(TIMM):
                raise UserError("the model is not a timm model; expected 'published' or a weights file")
            return named(TIMM + model.removeprefix(TIMM))
        if pretrained == PUBLISHED:
            if is_cfg or not model:
                raise UserError("a custom network needs a file, such as published/yolov4.conv.137")
            return named(model)
        if not pretrained.startswith(f"{PUBLISHED}/"):
            return None
        found = named(pretrained.removeprefix(f"{PUBLISHED}/"))
        if model not in found.models and not (is_cfg and found.is_darknet):
            raise UserError(f"these weights fit {' and '.join(found.models)}, but model.name is '{model}'")
    except UserError as error:
        raise UserError(f"model.pretrained is '{pretrained}': {one}" for one in error.problems) from None
    return found


def fetch(wanted: PublishedFile) -> tuple[Path, str]:
    """Download a published file unless it is in the cache, and return its path and SHA-256."""
    source = wanted.source
    if not isinstance(source, Offer):
        path = hub.file_of(source)
        return path, checksums.of_file(path)
    if wanted.is_darknet:
        return obtain(source, cache_folder() / "weights", check_header)
    import torch

    return obtain(source, Path(torch.hub.get_dir()) / "checkpoints")


def prefetch(model: ModelKeys) -> None:
    """Download the weights for ``model.pretrained`` if needed, before the ranks on this machine start."""
    if folder_of(model.pretrained) is not None:
        return
    if model.pretrained.startswith(hub.PREFIX):
        hub.file_of(hub.parse(model.pretrained))
    elif wanted := asked_for(model.pretrained, model.name, is_cfg=bool(getattr(model, "cfg", ""))):
        if (width := getattr(model, "width", 1.0)) != 1:
            raise UserError(
                f"model.pretrained is '{model.pretrained}', but model.width is {width:g}; published weights "
                "have a width of 1; set model.width=1, or remove model.pretrained"
            )
        fetch(wanted)


def _of_darknet() -> Iterator[PublishedFile]:
    table = Path(__file__).with_suffix(".yaml")
    for row in yaml12.read(table.read_text(encoding="utf-8"), table.name)[0]:
        algorithm = "sha1" if "sha1" in row else "sha256"
        offer = Offer(row["url"], row["length"], row.get(algorithm, ""), algorithm)
        name, models = offer.name.removesuffix(".weights"), tuple(row.get("models", ()))
        license_ = _LICENSES.get(row["url"].split("/")[2], "not stated")
        categories = () if models else coco_classes()
        yield PublishedFile(name, models or (name,), offer, row.get("score", ""), license_, categories)


def coco_classes() -> tuple[str, ...]:
    """Return the names of COCO's 80 classes, in the order of Darknet's heads."""
    from torchvision.models.detection import RetinaNet_ResNet50_FPN_V2_Weights as Known

    names = Known.DEFAULT.meta["categories"]
    return tuple(name for name in names if name not in ("__background__", "N/A"))


def _of_torchvision() -> Iterator[PublishedFile]:
    from torchvision.models import get_model_weights, list_models

    there = set(list_models())
    for name in (*CLASSIFIERS, *detectors.MODELS):
        plain = name.removeprefix("torchvision/")
        if plain not in there:
            continue
        offered = get_model_weights(plain)
        for one in sorted(offered, key=lambda each: each is not offered.DEFAULT):
            ((data, scores),) = one.meta["_metrics"].items()
            score = ", ".join(f"{what} {value:g}" for what, value in scores.items())
            categories = tuple(one.meta["categories"])
            if name in detectors.MODELS:  # some files count the background as a class
                categories = categories[-detectors.MODELS[name].classes :]
            about = round(one.meta["_file_size"] * 2**20)
            offer = Offer(one.url, digest=checksums.digits_in(one.url), about=about)
            yield PublishedFile(f"{name}.{one.name}", (name,), offer, f"{data} {score}", _OF_DATA, categories)


def _of_timm(name: str) -> PublishedFile:
    import timm

    config: Any = timm.get_pretrained_cfg(name)
    models = tuple(dict.fromkeys((f"{TIMM}{name}", f"{TIMM}{config.architecture}")))
    full = f"{TIMM}{config.architecture}{f'.{config.tag}' if config.tag else ''}"
    license_ = config.license or "not stated"
    if config.hf_hub_id:
        where = hub.parse(f"{hub.PREFIX}{config.hf_hub_id}/{config.hf_hub_filename or 'model.safetensors'}")
        return PublishedFile(full, models, where, license=license_)
    if not config.url:
        raise UserError(f"timm has no weights for '{TIMM}{name}'")
    offer = Offer(config.url, digest=checksums.digits_in(config.url))
    return PublishedFile(full, models, offer, license=license_)
