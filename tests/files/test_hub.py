"""hf:// addresses, and the files behind them from a local server that answers like the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from rankless.errors import UserError
from rankless.files.hub import HubAddress, fetch, file_of, parse
from support.hub_server import COMMIT, FILES, Hub, running


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    with running() as (handler, here):
        for name, value in {  # from HF_ENDPOINT and HF_HOME, but read when the library is imported
            "ENDPOINT": here,
            "HUGGINGFACE_CO_URL_TEMPLATE": here + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        yield handler


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://a/b", HubAddress("a/b")),
        ("hf://a/b@v1", HubAddress("a/b", "v1")),
        ("hf://a/b/x/y.safetensors", HubAddress("a/b", "", "x/y.safetensors")),
        ("hf://a/b@refs%2Fpr%2F1/y", HubAddress("a/b", "refs/pr/1", "y")),
    ],
)
def test_an_address_has_a_repository_a_revision_and_a_file(text: str, expected: HubAddress) -> None:
    assert parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text", ["a/b", "hf://a", "hf://../b", "hf://a/b/../../c", "hf://a/b@", "hf://a/b@..%2Fc", "hf://a/b/"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="expected hf://OWNER/NAME"):
        parse(text)


def test_files_except_pickles_are_downloaded_into_a_folder_named_after_the_commit(hub: type[Hub]) -> None:
    folder = fetch(parse("hf://a/b@v1"))
    assert folder.name == COMMIT
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: content for name, content in FILES.items() if name != "model.bin"
    }


def test_a_fetched_file_needs_no_network(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    there = fetch(parse("hf://a/b/config.json"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(parse("hf://a/b/config.json")) == there
    with pytest.raises(UserError, match=r"model\.safetensors.*HF_HUB_OFFLINE forbids.*hf download a/b model"):
        fetch(parse("hf://a/b/model.safetensors"))


def kept(cache: Path, *files: str) -> Path:
    """Write a cache as an interrupted download leaves it; without a list of files."""
    folder = cache / "models--a--b" / "snapshots" / COMMIT
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(INDEX if "index" in name else b"{}")
    (cache / "models--a--b" / "refs").mkdir()
    (cache / "models--a--b" / "refs" / "main").write_text(COMMIT)
    return folder


INDEX = b'{"weight_map": {"x": "1.safetensors", "y": "2.safetensors"}}'
SHARDS = dict.fromkeys(("config.json", "1.safetensors", "2.safetensors"), b"{}")
SHARDS["model.safetensors.index.json"] = INDEX


@pytest.mark.parametrize("missing", ["config.json", "1.safetensors", "2.safetensors"])
def test_an_interrupted_download_is_completed(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    hub.files = SHARDS
    folder = kept(tmp_path / "cache", *({*SHARDS} - {missing}))
    if missing.endswith(".safetensors"):
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match=f"{missing} is not in the repository"),
        ):
            patch.setenv("HF_HUB_OFFLINE", "1")
            fetch(parse("hf://a/b"))
    fetch(parse("hf://a/b"))
    assert {file.name for file in folder.iterdir()} == {*SHARDS}
    hub.asked.clear()
    fetch(parse("hf://a/b"))
    assert hub.asked == []


def test_a_file_of_the_same_name_in_a_folder_is_another(hub: type[Hub], tmp_path: Path) -> None:
    kept(tmp_path / "cache", "config.json", "sub/model.safetensors")
    path = file_of(parse("hf://a/b/model.safetensors"))
    assert path.read_bytes() == FILES["model.safetensors"]


def test_a_file_with_another_sha_is_refused(hub: type[Hub]) -> None:
    hub.lies = True
    with pytest.raises(UserError, match="is damaged: its SHA-256 is"):
        fetch(parse("hf://a/b"))


@pytest.mark.parametrize("text", ["hf://a/c", "hf://a/b@gone", "hf://a/b/absent.safetensors"])
def test_an_unknown_name_is_named(hub: type[Hub], text: str) -> None:
    with pytest.raises(UserError, match=f"^{text}: "):
        fetch(parse(text))
