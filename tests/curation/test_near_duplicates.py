"""Copies, images saved again and images resized are found; different ones are not."""

import io
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rankless.curation import near_duplicates
from rankless.curation.checking import check
from rankless.curation.data_set import join_splits
from rankless.curation.near_duplicates import connected, find_duplicates
from rankless.curation.splitting import split
from rankless.data.datasets.open_split import examine


def scene(seed: int) -> Image.Image:
    """Something like a photograph: soft blobs of color, and a few edges."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    whole = coarse.resize((160, 120), Image.Resampling.BICUBIC)
    for _ in range(4):
        x, y = (int(value) for value in rng.integers(0, 100, 2))
        whole.paste(tuple(int(value) for value in rng.integers(0, 256, 3)), (x, y, x + 20, y + 15))
    return whole


def saved(image: Image.Image, file: Path, **options: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, **options)


@cache
def png(number: int) -> bytes:
    data = io.BytesIO()
    scene(number).save(data, "PNG")
    return data.getvalue()


def folder(root: Path, count: int, again: int) -> Path:
    """``count`` scenes, the first ``again`` of them once more in other forms."""
    for number in range(count):
        file = root / "c" / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    changes = [
        lambda image, file: saved(image, file.with_suffix(".jpg"), quality=60),
        lambda image, file: saved(image.resize((100, 75)), file),
        lambda image, file: saved(image.resize((200, 200)), file.with_suffix(".jpg"), quality=85),
        lambda image, file: saved(image, file.with_suffix(".webp"), quality=60),
    ]
    for number in range(again):
        changes[number % 4](scene(number), root / "c" / f"again-{number:03}.png")
    saved(scene(count), root / "d" / "other.png")
    return root


def stems(whole, groups):
    paths = [Path(path).stem for path in whole.paths()]
    return {frozenset(paths[number] for number in group) for group in groups}


@pytest.mark.slow
def test_what_is_saved_again_or_resized_is_found_and_nothing_else(tmp_path):
    root = folder(tmp_path / "d", 40, 12)
    (root / "c" / "copy.png").write_bytes((root / "c" / "020.png").read_bytes())
    (root / "c" / "broken-1.png").write_bytes(b"not an image")
    (root / "c" / "broken-2.png").write_bytes(b"not an image")
    (root / "c" / "broken-3.png").write_bytes(b"neither")
    whole = examine(str(root), "train")
    assert len(whole) > 40
    every = [examine(str(root), name) for name in ("train", "val")]
    found = find_duplicates(joined := join_splits(every))
    again = {frozenset({f"{number:03}", f"again-{number:03}"}) for number in range(12)}
    same = {frozenset({"020", "copy"}), frozenset({"broken-1", "broken-2"})}
    assert stems(joined, found.groups) == again | same
    assert (found.identical, found.near) == (2, 12)
    only = find_duplicates(joined, near=False)
    assert stems(joined, only.groups) == same
    assert (only.identical, only.near) == (2, 0)


def test_a_small_object_makes_another_image(tmp_path):
    for number in range(8):
        image = scene(0)
        image.paste((255, 255, 255) if number % 2 else (0, 0, 0), (15 * number, 50, 15 * number + 10, 62))
        saved(image, tmp_path / "d" / "c" / f"{number}.png")
    saved(scene(1), tmp_path / "d" / "e" / "1.png")
    assert find_duplicates(examine(str(tmp_path / "d"), "train")).groups == []


@settings(settings.get_profile("files"))
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 60), spread=st.sampled_from([0, 1, 2, 4, 12]))
def test_the_search_misses_no_pair(seed, count, spread):
    """Against all pairs by the definition."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (3, 768))
    near = base[rng.integers(0, 3, count)] + rng.integers(-spread, spread + 1, (count, 768))
    thumbnails = near.clip(0, 255).astype(np.uint8)
    found = connected(count, near_duplicates.near_pairs(thumbnails))
    limit = np.clip(0.1 * thumbnails.std(1), 1, 3)
    wanted = []
    for one in range(count):
        for other in range(one):
            apart = np.abs(thumbnails[one].astype(float) - thumbnails[other])
            if (apart**2).mean() <= min(limit[one], limit[other]) ** 2 and apart.max() <= 12:
                wanted.append((one, other))
    assert found == connected(count, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"stratify": True}, {"group": r"c/(\d\d)\d\.png"}])
def test_a_split_keeps_them_together_and_a_check_finds_no_leak(tmp_path, options):
    root = folder(tmp_path / "d", 60, 24)
    for number in range(30, 50):
        copy = root / "c" / f"copy-{number}.png"
        copy.write_bytes((root / "c" / f"{number:03}.png").read_bytes())
    done = split(str(root), tmp_path / "out", val=0.3, test=0.2, **options)
    assert any(
        "20 images are identical to another image and 24 images are nearly identical to another image: kept"
        in note
        for note in done.notes
    )
    checked = check(str(tmp_path / "out"))
    assert checked.between.counts == {}
    where = {Path(path).stem: name for name, part in done.splits.items() for path in part.paths()}
    assert all(where[f"{number:03}"] == where[f"again-{number:03}"] for number in range(24))
    assert all(where[f"{number:03}"] == where[f"copy-{number}"] for number in range(30, 50))
    if not options:  # their names alone would part them
        done = split(str(root), tmp_path / "parted", val=0.3, test=0.2, near=False)
        where = {Path(path).stem: name for name, part in done.splits.items() for path in part.paths()}
        assert any(where[f"{number:03}"] != where[f"again-{number:03}"] for number in range(24))


def test_images_without_likeness_go_where_their_names_say(tmp_path):
    """What is alike elsewhere moves no other image."""
    folder(tmp_path / "few" / "d", 18, 0)
    folder(tmp_path / "more" / "d", 18, 6)
    made = [
        split(str(tmp_path / name / "d"), tmp_path / name / "out", val=0.4).splits for name in ("few", "more")
    ]
    few, more = (
        {Path(path).name: name for name, part in splits.items() for path in part.paths()} for splits in made
    )
    alone = [f"{number:03}.png" for number in range(6, 18)]
    assert [few[name] for name in alone] == [more[name] for name in alone]


def test_a_share_that_is_missed_is_explained(tmp_path):
    root = folder(tmp_path / "d", 50, 0)
    for seed in range(20):
        done = split(str(root), tmp_path / f"{seed}", val=0.2, seed=seed, near=False, link=True)
        share = len(done.splits["val"]) / 51
        found = [note for note in done.notes if "depends only on its name" in note and "--stratify" in note]
        assert bool(found) == (abs(share - 0.2) >= 1 / 51), (share, done.notes)
        if found:
            assert found[0].startswith(f"'val' has {share:.1%} of the images, not 20.0%: ")
            break
    else:
        pytest.fail("no seed misses")
    exact = split(str(root), tmp_path / "exact", val=0.2, stratify=True)
    assert abs(len(exact.splits["val"]) - 10.2) <= 1
    assert exact.notes == []


def test_a_group_too_large_is_the_reason(tmp_path):
    for number in range(20):
        file = tmp_path / "d" / "c" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(1))
    for number in range(2, 22):
        saved(scene(number), tmp_path / "d" / "e" / f"{number}.png")
    done = split(str(tmp_path / "d"), tmp_path / "out", val=0.2, stratify=True, seed=1)
    found = [note for note in done.notes if "images stay together in groups of up to 20" in note]
    assert bool(found) == (abs(len(done.splits["val"]) - 8) >= 1)
