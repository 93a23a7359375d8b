"""Files of repositories on the Hugging Face Hub: ``hf://OWNER/NAME[@REVISION][/FILE]``.

``huggingface_hub``, which timm needs, downloads them into its own cache (``HF_HOME``), resumes interrupted
downloads, and does not use the network if ``HF_HUB_OFFLINE`` is set.
"""

from __future__ import annotations

import glob
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError, printable
from rankless.files import checksums, reading

PREFIX = "hf://"
OFFLINE = "HF_HUB_OFFLINE"
"""Environment variable that disables downloads by huggingface_hub and by Rankless."""
_ADDRESS = re.compile(r"([\w.-]+/[\w.-]+)(?:@([^@/]+))?(?:/([^@]+))?")
_WEIGHTS = "model.safetensors"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubAddress:
    """The parts of an ``hf://`` address."""

    repository: str  # OWNER/NAME
    revision: str = ""  # a branch, a tag or a commit; empty for the default branch
    file: str = ""  # a path inside the repository; empty for the whole repository

    def __str__(self) -> str:
        at = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return f"{PREFIX}{self.repository}{at}{'/' if self.file else ''}{self.file}"


def is_offline() -> bool:
    """Check whether the environment forbids downloads."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")


_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".onnx", ".ckpt", ".h5")  # no repository is called so


def parse(text: str) -> HubAddress:
    """Return the parts of an address; a ``/`` in the revision must be written as ``%2F``."""
    match = _ADDRESS.fullmatch(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    repository, revision, file = match.groups(default="") if match else ("", "", "")
    revision = revision.replace("%2F", "/")
    if not file and repository.endswith(_ENDINGS):  # OWNER is missing
        match = None
    if not match or {".", "..", ""} & set(f"{repository}/{revision or 'main'}/{file or 'file'}".split("/")):
        raise UserError(
            f"'{printable(text)}': expected hf://OWNER/NAME[@REVISION][/FILE], as in "
            "hf://timm/resnet18.a1_in1k/model.safetensors"
        )
    return HubAddress(repository, revision, file)


def fetch(address: HubAddress, *, newest: bool = False) -> Path:
    """Return the local folder with a repository's JSON and safetensors files, downloading missing files.

    The folder is named after the commit. If the files of a branch are cached, the Hub is asked for a newer
    commit only if ``newest`` is True. The Hub names large files by their SHA-256 digests, which are verified.
    If the address has a ``file``, only that file is downloaded.
    """
    # Weights come last: if they exist, all other files have been fetched, too.
    patterns = [glob.escape(address.file)] if address.file else ["*.json", "*.safetensors"]
    folder = None
    if not newest:
        with suppress(UserError):
            folder = _snapshot(address, patterns, cached=True)
    if (
        folder is None
        or _missing_file(address, folder)
        or not (address.file or (folder / "config.json").is_file())
    ):
        folder = _snapshot(address, patterns, cached=is_offline())
    if absent := _missing_file(address, folder):
        expected = "; expected the name of a file in it" if address.file else ""
        raise _missing(address, f"{absent} is not in the repository{expected}")
    for path in (path for pattern in patterns for path in folder.rglob(pattern)):
        blob = path.resolve()
        if _SHA256.fullmatch(blob.name) and blob.is_file() and (sha := checksums.of_file(blob)) != blob.name:
            raise UserError(
                f"{address}: {path} is damaged: its SHA-256 is {sha}; expected {blob.name}; remove {blob} "
                "and fetch it again"
            )
    return folder


def _snapshot(address: HubAddress, patterns: list[str], *, cached: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    revision = address.revision or None
    try:
        for pattern in patterns:
            folder = snapshot_download(
                address.repository, revision=revision, allow_patterns=[pattern], local_files_only=cached
            )
            revision = Path(folder).name
    except LocalEntryNotFoundError as error:
        raise _missing(address, "it is not in the cache, and the Hub cannot be reached", error) from error
    except Exception as error:  # many types, raised by the network, the Hub or the disk
        raise _missing(address, "it cannot be fetched", error) from error
    return Path(folder)


def _missing_file(address: HubAddress, folder: Path) -> str:
    """Return the first file of the address that is missing from ``folder``, or "" if none is."""
    wanted, index = [address.file or _WEIGHTS], folder / f"{_WEIGHTS}.index.json"
    if not address.file and not (folder / _WEIGHTS).is_file() and index.is_file():
        try:
            wanted = [str(name) for name in json.loads(reading.read_text(index))["weight_map"].values()]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return f"a valid {index.name}"
    return next((name for name in wanted if not reading.is_file(folder / name)), "")


def file_of(address: HubAddress) -> Path:
    """Return the local path of the safetensors file at an address, downloading it if needed."""
    refuse_pickles(address)
    return fetch(address) / address.file


def refuse_pickles(address: HubAddress) -> None:
    """Raise a UserError unless the address refers to a safetensors file."""
    if not address.file.endswith(".safetensors"):
        raise UserError(
            f"{address}: expected a .safetensors file, as in {PREFIX}{address.repository}/model.safetensors; "
            "other weights files are pickles, which can run arbitrary code"
        )


def path_of(text: str) -> Path:
    """Return the local path of a file or a run that is given as a path or an ``hf://`` address."""
    return file_of(parse(text)) if text.startswith(PREFIX) else Path(text)


def _missing(address: HubAddress, what: str, error: Exception | None = None) -> UserError:
    reason = f" ({printable(' '.join(str(error).split()), 200)})" if error else ""
    offline = f"; --offline or {OFFLINE} forbids downloads" if is_offline() else ""
    return UserError(
        f"{address}: {what}{reason}{offline}; on a machine with network access, fill the cache (HF_HOME) "
        f"with: hf download {address.repository} {address.file}".rstrip()
        + (f" --revision {address.revision}" if address.revision else "")
    )
