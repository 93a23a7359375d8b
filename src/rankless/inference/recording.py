"""Write the results of a prediction to a folder: draw and record each image, then write all formats."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from PIL import Image

from rankless.data.images.fonts import unwritable
from rankless.errors import UserError, counted, listed, shell_word
from rankless.files.outputs import Outputs, refuse_filled, unusable
from rankless.inference import saving, video
from rankless.inference.formats import best_of
from rankless.inference.inputs import file_source
from rankless.inference.model_loading import Opened
from rankless.inference.pipeline import Outcome, Source, ordered, outcomes, reading, threads
from rankless.inference.prediction_journal import Journal, refuse_nothing_to_resume, refuse_unfinished
from rankless.inference.report import ImageReports, PredictionReport
from rankless.inference.saving import Rendering
from rankless.inference.sources import is_live, is_video, output_names, public
from rankless.printing import ProgressBar, say


class Recording:
    """A prediction whose results are written to a folder."""

    def __init__(
        self,
        opened: Opened,
        sources: Sequence[str],
        out: Path,
        kinds: frozenset[str],
        *,
        force: bool,
        resume: bool,
    ) -> None:
        self.opened, self.sources, self.out, self.kinds = opened, sources, out, kinds
        self.resume, self._is_new = resume, not out.exists()
        self._names = output_names(sources, out, saving.taken_stems(kinds))
        drawn = self._names if "annotated" in kinds else []
        files = [out / name for name in [*drawn, *saving.single_files(kinds)] or ["predictions.json"]]
        if reason := unusable(out):
            raise UserError(f"--out {out}: cannot be used as the output folder: {reason}; use another folder")
        # A new folder has no files to protect.
        self.outputs = Outputs(files[:1] if self._is_new else files, verb="predict", force=force)
        self.outputs.refuse_inputs([*sources, opened.path])
        if resume:
            refuse_nothing_to_resume(out)
        elif not force:
            refuse_unfinished(out)
            refuse_filled(out)
        self._video: tuple[Source, ExitStack, video.Writer | None] | None = None
        self._best, self._seen, self._computed = 0.0, set[str](), 0

    def run(self, asked: Mapping[str, Any], *, progress: bool) -> PredictionReport:
        """Predict on all sources. ``asked`` contains the options that must be the same when resuming."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"--out {self.out}: cannot be created ({error.strerror or error}); use another folder"
            ) from None
        journal = Journal(self.out, asked, resume=self.resume)
        try:
            seconds = self._predict_all(journal, progress=progress)
        except BaseException as error:
            self._discard_video()
            if not len(journal):
                self._clean_up(journal)
            elif progress and isinstance(error, KeyboardInterrupt):
                done = counted(len(journal), "image")
                say(
                    f"stopped after {done}; to continue, repeat the command with "
                    f"--out {shell_word(self.out)} --resume",
                    file=sys.stderr,
                )
            raise
        report = PredictionReport(self.out, self.opened.path, self.opened.recipe.precision)
        report.images, report.failed = ImageReports(journal, self.out), journal.failed
        report.best, report.seconds, report.computed = self._best, seconds, self._computed
        if journal.failed and not len(journal):
            self._clean_up(journal)
            return report
        class_names = self.opened.finders[0].class_names
        model = str(self.opened.path)
        notes = saving.write_formats(journal, self.out, self.kinds, class_names, self.outputs, model)
        if self.resume:  # files from before the interruption belong to this prediction
            self.outputs.keep(self.out / name for name in journal.files())
        report.removed.extend(saving.remove_others(self.outputs, self.out))
        report.notes.extend([*notes, *self._notes()])
        if "crops" in self.kinds and not (self.out / "crops").is_dir():
            report.notes.append("no objects were found, so there are no crops")
        journal.remove()
        return report

    def _clean_up(self, journal: Journal) -> None:
        """Remove the journal of a prediction without results, and the folder if it is new."""
        journal.remove()
        if self._is_new:
            with suppress(OSError):
                self.out.rmdir()

    def _predict_all(self, journal: Journal, *, progress: bool) -> float:
        """Predict on the remaining images, and return the time taken in seconds."""
        left = [number for number, source in enumerate(self.sources) if public(source) not in journal.done]
        finder = self.opened.finders[0]

        def render(one: Outcome) -> Rendering:
            return saving.render(one, finder, self.kinds, self._names[one.source.position])

        began = time.monotonic()
        with threads() as pool, self._bar(left, journal, progress=progress) as bar:
            is_live_now = any(is_live(self.sources[position]) for position in left)
            batch = self.opened.batch if is_live_now else self.opened.patient_batch
            found = outcomes(self.opened, self._sources(left), pool, batch)
            try:
                for one in ordered(pool, render, found, reading() + 1):
                    self._record(one, journal)
                    if bar is not None:
                        bar.advance()
            except KeyboardInterrupt:
                # Ctrl-C is the usual way to stop a camera.
                if self._video is None or not is_live(self.sources[self._video[0].position]):
                    raise
        self._end_video(journal)
        return time.monotonic() - began

    def _bar(
        self, left: Sequence[int], journal: Journal, *, progress: bool
    ) -> ProgressBar | nullcontext[None]:
        if not progress:
            return nullcontext()
        if any(is_live(self.sources[position]) for position in left):
            say(
                "predicting until the stream ends; press Ctrl-C to stop and write the results",
                file=sys.stderr,
            )
            return nullcontext()
        videos = [self.sources[position] for position in left if is_video(self.sources[position])]
        total = len(left) - len(videos) + sum(video.length_and_rate(name)[0] for name in videos)
        return ProgressBar(len(journal) + total, "predicting", done=len(journal))

    def _sources(self, positions: Sequence[int]) -> Iterator[Source]:
        for position in positions:
            name = self.sources[position]
            for source in video.sources(name) if is_video(name) else (file_source(name),):
                yield source._replace(position=position)

    def _record(self, one: Rendering, journal: Journal) -> None:
        source = one.outcome.source
        if self._video is not None and self._video[0].position != source.position:
            self._end_video(journal)
        if one.entry is None:
            journal.add_failure(source.name, one.outcome.reason)
            self._end_video(journal)
            return
        if source.frame is not None:
            self._add_frame(source, one.drawn)
        for name, content in one.files:
            saving.write(self.outputs, self.out / name, content)
        journal.add(one.entry, [name for name, _ in one.files])
        self._best, self._computed = max(self._best, one.best), self._computed + 1
        if one.drawn is not None:
            self._seen.update(each["name"] for each in best_of(one.entry.image))

    def _add_frame(self, source: Source, drawn: Image.Image | None) -> None:
        if self._video is None:
            stack, writer = ExitStack(), None
            if drawn is not None:
                path = self.out / self._names[source.position]
                self.outputs.include([path])
                part = stack.enter_context(self.outputs.writing(path))
                writer = video.Writer(part, video.length_and_rate(self.sources[source.position])[1])
            self._video = source, stack, writer
        if (writer := self._video[2]) is not None and drawn is not None:
            writer.add(drawn, source.time or 0.0)

    def _end_video(self, journal: Journal) -> None:
        if self._video is not None:
            source, stack, writer = self._video
            with stack:
                if writer is not None:
                    writer.close()
            self._video = None
            files = [self._names[source.position]] if writer is not None else []
            journal.end_video(source.name, files)

    def _discard_video(self) -> None:
        if self._video is not None:
            _, stack, writer = self._video
            self._video = None
            with suppress(_DiscardError), stack:
                if writer is not None:
                    with suppress(Exception):
                        writer.close()
                raise _DiscardError  # so that the partial file is removed

    def _notes(self) -> Iterator[str]:
        stems = [Path(source).stem.casefold() for source in self.sources if not is_live(source)]
        if repeated := len(stems) - len({*stems}):
            have = counted(repeated, "image has", "images have")
            yield f"{have} the same name as an earlier image, so -2, -3 … were appended to their file names"
        if names := unwritable(sorted(self._seen)):
            yield (
                f"no installed font can draw {counted(len(names), 'class name')} ({listed(names)}), so the "
                "images show numbers; install a font such as fonts-noto-cjk, or set RANKLESS_FONT to a font "
                "file"
            )


class _DiscardError(Exception):
    """Raised to make the context manager of an output file remove the partial file."""
