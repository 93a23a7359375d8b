"""Files of repositories on the Hugging Face Hub: ``hf://OWNER/NAME[@REVISION][/FILE]``.

``huggingface_hub``, which timm needs, downloads them into its own cache (``HF_HOME``), resumes interrupted
downloads, and does not use the network if ``HF_HUB_OFFLINE`` is set.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankless.errors import UserError, printable
from rankless.files import checksums

PREFIX = "hf://"
OFFLINE = "HF_HUB_OFFLINE"
"""The variable that keeps huggingface_hub, and every other download of weights, off the network."""
_ADDRESS = re.compile(r"([\w.-]+/[\w.-]+)(?:@([^@/]+))?(?:/([^@]+))?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubAddress:
    """The parts of an ``hf://`` address.

    Attributes:
        repository: ``OWNER/NAME``.
        revision: a branch, a tag or a commit; empty for the default branch.
        file: a path inside the repository; empty for the whole repository.
    """

    repository: str
    revision: str = ""
    file: str = ""

    def __str__(self) -> str:
        at = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return f"{PREFIX}{self.repository}{at}{'/' if self.file else ''}{self.file}"


def is_offline() -> bool:
    """Return whether the environment forbids downloads."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")


def parse(text: str) -> HubAddress:
    """Return the parts of an address; ``/`` in a revision is written as ``%2F``."""
    match = _ADDRESS.fullmatch(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    repository, revision, file = match.groups(default="") if match else ("", "", "")
    if not match or {".", "..", ""} & set(f"{repository}/{file or 'file'}".split("/")):
        raise UserError(
            f"'{printable(text)}': expected hf://OWNER/NAME[@REVISION][/FILE], as in "
            "hf://timm/resnet18.a1_in1k/model.safetensors"
        )
    return HubAddress(repository, revision.replace("%2F", "/"), file)


def fetch(
    address: HubAddress, patterns: Sequence[str] = ("*.json", "*.safetensors"), *, cached: bool = False
) -> Path:
    """Download the files of a repository that are not in the cache; return their local folder.

    Large files are checked against their SHA-256, which the Hub uses as their names in the cache.

    Args:
        address: the repository; its ``file``, if given, is the only file that is fetched.
        patterns: shell patterns of the files to fetch; the default ones match no pickles.
        cached: use only files that are already in the cache.

    Returns:
        The folder of the snapshot, named after the commit that ``revision`` refers to.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    patterns = [glob.escape(address.file)] if address.file else patterns
    try:
        folder = Path(
            snapshot_download(
                address.repository,
                revision=address.revision or None,
                allow_patterns=list(patterns),
                local_files_only=cached or is_offline(),
            )
        )
    except LocalEntryNotFoundError as error:
        raise _missing(address, "it is not in the cache, and the Hub cannot be reached", error) from error
    except Exception as error:  # errors of many types, from the network, the Hub or the disk
        raise _missing(address, "it cannot be fetched", error) from error
    found = [path for pattern in patterns for path in folder.rglob(pattern)]
    if not found:
        raise _missing(address, f"no file matches {', '.join(patterns)}")
    for path in found:
        blob = path.resolve()
        if _SHA256.fullmatch(blob.name) and (sha := checksums.of_file(blob)) != blob.name:
            raise UserError(
                f"{address}: {path} is damaged: its SHA-256 is {sha}, expected {blob.name}; remove {blob}, "
                "and fetch it again"
            )
    return folder


def file_of(address: HubAddress) -> Path:
    """Return the local path of the file that an address names, downloading it if it is not in the cache.

    A branch therefore refers to the cached commit until it is fetched again. Only safetensors are accepted.
    """
    refuse_pickles(address)
    try:
        return fetch(address, cached=True) / address.file
    except UserError:
        return fetch(address) / address.file


def refuse_pickles(address: HubAddress) -> None:
    """Raise for an address that does not name a safetensors file."""
    if not address.file.endswith(".safetensors"):
        raise UserError(
            f"{address}: expected a .safetensors file, as in {PREFIX}{address.repository}/model.safetensors; "
            "other files of weights are pickles, which can run any code"
        )


def path_of(text: str) -> Path:
    """Return the local path of a file or a run that is named by its path or by an ``hf://`` address."""
    return file_of(parse(text)) if text.startswith(PREFIX) else Path(text)


def _missing(address: HubAddress, what: str, error: Exception | None = None) -> UserError:
    reason = f" ({printable(' '.join(str(error).split()), 200)})" if error else ""
    offline = f"; {OFFLINE} is set" if is_offline() else ""
    return UserError(
        f"{address}: {what}{reason}{offline}; expected a file of that repository; with a network, fetch it "
        f"first: hf download {address.repository} {address.file}".rstrip()
        + (f" --revision {address.revision}" if address.revision else "")
        + "; HF_HOME names the cache"
    )
