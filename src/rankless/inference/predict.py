"""Predict with a run or a weights file, and write annotated images and videos, and their results.

Images are preprocessed as in evaluation, and the result for an image never depends on other images. Boxes are
in pixels of the image after its EXIF rotation. Only the best class of a box is reported, whereas evaluations
may count several classes of a box, unless the overrides set ``evaluate.multi_label``.

The result for each image is recorded immediately (:mod:`rankless.inference.prediction_journal`), so memory
does not grow with the number of images, and a stopped prediction can be resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from rankless.arguments import Text, classes_of, several
from rankless.errors import UserError
from rankless.files.numbered import numbered_folder, removed_on_error
from rankless.hardware.computing import float32_like
from rankless.inference import saving, video
from rankless.inference.finder import PredictOptions
from rankless.inference.formats import kinds_named
from rankless.inference.model_loading import open_finders
from rankless.inference.recording import Recording
from rankless.inference.report import PredictionReport
from rankless.inference.sources import find, is_video

_FOLDER = Path("predictions")


def predict(
    target: Text,
    sources: Text | Sequence[Text],
    *,
    out: Text | None = None,
    confidence: float | None = None,
    classes: str | Sequence[str | int] = (),
    device: str | None = None,
    batch: int | None = None,
    overrides: str | Sequence[str] = (),
    save: str | Sequence[str] = saving.DEFAULT,
    force: bool = False,
    resume: bool = False,
    task: type | str | None = None,
    progress: bool = False,
) -> PredictionReport:
    """Detect objects in images and videos, classify the images, or predict with a custom task.

    Args:
        target: a run directory (its best weights are used) or a weights file.
        sources: one or more images, folders (including subfolders), glob patterns, built-in scenes such as
            ``digits:val:0-7``, video files, cameras such as ``webcam:0``, or streams such as ``rtsp://…``.
        out: a new or empty folder for the results. By default, a new folder ``predictions``,
            ``predictions-2`` … is created.
        confidence: minimum score, 0..1. The default is 0.25 for detections, and 0 for a classifier, which
            reports its best five classes.
        classes: names or ids of the classes to detect. By default, all classes are detected.
        device: a torch device, or several such as ``cuda:0,cuda:1``. By default, all GPUs are used, or the
            CPU if there are none.
        batch: batch size. The default is 16 on a GPU, where the batch size may change the last digits of a
            score. On a CPU, where it does not affect the results, the default is 1, or 4 for Darknet's
            networks without live sources.
        overrides: changes to the recipe of the weights, ``key=value``, such as ``evaluate.iou=0.5``.
        save: kinds of results to write, from :data:`rankless.inference.formats.KINDS`.
        force: allow an ``out`` that is not empty. Results of an earlier call are replaced or removed. Other
            files are kept unless a result has the same name (see :mod:`rankless.files.outputs`).
        resume: continue the stopped prediction in ``out``. All other arguments must be unchanged.
        task: your own task, as in :func:`rankless.train`. For safety, a task that is named only in the recipe
            of the weights is not run.
        progress: show the progress on standard error.

    Returns:
        A report, which also lists the images that could not be read. If no image can be read, nothing is
        written.

    Raises:
        UserError: there are no weights, a source has no images, the output folder cannot be used, or files in
            it must not be replaced. The error lists all problems, and nothing is changed.

    Examples:
        >>> report = rankless.predict("runs/digits", ["digits:val:1000-1003"], out="found")
        >>> [len(image.detections) for image in report.images]
    """
    asked = PredictOptions(confidence, classes_of(classes), device, tuple(several(overrides)), task, batch)
    kinds, out = kinds_named(several(save)), None if out is None else Path(out)
    if resume and out is None:
        raise UserError("--resume needs the folder of the stopped prediction; add --out FOLDER")
    if resume and force:
        raise UserError("--resume and --force cannot be combined; remove one of them")
    found: list[str] = []

    def find_sources() -> None:
        found.extend(find(several(sources)))
        video.refuse_without_av([name for name in found if is_video(name)])

    opened = open_finders(Path(target), asked, find_sources)
    finder = opened.finders[0]
    saving.refuse_unfit(kinds, finder)
    for each in opened.finders:
        each.heat = "heatmaps" in kinds
    with float32_like(opened.recipe.precision), ExitStack() as stack:
        folder = out or numbered_folder(_FOLDER, "--out")
        if out is None:
            stack.enter_context(removed_on_error(folder))
        recording = Recording(opened, found, folder, kinds, force=force, resume=resume)
        state = opened.path.stat()
        report = recording.run(
            {
                "images": hashlib.sha256("\n".join(found).encode("utf-8", "surrogateescape")).hexdigest(),
                "weights": [str(opened.path.resolve()), state.st_size, state.st_mtime_ns],
                "options": [confidence, several(asked.classes), sorted(asked.overrides), opened.batch],
                "outputs": sorted(kinds),
            },
            progress=progress,
        )
        if out is None:
            with suppress(OSError):  # remove the folder if it is empty
                folder.rmdir()
        return report
