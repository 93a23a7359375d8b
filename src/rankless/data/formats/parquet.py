"""Read Parquet files written by Hugging Face ``datasets``: rows, class names and embedded images.

An image is a struct of encoded ``bytes`` and a ``path``. In an uncompressed column, images are byte ranges of
the Parquet file. Compressed images are copied once and stored next to the cached annotations.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rankless.data.formats.rows import Row, Stored, Table, is_read
from rankless.data.images.image_file import MOST_BYTES
from rankless.data.index.byte_ranges import COPY, ORIGINAL, path_in
from rankless.data.index.findings import Findings
from rankless.data.index.scan import storage
from rankless.errors import UserError, printable
from rankless.extras import needed
from rankless.files import reading
from rankless.files.writing import beside

_AT_ONCE = 64  # rows
_BYTES, _NAME = {"binary", "large_binary", "binary_view"}, {"string", "large_string", "string_view", "null"}
_ENDINGS = {b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp", b"II*": ".tif"}
"""Extensions for images without a name, by their first bytes. All other images are JPEGs."""


class ParquetTable(Table):
    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._open = needed("pyarrow.parquet", "parquet", str(file)).ParquetFile
        library = needed("pyarrow.lib", "parquet", str(file))
        self._errors = (OSError, ValueError, OverflowError, library.ArrowException)
        try:
            with self._open(file) as opened:
                schema = opened.schema_arrow
            self._about = schema.metadata
            columns = {field.name: field.type for field in schema}
        except self._errors as error:
            raise self._damaged(error) from None
        images = [
            name
            for name, fields in ((name, _fields(kind)) for name, kind in columns.items())
            if set(fields) == {"bytes", "path"} and fields["bytes"] in _BYTES and fields["path"] in _NAME
        ]
        self.images = images[0] if images else ""
        self.columns = [
            name
            for name, kind in columns.items()
            if name not in images and is_read(name, _fields(getattr(kind, "value_type", kind)))
        ]

    def _damaged(self, error: Exception) -> UserError:
        reason = printable(str(error), 200)
        return UserError(f"{self.file}: cannot be read as Parquet: {reason}; copy or download the file again")

    def rows(self, findings: Findings) -> Iterator[Row]:
        yield from enumerate(self._rows(columns=self.columns), 1)

    def _rows(self, **which: Any) -> Iterator[dict[str, Any]]:
        try:
            with self._open(self.file) as opened:
                for batch in opened.iter_batches(batch_size=_AT_ONCE, **which):
                    yield from batch.to_pylist()
        except self._errors as error:
            raise self._damaged(error) from None

    def class_names(self, outer: str, key: str) -> list[str] | None:
        try:
            features = json.loads(self._about[b"huggingface"])["info"]["features"]
            return _names_below(features[outer] if outer else features, key)
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    def stored(self) -> Iterator[Stored | None]:
        try:
            with self._open(self.file) as parquet:
                about, leaf = parquet.metadata, f"{self.images}.bytes"
        except self._errors as error:
            raise self._damaged(error) from None
        column = next(at for at in range(about.num_columns) if about.schema.column(at).path == leaf)
        with ExitStack() as stack:
            opened = stack.enter_context(reading.opened(self.file))
            whole = stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            target, copy = Path(), None
            names = set[str]()
            for group in range(about.num_row_groups):
                chunk = about.row_group(group).column(column)
                at = chunk.dictionary_page_offset or chunk.data_page_offset
                end = at + chunk.total_compressed_size
                in_place = chunk.compression == "UNCOMPRESSED"
                for number, row in enumerate(self._rows(row_groups=[group], columns=[self.images])):
                    image = row[self.images] or {}
                    if not (content := image.get("bytes")):
                        yield None
                        continue
                    name = (image.get("path") or "").replace("\\", "/").rpartition("/")[2]
                    if not name or name in names:
                        endings = (ending for start, ending in _ENDINGS.items() if content.startswith(start))
                        name = f"{group}-{number:06}{name and '-'}{name or next(endings, '.jpg')}"
                    names.add(name)
                    if len(content) > MOST_BYTES:  # reported, and its bytes are never read
                        yield Stored(path_in(os.fspath(self.file), name), 0, content)
                        continue
                    offset = whole.find(content, at, end) if in_place else -1
                    in_place = offset >= 0
                    if in_place:
                        at = offset + len(content)
                        yield Stored(path_in(os.fspath(self.file), name), offset, content)
                        continue
                    try:
                        if copy is None:
                            target = self._copy()
                            Path(f"{target}{ORIGINAL}").write_bytes(os.fsencode(self.file.absolute()))
                            copy = stack.enter_context(stack.enter_context(beside(target)).open("wb"))
                        offset = copy.tell()
                        copy.write(content)
                    except OSError as error:
                        raise UserError(
                            f"{self.file}: the images are compressed and cannot be copied to {target.parent} "
                            f"({reading.reason(error)}); set RANKLESS_CACHE to a folder with enough space"
                        ) from error
                    # The file name is unique, so dividing the images does not depend on the cache folder.
                    yield Stored(path_in(os.fspath(target), f"{self.file.stem}-{name}"), offset, content)

    def _copy(self) -> Path:
        """Return a path for copies of the images. The path changes if the Parquet file changes."""
        state = self.file.stat()
        key = f"{self.file.absolute()} {state.st_mtime_ns} {state.st_size}".encode(errors="surrogateescape")
        return storage() / f"{COPY}{hashlib.sha256(key).hexdigest()[:16]}"


def _fields(kind: Any) -> dict[str, str]:
    """Return the type of each field of a struct; empty for other types."""
    fields = [kind.field(at) for at in range(kind.num_fields)]
    return {field.name: str(field.type) for field in fields}


def _names_below(feature: Any, key: str) -> list[str] | None:
    """Return the class names of the first feature named ``key``, at any depth."""
    if isinstance(feature, list):
        feature = feature[0] if feature else None
    if not isinstance(feature, dict):
        return None
    if (named := feature.get(key)) is not None:
        while isinstance(named, list) or (isinstance(named, dict) and "feature" in named):  # a sequence
            named = named[0] if isinstance(named, list) else named["feature"]
        if isinstance(named, dict) and named.get("_type") == "ClassLabel":
            return [str(name) for name in named["names"]]
    return next((names for each in feature.values() if (names := _names_below(each, key))), None)
