"""Optional libraries: a message names a missing or a broken one, and the command that installs it."""

from __future__ import annotations

import re

import pytest

from rankless.errors import UserError
from rankless.extras import needed


def test_an_installed_library_is_imported() -> None:
    assert needed("json.decoder", "onnx", "a.onnx").JSONDecoder


def test_a_missing_and_a_broken_library_are_told_apart(tmp_path, monkeypatch):
    (tmp_path / "broken_library.py").write_text("import missing_library_of_another")
    monkeypatch.syspath_prepend(tmp_path)
    install = "; run `pip install 'rankless[onnx]'`"
    for name, said in (
        ("missing_library.inside", f"a.onnx: needs missing_library{install}"),
        (
            "broken_library",
            "a.onnx: needs broken_library, which is installed but cannot be imported (No module named "
            f"'missing_library_of_another'){install}",
        ),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
            needed(name, "onnx", "a.onnx")
