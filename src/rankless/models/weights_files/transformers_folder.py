"""Read the weights of transformers detectors from model folders."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from rankless.errors import UserError, printable
from rankless.models.detectors.transformers import classes_of, library
from rankless.randomness import GENERATORS
from rankless.recipe.transformers_config import class_names, read_config


def read(folder: Path, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors and the class names in a transformers model folder.

    transformers renames tensors from older versions to the names in the installed version. Only safetensors
    files are read, and no code in the folder is run. Error messages mention ``where``, the option that refers
    to the folder.
    """
    names, keys = class_names(folder, where), read_config(str(folder), where)
    if not any(folder.glob("*.safetensors")):
        others = sorted(one.name for one in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
        found = (
            f"only pickles, which can run arbitrary code ({', '.join(others)})" if others else "no weights"
        )
        raise UserError(f"{where}: {folder} has {found}; expected model.safetensors")
    kind, config = classes_of(keys, len(names), where)
    transformers = library(where)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with GENERATORS:  # while it loads, transformers patches torch for all threads
            network, report = kind.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                dtype=torch.float32,
            )
    except Exception as error:  # transformers raises errors of many types
        said = " ".join(str(error).split())[:300]
        raise UserError(f"{where}: {folder}: transformers cannot load it: {said}") from error
    problems = [
        f"{len(which)} {what} ({printable(str(sorted(which)[0]))}{', …' * (len(which) > 1)})"
        for what, which in (
            ("missing", report["missing_keys"]),
            ("unexpected", report["unexpected_keys"]),
            ("with a different shape", report["mismatched_keys"]),
        )
        if which
    ]
    if problems:
        raise UserError(
            f"{where}: {folder}: the weights do not match config.json: {', '.join(problems)}; use another "
            "copy of the folder"
        )
    return network.state_dict(), names
