"""Parquet files: which are data sets of images, what is read of them, and where their images are."""

from __future__ import annotations

import itertools
import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from rankless.data.datasets.annotated import BoxedImages
from rankless.data.datasets.open_split import examine, open_annotations
from rankless.data.formats import parquet, rows
from rankless.data.formats.parquet import ParquetTable
from rankless.data.formats.registry import recognize
from rankless.errors import UserError
from support import label_tools
from support.label_tools import TRUTH, write

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ENCODED = [{"bytes": label_tools.encoded("a"), "path": "a.jpg"}]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def saved(file: Path, metadata: dict[str, Any] | None = None, **columns: Any) -> Path:
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, compression="zstd")
    return file


def embeddings(file: Path) -> None:
    saved(file, id=[1], path=["a"], vector=[[0.5]])


@pytest.mark.parametrize(
    "add",
    [
        lambda root: embeddings(root / "embeddings.parquet"),
        lambda root: [embeddings(root / name / "found.parquet") for name in ("cat", "dog")],
        lambda root: write(root / "metadata.csv", "id,age\n1,2\n"),
        lambda root: write(root / "cat" / "metadata.csv", "id,file\n1,file_name\n"),
    ],
)
def test_tables_about_something_else_leave_class_folders_as_they_are(add, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        label_tools.put(tmp_path / name / "1.jpg", name)
    add(tmp_path)
    assert recognize(str(tmp_path))[0] == "image-folder"


def test_compressed_images_are_of_their_parquet_file(tmp_path: Path) -> None:
    root = tmp_path / "animals"
    label_tools.parquet_old(root, TRUTH)
    shards = sorted(map(str, (root / "data").glob("train-*")))
    first = examine(str(root), "train")
    assert BoxedImages(first).files() == shards
    store = Path(first.path(0).split("//")[0]).parent
    before = {file.name for file in store.glob("images-*")}
    assert len(before) == 2 * len(shards)
    del first
    os.utime(shards[0], (1, 1))  # its copy gets another name, and the old one goes
    assert BoxedImages(examine(str(root), "train")).files() == shards
    after = {file.name for file in store.glob("images-*")}
    assert len(after) == len(before) and len(after & before) == len(before) - 2


def test_an_image_larger_than_any_file_may_be_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (parquet, rows):
        monkeypatch.setattr(page, "MOST_BYTES", 1 << 20)
    bomb = {"bytes": b"\xff\xd8" + bytes(2 << 20), "path": "bomb.jpg"}
    file = saved(tmp_path / "train.parquet", image=pa.array([*ENCODED, bomb], IMAGE), label=["cat", "dog"])
    assert file.stat().st_size < 100_000
    annotations = examine(str(file), "train")
    assert annotations.findings.counts == {"unreadable image": 1}
    assert annotations.sizes.tolist() == [[label_tools.HEIGHT, label_tools.WIDTH], [0, 0]]
    assert Path(annotations.path(0).split("//")[0]).stat().st_size < 100_000


def test_only_columns_that_say_something_are_read(tmp_path: Path) -> None:
    image = pa.array(ENCODED, IMAGE)
    objects = [{"bbox": [[1, 1, 5, 5]], "category": ["cat"]}]
    file = saved(
        tmp_path / "train.parquet", image=image, mask=image, depth=[[0.5]], label=image, objects=objects
    )
    table = ParquetTable(file)
    assert (table.images, table.columns) == ("image", ["objects"])
    assert examine(str(file), "train").class_names == ("cat",)


@pytest.mark.parametrize("wrong", [("text", "a.jpg"), ([1, 2], "a.jpg"), (b"\xff\xd8", 7)])
def test_a_struct_of_other_types_is_no_image(wrong: tuple[Any, Any], tmp_path: Path) -> None:
    image = [{"bytes": wrong[0], "path": wrong[1]}]
    file = saved(tmp_path / "train.parquet", image=image, label=["cat"])
    with pytest.raises(UserError, match=r"no images; expected a column 'file_name', or encoded images"):
        open_annotations(str(file), "train")


def test_values_that_python_cannot_hold_are_named(tmp_path: Path) -> None:
    when = pa.array([2**62], pa.timestamp("ms"))  # raises OverflowError
    file = saved(tmp_path / "train.parquet", image=pa.array(ENCODED, IMAGE), label=when)
    with pytest.raises(UserError, match=r"train.parquet: cannot be read as Parquet: "):
        open_annotations(str(file), "train")


@pytest.mark.parametrize("features", [{"label": []}, [], {"label": {"names": None, "_type": "ClassLabel"}}])
def test_features_without_names_count_as_none(features: Any, tmp_path: Path) -> None:
    image, about = pa.array(ENCODED, IMAGE), {"info": {"features": features}}
    file = saved(tmp_path / "train.parquet", about, image=image, label=["cat"])
    assert examine(str(file), "train").class_names == ("cat",)


def test_more_shards_than_files_may_be_open(tmp_path: Path) -> None:
    for number in range(40):
        saved(tmp_path / f"train-{number:05}.parquet", image=pa.array(ENCODED, IMAGE), label=["cat"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}  # with gaps, which other tests leave
    *_, last = itertools.islice((number for number in itertools.count() if number not in used), 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, hard))
    try:
        assert len(examine(str(tmp_path), "train")) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("stored", [False, True])
def test_an_image_without_a_class_does_not_change_the_classes_of_others(tmp_path: Path, stored: bool) -> None:
    truth = {"a": "x", "b": None, "c": "y", "d": "x"}
    if stored:
        content = [{"bytes": label_tools.encoded(stem), "path": f"{stem}.jpg"} for stem in truth]
        image = pa.array(content, type=IMAGE)
        saved(tmp_path / "data/train-0000.parquet", image=image, label=[*truth.values()])
    else:
        rows = [json.dumps({"file_name": f"{stem}.jpg", "label": label}) for stem, label in truth.items()]
        write(tmp_path / "train/metadata.jsonl", "\n".join(rows))
        for stem in truth:
            label_tools.put(tmp_path / f"train/{stem}.jpg", stem)
    data = examine(str(tmp_path), "train")
    found = [
        (Path(path).stem[-1], data.class_names[label])
        for path, label in zip(data.paths(), data.labels.tolist(), strict=True)
    ]
    assert found == [("a", "x"), ("c", "y"), ("d", "x")] and data.findings.counts == {"no class": 1}
