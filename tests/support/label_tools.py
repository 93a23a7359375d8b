"""Exports as labeling tools and hubs write them, with their odd details; each function writes one layout."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from rankless.curation.converting import convert
from rankless.data.datasets.open_split import examine
from rankless.data.index.annotations import Annotations

WIDTH, HEIGHT = 64, 48
Boxes = list[tuple[str, tuple[int, int, int, int]]]
Truth = Mapping[str, Mapping[str, Boxes]]
"""For each split, the class and xyxy box of the objects of each image, by the stem of its name."""

NAMES = ("dog", "cat")  # not sorted, as the user of a tool created them
TRUTH: Truth = {
    "train": {
        "street one": [("dog", (2, 3, 22, 13)), ("cat", (30, 5, 40, 35))],
        "yard": [("cat", (0, 0, 60, 40))],
        "empty": [],
    },
    "valid": {
        "park": [("cat", (8, 8, 24, 40)), ("dog", (32, 16, 64, 48))],
        "lawn": [("dog", (4, 4, 12, 12))],
    },
}


def put(path: Path, stem: str) -> None:
    """An image of its own for each stem."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(stem))


def encoded(stem: str) -> bytes:
    rng = np.random.default_rng(sum(stem.encode()))
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (HEIGHT, WIDTH, 3), dtype=np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


def objects(annotations: Annotations) -> dict[str, list[tuple[str, tuple[float, ...]]]]:
    """Class and box of every object, by the name of the image's file."""
    return {
        Path(path).name: [
            (annotations.class_names[label], tuple(map(float, box)))
            for box, label, *_ in annotations.objects(index)
        ]
        for index, path in enumerate(annotations.paths())
    }


def converted(root: Path, split: str = "train") -> dict[str, list[tuple[str, tuple[float, ...]]]]:
    """Class and box of every object after `data convert --to coco`, bit for bit."""
    out = root.with_name(f"{root.name}-coco")
    assert not convert(str(root), "coco", out).differences
    return objects(examine(str(out), split))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def yolo(boxes: Boxes, names: tuple[str, ...], digits: str = ".6f") -> str:
    rows = (
        (names.index(name), (a + c) / 2 / WIDTH, (b + d) / 2 / HEIGHT, (c - a) / WIDTH, (d - b) / HEIGHT)
        for name, (a, b, c, d) in boxes
    )
    return "".join(f"{row[0]} {' '.join(format(value, digits) for value in row[1:])}\n" for row in rows)


def coco(
    images: Mapping[str, Boxes],
    ids: Mapping[str, int],
    categories: list[dict[str, Any]],
    *,
    first: int = 1,
    name: Callable[[str], str] = "{}.jpg".format,
) -> dict[str, Any]:
    annotations = [
        {"image_id": number, "category_id": ids[label], "bbox": [a, b, c - a, d - b], "iscrowd": 0}
        | {"area": (c - a) * (d - b), "segmentation": []}
        for number, boxes in enumerate(images.values(), first)
        for label, (a, b, c, d) in boxes
    ]
    return {
        "info": {"year": 2025},
        "licenses": [{"id": 0, "name": "", "url": ""}],
        "categories": categories,
        "images": [
            {"id": number, "file_name": name(stem), "width": WIDTH, "height": HEIGHT}
            for number, stem in enumerate(images, first)
        ],
        "annotations": [{"id": number, **each} for number, each in enumerate(annotations, first)],
    }


def voc(stem: str, boxes: Boxes, head: str, first: int) -> str:
    objects = "".join(
        f"<object><name>{name}</name><truncated>0</truncated><difficult>0</difficult><bndbox>"
        f"<xmin>{a + first}</xmin><ymin>{b + first}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for name, (a, b, c, d) in boxes
    )
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth></depth></size>"
    head = f"<filename>{stem}.jpg</filename>{head}"
    return f"<annotation>{head}{size}<segmented>0</segmented>{objects}</annotation>"


# CVAT: a task without a subset is 'default'; the subsets that it offers are 'Train', 'Validation' and 'Test'.

_CVAT = {"train": "Train", "valid": "Validation"}
_UNKNOWN = "".join(f"<{name}>Unknown</{name}>" for name in ("database", "annotation", "image"))


def _subsets(truth: Truth, alone: str) -> dict[str, Mapping[str, Boxes]]:
    return {_CVAT[split] if len(truth) > 1 else alone: images for split, images in truth.items()}


def cvat_coco(root: Path, truth: Truth) -> None:
    categories = [{"id": at, "name": name, "supercategory": ""} for at, name in enumerate(NAMES, 1)]
    for subset, images in _subsets(truth, "default").items():
        made = coco(images, {name: at for at, name in enumerate(NAMES, 1)}, categories)
        for each in made["annotations"]:
            each["attributes"] = {"occluded": False, "rotation": 0.0}
        write(root / "annotations" / f"instances_{subset}.json", json.dumps(made))
        for stem in images:
            put(root / "images" / subset / f"{stem}.jpg", stem)


def cvat_voc(root: Path, truth: Truth) -> None:
    colors = "background:0,0,0::\ncat:1,0,0::\ndog:0,1,0::\n"
    write(root / "labelmap.txt", f"# label:color_rgb:parts:actions\n{colors}")
    for subset, images in _subsets(truth, "default").items():
        write(root / "ImageSets/Main" / f"{subset}.txt", "".join(f"{stem}\n" for stem in images))
        for stem, boxes in images.items():
            put(root / "JPEGImages" / f"{stem}.jpg", stem)
            head = f"<folder></folder><source>{_UNKNOWN}</source>"
            write(root / "Annotations" / f"{stem}.xml", voc(stem, boxes, head, 0))


def cvat_images(root: Path, truth: Truth) -> None:
    colors = "".join(f"<label><name>{name}</name><type>any</type></label>" for name in NAMES)
    images = ""
    for subset, found in _subsets(truth, "").items():
        for number, (stem, boxes) in enumerate(found.items(), len(images)):
            put(root / "images" / subset / f"{stem}.jpg", stem)
            about = f'name="{stem}.jpg" width="{WIDTH}" height="{HEIGHT}"'
            about += f' subset="{subset}"' if subset else ""
            images += f'<image id="{number}" {about}>'
            for name, (a, b, c, d) in boxes:
                images += f'<box label="{name}" source="manual" occluded="0" xtl="{a}.00" ytl="{b}.00" '
                images += f'xbr="{c}.00" ybr="{d}.00" z_order="0"></box>'
            images += "</image>"
    meta = f"<meta><project><labels>{colors}</labels></project></meta>"
    write(root / "annotations.xml", f"<annotations><version>1.1</version>{meta}{images}</annotations>")


def cvat_yolo(root: Path, truth: Truth) -> None:
    data = [f"classes = {len(NAMES)}"]
    for subset, images in _subsets(truth, "train").items():
        folder = f"obj_{subset}_data"
        for stem, boxes in images.items():
            put(root / folder / f"{stem}.jpg", stem)
            write(root / folder / f"{stem}.txt", yolo(boxes, NAMES))
        write(root / f"{subset}.txt", "".join(f"data/{folder}/{stem}.jpg\n" for stem in images))
        data.append(f"{subset} = data/{subset}.txt")
    write(root / "obj.names", "".join(f"{name}\n" for name in NAMES))
    write(root / "obj.data", "\n".join([*data, "names = data/obj.names", "backup = backup/"]) + "\n")


def cvat_ultralytics(root: Path, truth: Truth) -> None:
    data: dict[str, Any] = {"names": dict(enumerate(NAMES)), "path": "."}
    for subset, images in _subsets(truth, "train").items():
        for stem, boxes in images.items():
            put(root / "images" / subset / f"{stem}.jpg", stem)
            if boxes:  # no label file for an image without boxes
                write(root / "labels" / subset / f"{stem}.txt", yolo(boxes, NAMES))
        write(root / f"{subset}.txt", "".join(f"data/images/{subset}/{stem}.jpg\n" for stem in images))
        data[subset] = f"{subset}.txt"
    write(root / "data.yaml", yaml.dump(data))


# Label Studio: no splits; classes are sorted and count from 0, images too; uploaded files have a prefix.

_SORTED = tuple(sorted(NAMES))
_UPLOADED = "0a1b2c3d-{}"


def _everything(truth: Truth) -> dict[str, Boxes]:
    return {stem: boxes for images in truth.values() for stem, boxes in images.items()}


def label_studio_coco(root: Path, truth: Truth) -> None:
    images = {_UPLOADED.format(stem.replace(" ", "_")): boxes for stem, boxes in _everything(truth).items()}
    categories = [{"id": at, "name": name} for at, name in enumerate(_SORTED)]
    ids = {name: at for at, name in enumerate(_SORTED)}
    made = coco(images, ids, categories, first=0, name="images/{}.jpg".format)
    for each in made["annotations"]:
        each["ignore"] = 0
    for stem in images:
        put(root / "images" / f"{stem}.jpg", stem)
    del made["licenses"]
    write(root / "result.json", json.dumps(made, indent=2))


def label_studio_yolo(root: Path, truth: Truth) -> None:
    for stem, boxes in _everything(truth).items():
        name = _UPLOADED.format(stem.replace(" ", "_"))
        put(root / "images" / f"{name}.jpg", stem)
        write(root / "labels" / f"{name}.txt", yolo(boxes, _SORTED, ""))
    categories = [{"id": at, "name": name} for at, name in enumerate(_SORTED)]
    info = {"year": 2025, "version": "1.0", "contributor": "Label Studio"}
    write(root / "notes.json", json.dumps({"categories": categories, "info": info}, indent=2))
    write(root / "classes.txt", "".join(f"{name}\n" for name in _SORTED))


def label_studio_voc(root: Path, truth: Truth) -> None:
    for stem, boxes in _everything(truth).items():
        name = _UPLOADED.format(stem.replace(" ", "_"))
        put(root / "images" / f"{name}.jpg", stem)
        head = "<source><database>MyDatabase</database></source><owner><name>Label Studio</name></owner>"
        if boxes:  # no file for an image without boxes
            write(root / "Annotations" / f"{name}.xml", voc(name, boxes, head, 0))


def _ls_value(name: str, box: tuple[int, int, int, int]) -> dict[str, Any]:
    a, b, c, d = box
    sides = {"x": a, "width": c - a}, {"y": b, "height": d - b}
    value = {key: each / WIDTH * 100 for key, each in sides[0].items()}
    value |= {key: each / HEIGHT * 100 for key, each in sides[1].items()}
    return value | {"rotation": 0, "rectanglelabels": [name]}


def label_studio_json(root: Path, truth: Truth) -> None:
    tasks = []
    size = {"original_width": WIDTH, "original_height": HEIGHT, "image_rotation": 0}
    for number, (stem, boxes) in enumerate(_everything(truth).items(), 1):
        name = _UPLOADED.format(stem.replace(" ", "_"))
        put(root / "images" / f"{name}.jpg", stem)
        about = {"type": "rectanglelabels", "from_name": "label", "to_name": "image", "origin": "manual"}
        result = [{"id": f"r{at}", **size, **about, "value": _ls_value(*box)} for at, box in enumerate(boxes)]
        done = {"id": number, "was_cancelled": False, "ground_truth": False, "result": result}
        data = {"image": f"/data/upload/1/{name}.jpg"}
        tasks.append({"id": number, "annotations": [done], "predictions": [], "data": data})
    write(root / "project-1-at-2025-01-01-00-00-abcdef.json", json.dumps(tasks))


def label_studio_min(root: Path, truth: Truth) -> None:
    tasks = []
    for number, (stem, boxes) in enumerate(_everything(truth).items(), 1):
        name = _UPLOADED.format(stem.replace(" ", "_"))
        put(root / "images" / f"{name}.jpg", stem)
        label = [{**_ls_value(*box), "original_width": WIDTH, "original_height": HEIGHT} for box in boxes]
        about = {"annotator": 1, "annotation_id": number, "created_at": "2025-01-01", "lead_time": 1.5}
        found = {"label": label} if label else {}
        tasks.append({"image": f"/data/upload/1/{name}.jpg", "id": number, **found, **about})
    write(root / "project-1-at-2025-01-01-00-00-abcdef.json", json.dumps(tasks))


# Roboflow: 'train', 'valid', 'test'; names end in a hash; category 0 of COCO groups the others.


def _rf(stem: str) -> str:
    return f"{stem.replace(' ', '-')}_jpg.rf.{sum(stem.encode()):032x}"


def _readme(root: Path) -> None:
    for name in ("README.dataset.txt", "README.roboflow.txt"):
        write(root / name, "# animals > 2025-11-25\n")


def roboflow_coco(root: Path, truth: Truth) -> None:
    _readme(root)
    categories = [{"id": 0, "name": "animals", "supercategory": "none"}]
    categories += [{"id": at, "name": name, "supercategory": "animals"} for at, name in enumerate(_SORTED, 1)]
    for split, images in truth.items():
        ids = {name: at for at, name in enumerate(_SORTED, 1)}
        made = coco(images, ids, categories, first=0, name=lambda stem: f"{_rf(stem)}.jpg")
        write(root / split / "_annotations.coco.json", json.dumps(made))
        for stem in images:
            put(root / split / f"{_rf(stem)}.jpg", stem)


def roboflow_yolo(root: Path, truth: Truth) -> None:
    _readme(root)
    data: dict[str, Any] = {"train": "../train/images", "val": "../valid/images", "test": "../test/images"}
    data |= {"nc": len(_SORTED), "names": list(_SORTED)}
    data["roboflow"] = {"workspace": "w", "version": 1}
    write(root / "data.yaml", yaml.safe_dump(data, sort_keys=False))
    for split, images in truth.items():
        for stem, boxes in images.items():
            put(root / split / "images" / f"{_rf(stem)}.jpg", stem)
            write(root / split / "labels" / f"{_rf(stem)}.txt", yolo(boxes, _SORTED, ""))


def roboflow_voc(root: Path, truth: Truth) -> None:
    _readme(root)
    for split, images in truth.items():
        for stem, boxes in images.items():
            put(root / split / f"{_rf(stem)}.jpg", stem)
            head = "<source><database>roboflow.com</database></source>"
            write(root / split / f"{_rf(stem)}.xml", voc(_rf(stem), boxes, head, 1))


def roboflow_csv(root: Path, truth: Truth) -> None:
    _readme(root)
    for split, images in truth.items():
        rows = [("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax")]
        for stem, boxes in images.items():
            put(root / split / f"{_rf(stem)}.jpg", stem)
            rows += [(f"{_rf(stem)}.jpg", WIDTH, HEIGHT, name, *box) for name, box in boxes]
        with (root / split / "_annotations.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)


def roboflow_darknet(root: Path, truth: Truth) -> None:
    _readme(root)
    for split, images in truth.items():
        write(root / split / "_darknet.labels", "".join(f"{name}\n" for name in _SORTED))
        for stem, boxes in images.items():
            put(root / split / f"{_rf(stem)}.jpg", stem)
            write(root / split / f"{_rf(stem)}.txt", yolo(boxes, _SORTED, ""))


def roboflow_keras(root: Path, truth: Truth) -> None:
    _readme(root)
    for split, images in truth.items():
        write(root / split / "_classes.txt", "".join(f"{name}\n" for name in _SORTED))
        rows = []
        for stem, boxes in images.items():
            put(root / split / f"{_rf(stem)}.jpg", stem)
            rows.append(f"{_rf(stem)}.jpg")
            rows[-1] += "".join(f" {','.join(map(str, box))},{_SORTED.index(name)}" for name, box in boxes)
        write(root / split / "_annotations.txt", "".join(f"{row}\n" for row in rows))


def roboflow_createml(root: Path, truth: Truth) -> None:
    _readme(root)
    for split, images in truth.items():
        made = []
        for stem, boxes in images.items():
            put(root / split / f"{_rf(stem)}.jpg", stem)
            centers = [(name, (a + c) / 2, (b + d) / 2, c - a, d - b) for name, (a, b, c, d) in boxes]
            keys = ("x", "y", "width", "height")
            found = [
                {"label": name, "coordinates": dict(zip(keys, box, strict=True))} for name, *box in centers
            ]
            made.append({"image": f"{_rf(stem)}.jpg", "annotations": found})
        write(root / split / "_annotations.createml.json", json.dumps(made))


# labelme and VIA: a file per image, or one in the folder of each split.


def labelme(root: Path, truth: Truth) -> None:
    for split, images in truth.items():
        for stem, boxes in images.items():
            put(root / split / f"{stem}.jpg", stem)
            shapes = [
                {"label": name, "points": [[c, d], [a, b]], "group_id": None, "shape_type": "rectangle"}
                for name, (a, b, c, d) in boxes
            ]
            made = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": f"{stem}.jpg"}
            made |= {"imageData": None, "imageHeight": HEIGHT, "imageWidth": WIDTH}
            if boxes:  # an image without shapes is not saved
                write(root / split / f"{stem}.json", json.dumps(made))


def via(root: Path, truth: Truth) -> None:
    for split, images in truth.items():
        made = {}
        for stem, boxes in images.items():
            put(root / split / f"{stem}.jpg", stem)
            regions = [
                {
                    "shape_attributes": {"name": "rect", "x": a, "y": b, "width": c - a, "height": d - b},
                    "region_attributes": {"animal": name},
                }
                for name, (a, b, c, d) in boxes
            ]
            made[f"{stem}.jpg99"] = {"filename": f"{stem}.jpg", "size": 99, "regions": regions}
            made[f"{stem}.jpg99"]["file_attributes"] = {}
        write(root / split / "via_region_data.json", json.dumps(made))


# FiftyOne: a split is a folder that is exported by itself, or a tag of its own format.


def fiftyone_coco(root: Path, truth: Truth) -> None:
    categories = [{"id": at, "name": name, "supercategory": None} for at, name in enumerate(_SORTED, 1)]
    for split, images in truth.items():
        folder = root / split if len(truth) > 1 else root
        made = coco(images, {name: at for at, name in enumerate(_SORTED, 1)}, categories)
        write(folder / "labels.json", json.dumps(made))
        for stem in images:
            put(folder / "data" / f"{stem}.jpg", stem)


def fiftyone_yolo(root: Path, truth: Truth) -> None:
    data: dict[str, Any] = {"names": dict(enumerate(NAMES)), "path": "/home/someone/export"}
    for split, images in truth.items():
        name = split.removesuffix("id")
        data[name] = f"./images/{name}/"
        for stem, boxes in images.items():
            put(root / "images" / name / f"{stem}.jpg", stem)
            write(root / "labels" / name / f"{stem}.txt", yolo(boxes, NAMES, "f"))
    write(root / "dataset.yaml", yaml.dump(data, default_flow_style=False))


def fiftyone(root: Path, truth: Truth) -> None:
    samples = []
    for split, images in truth.items():
        for stem, boxes in images.items():
            put(root / "data" / f"{stem}.jpg", stem)
            found = [
                {"_id": {"$oid": f"{at:024x}"}, "_cls": "Detection", "label": name, "tags": []}
                | {
                    "attributes": {},
                    "bounding_box": [a / WIDTH, b / HEIGHT, (c - a) / WIDTH, (d - b) / HEIGHT],
                }
                for at, (name, (a, b, c, d)) in enumerate(boxes)
            ]
            guess = {"_cls": "Detections", "detections": [{"label": "fish", "bounding_box": [0, 0, 1, 1]}]}
            samples.append(
                {"_id": {"$oid": f"{len(samples):024x}"}, "filepath": f"data/{stem}.jpg", "tags": [split]}
                | {"metadata": {"_cls": "ImageMetadata", "width": WIDTH, "height": HEIGHT}}
                | {"ground_truth": {"_cls": "Detections", "detections": found}, "predictions": guess}
            )
    write(root / "samples.json", json.dumps({"samples": samples}))
    write(root / "metadata.json", json.dumps({"name": "animals", "media_type": "image"}))


# Hugging Face: rows beside the images, or Parquet with the images inside.


def _objects(boxes: Boxes, names: tuple[str, ...] | None = None) -> dict[str, list[Any]]:
    return {
        "bbox": [[float(a), float(b), float(c - a), float(d - b)] for _, (a, b, c, d) in boxes],
        "category": [names.index(name) if names else name for name, _ in boxes],
        "area": [(c - a) * (d - b) for _, (a, b, c, d) in boxes],
    }


def _listed(objects: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(objects, each, strict=True)) for each in zip(*objects.values(), strict=True)]


def hugging_face(root: Path, truth: Truth, *, numbers: bool = False, as_list: bool = False) -> None:
    for split, images in truth.items():
        lines = []
        for stem, boxes in images.items():
            put(root / split / f"{stem}.jpg", stem)
            objects: Any = _objects(boxes, NAMES if numbers else None)
            lines.append(
                json.dumps({"file_name": f"{stem}.jpg", "objects": _listed(objects) if as_list else objects})
            )
        write(root / split / "metadata.jsonl", "".join(f"{line}\n" for line in lines))
    if numbers:
        write(root / "classes.txt", "".join(f"{name}\n" for name in NAMES))


def hugging_face_list(root: Path, truth: Truth) -> None:
    hugging_face(root, truth, as_list=True)


def hugging_face_numbers(root: Path, truth: Truth) -> None:
    hugging_face(root, truth, numbers=True)


def _feature(dtype: str) -> dict[str, str]:
    return {"dtype": dtype, "_type": "Value"}


def parquet(root: Path, truth: Truth, *, compression: str = "none", old: bool = False) -> None:
    """As ``datasets`` writes it; ``old`` as before version 4: a Sequence of dicts, and compressed images."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    label = {"names": list(NAMES), "_type": "ClassLabel"}
    box = {"feature": _feature("float32"), "length": 4, "_type": "Sequence" if old else "List"}
    each = {"bbox": box, "category": label, "area": _feature("int64")}
    objects: Any = {name: {"feature": kind, "_type": "List"} for name, kind in each.items()}
    if old:
        objects = {"feature": each, "_type": "Sequence"}
    features = {"image_id": _feature("int64"), "image": {"_type": "Image"}, "objects": objects}
    info = json.dumps({"info": {"features": features}})
    number_, numbers = pa.int64(), pa.list_(pa.int64())
    boxes_ = pa.list_(pa.list_(pa.float32(), 4))
    columns = {
        "image_id": number_,
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "objects": pa.struct([("bbox", boxes_), ("category", numbers), ("area", numbers)]),
    }
    schema = pa.schema(list(columns.items()), metadata={"huggingface": info})
    for split, images in truth.items():
        name = "validation" if split == "valid" else split
        for number, (stem, boxes) in enumerate(images.items()):  # a shard per image
            image = {"bytes": encoded(stem), "path": f"{stem}.jpg"}
            row = {"image_id": [number], "image": [image], "objects": [_objects(boxes, NAMES)]}
            file = root / "data" / f"{name}-{number:05}-of-{len(images):05}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            table = pa.table(row, schema=schema)
            pq.write_table(table, file, compression=compression, use_dictionary=False)


def parquet_old(root: Path, truth: Truth) -> None:
    parquet(root, truth, compression="snappy", old=True)
