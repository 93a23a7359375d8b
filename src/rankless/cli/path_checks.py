"""Checks for missing files and folders before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rankless.data.datasets.torchvision_sets import located
from rankless.data.path_checks import missing_data
from rankless.errors import UserError
from rankless.recipe.familiar import PUBLISHED, is_by_name
from rankless.recipe.schema import BUILT_IN_TASKS, Recipe
from rankless.recipe.transformers_config import folder_of
from rankless.runs.directory import weights_of
from rankless.runs.trained_weights import trained_weights_of


def check_target(target: Path, sources: Sequence[str] = ()) -> None:
    """Check that ``target`` has weights and that each source exists."""
    problems = [
        f"'{source}': no such file or folder{_of_cameras(source)}"
        for source in sources
        if _is_missing(source)
    ]
    problems += _problems_of_weights(target)
    if problems:
        raise UserError(problems)


def check_recipe(recipe: Recipe, *, begins: bool) -> None:
    """Check that the paths in a recipe exist.

    Args:
        recipe: a recipe with paths on this machine.
        begins: whether the run is new; a resumed run does not need ``model.pretrained``.
    """
    problems: list[str] = []
    if recipe.task in BUILT_IN_TASKS and recipe.data.root != "digits":
        try:
            given_root, root = recipe.data.root, located(recipe.data).root
            if given_root.startswith("path/to/") and missing_data(given_root):  # a placeholder
                problems.append("data.root is not given: expected a folder or a file; add data.root=FOLDER")
            else:
                problems += [
                    f"data.root is '{root}': {one.removeprefix(f'{root}: ')}" for one in missing_data(root)
                ]
        except UserError as error:
            problems += error.problems
    pretrained = recipe.model.pretrained
    if begins and not is_by_name(pretrained) and folder_of(pretrained) is None:
        given = _problems_of_weights(Path(pretrained), trained_weights_of)
        problems += [
            f"model.pretrained is '{pretrained}': {one.removeprefix(f'{pretrained}: ')}"
            f"{'' if Path(pretrained).suffix or Path(pretrained).exists() else f'; {PUBLISHED}'}"
            for one in given
        ]
    if problems:
        raise UserError(problems)


def _of_cameras(source: str) -> str:
    if not source.isdigit() and not source.startswith("/dev/video"):
        return ""
    there = ", ".join(sorted(map(str, Path("/dev").glob("video*")))) or "none"
    return f"; a camera is webcam:0 or /dev/video0; cameras here: {there}"


def _is_missing(source: str) -> bool:
    is_named = source.startswith(("digits:", "webcam:")) or "://" in source
    return not (os.path.lexists(source) or glob.has_magic(source) or is_named)


def _problems_of_weights(target: Path, find: Callable[..., Path] = weights_of) -> Iterator[str]:
    try:
        find(target, warn=lambda _: None)
    except UserError as error:
        yield from error.problems
