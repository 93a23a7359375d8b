"""Output files of commands. A command overwrites only its own earlier outputs unless forced.

``.rankless-outputs`` lists the outputs in a folder, each with its command, name, size and digest. The same
command may replace a file on the list that has not changed since. Everything else belongs to the user:
files from other programs, links, and outputs that have changed.

Every output is written to a temporary file in the same folder and renamed, so a link is replaced and never
followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from pathlib import Path

from rankless.errors import UserError, one_of
from rankless.extras import needed
from rankless.files.writing import beside, put_aside, sweep, write_atomically

LIST = ".rankless-outputs"
_HEADER = '{"format": "rankless outputs 1"}'
_DIGESTS = 2  # per file, because a process may be killed between listing a new file and renaming it
_File = tuple[int, str]  # size and digest

FIRST = 20
"""Maximum number of existing files that a message lists."""
CHARTS = (".png", ".jpg", ".jpeg", ".webp", ".svg", ".pdf")
SHEETS = (".html", ".png", ".jpg", ".jpeg")


class Outputs:
    """The output files of a command, all checked before the first one is written.

    Args:
        files: all output files, folder by folder.
        verb: the command (such as ``data show``) whose earlier outputs may be replaced, if any.
        force: whether to replace other files and links as well, but never a folder, a device, or an input.
        option: the option that names the files, for messages.
    """

    def __init__(
        self, files: Sequence[Path], *, verb: str | None, force: bool = False, option: str = "--out"
    ) -> None:
        self._verb, self._force, self._option = verb, force, option
        self._lists: dict[Path, OutputList] = {}
        self._before: dict[Path, os.stat_result | None] = {}
        self.forced: list[Path] = []  # the files that are replaced only because of ``force``
        self._written: list[Path] = []
        self.include(files)

    def include(self, files: Sequence[Path]) -> None:
        """Add more output files after checking them."""
        never: list[str] = []
        stay: list[str] = []
        for folder, within in groupby(files, lambda file: file.parent):
            first, *others = within
            if folder in self._lists:
                continue
            if reason := unusable(folder):
                where = (
                    f"{folder}: cannot be used as the output folder"
                    if others
                    else f"{first}: cannot be written"
                )
                never.append(f"{where}: {reason}")
                continue
            self._lists[folder] = OutputList(folder)
            if self._verb and not self._lists[folder].is_ours:
                never.append(f"{folder / LIST}: was not written by rankless; move it elsewhere")
        for file in files if not never else ():
            try:
                self._before[file] = there = os.lstat(file)
            except FileNotFoundError:
                self._before[file] = None
                continue
            except (OSError, ValueError) as error:
                never.append(f"{file}: cannot be written: {_reason(error)}")
                continue
            if reason := self._refusal(file, there):
                self.forced.append(file)
                is_replaceable = stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode)
                (stay if is_replaceable else never).append(f"{file}: {reason}")
        if never or (stay and not self._force):
            raise UserError(
                self._message([*never, *stay], "add --force to replace existing files" if stay else "")
            )

    def _refusal(self, file: Path, there: os.stat_result) -> str:
        """Return the reason for not replacing an existing file, or "" if this command wrote it."""
        if stat.S_ISDIR(there.st_mode):
            return "is a folder; expected the name of a file"
        if stat.S_ISLNK(there.st_mode):
            return "is a symbolic link"
        if not stat.S_ISREG(there.st_mode):
            return "is not a regular file"
        if self._verb is None:
            return "already exists"
        if self._lists[file.parent].has(self._verb, file):
            return ""
        return f"already exists and was not written by rankless {self._verb}, or has changed since"

    @property
    def replaced(self) -> list[Path]:
        """The outputs that already existed."""
        return [file for file, there in self._before.items() if there is not None]

    def refuse_inputs(self, inputs: Iterable[Path | str]) -> None:
        """Raise a UserError if an output would replace one of ``inputs``, even with ``force``.

        ``inputs`` is iterated only if an output already exists.
        """
        if not self.replaced:
            return
        read = {identity for each in inputs for identity in _identities(each)}
        if wrong := [file for file in self.replaced if _identities(file) & read]:
            raise UserError(self._message([f"{file}: is an input of this command" for file in wrong], ""))

    @contextmanager
    def writing(self, file: Path, *, durable: bool = True) -> Iterator[Path]:
        """Yield a temporary file that replaces ``file`` at the end and is removed on an error."""
        before, marks = self._before[file], self._lists[file.parent]
        try:
            marks.prepare(listed=self._verb is not None)
            with beside(file, replace=before is not None, durable=durable) as part:
                yield part
                if before is not None and not _unchanged(file, before):
                    raise FileExistsError(0, "")
                if self._verb is not None:
                    marks.add(self._verb, file.name, digest_of(part))
            if before is None:
                del self._before[file]
            if self._lists[file.parent].known:  # otherwise there is nothing to remove
                self._written.append(file)
        except FileExistsError:
            raise self._changed(file) from None
        except OSError as error:
            raise UserError(f"{file}: cannot be written: {_reason(error)}") from error

    def keep(self, files: Iterable[Path]) -> None:
        """Treat files from an earlier, interrupted call of the command as if this call had written them."""
        self._written.extend(files)

    def remove_others(self, folder: Path) -> list[Path]:
        """Remove unchanged outputs of earlier calls that this call did not write; return their paths."""
        if folder not in self._lists:  # this call wrote nothing there
            self._lists[folder] = OutputList(folder)
        written = {file.name for file in self._written if file.parent == folder}
        return self._lists[folder].remove_others(self._verb or "", written)

    @contextmanager
    def as_one(self, files: Sequence[Path]) -> Iterator[list[Path]]:
        """Yield temporary files for outputs that belong together; on an error, restore the old files.

        The first file is the one that readers open first. It is moved away first and renamed last, so that a
        killed process never leaves a mixture of old and new files that looks complete.
        """
        taken: dict[Path, Path] = {}
        try:
            with ExitStack() as stack:
                parts = [stack.enter_context(self.writing(file)) for file in files]
                yield parts
                for part in parts:  # here, so that little time passes between the renames
                    with part.open("rb") as written:
                        os.fsync(written.fileno())
                for file in files:
                    if (before := self._before[file]) is not None:
                        if not _unchanged(file, before):
                            raise self._changed(file)
                        taken[file] = put_aside(file)
        except BaseException:
            for file, aside in taken.items():
                with suppress(OSError):
                    aside.replace(file)
            raise
        for aside in taken.values():
            aside.unlink(missing_ok=True)

    def _message(self, problems: Sequence[str], force: str) -> list[str]:
        more = f"… and {len(problems) - FIRST:,} more; " if len(problems) > FIRST else ""
        remedy = f"use another {self._option}" + (f", or {force}" if force else "")
        if len(problems) == 1:
            return [f"{problems[0]}; {remedy}"]
        return [*problems[:FIRST], f"{more}nothing was changed; {remedy}"]

    def _changed(self, file: Path) -> UserError:
        return UserError(
            f"{file}: was created or changed while this command ran, so it was not replaced; use "
            f"another {self._option}"
        )


def drawing(out: Path, verb: str, endings: Sequence[str] = CHARTS, *, force: bool = False) -> Outputs:
    """Return the output of a chart or contact sheet; its extension must be one of ``endings``."""
    if out.suffix.lower() not in endings:
        raise UserError(f"--out {out}: expected a name that ends in {one_of(endings)}")
    if endings is CHARTS:
        needed("matplotlib", "plot", f"--out {out}")
    return Outputs([out], verb=verb, force=force)


def refuse_filled(folder: Path) -> None:
    """Raise a UserError unless ``folder`` is new or empty, to keep the results of commands apart."""
    try:
        is_empty = not any(folder.iterdir())
    except FileNotFoundError:
        return
    if not is_empty:
        what = "earlier results" if (folder / LIST).exists() else "other files"
        raise UserError(
            f"--out {folder}: contains {what}; expected a new or empty folder; use another folder, omit "
            "--out to use a numbered folder, or add --force to replace earlier results"
        )


def unusable(folder: Path) -> str:
    """Return the reason why ``folder`` cannot be created or written to, or an empty string."""
    while True:
        try:
            there = folder.stat()
            break
        except (FileNotFoundError, NotADirectoryError):
            if folder.is_symlink():
                return f"{folder} is a broken link to {folder.readlink()}"
            folder = folder.parent
        except (OSError, ValueError) as error:
            return _reason(error)
    if not stat.S_ISDIR(there.st_mode):
        return f"{folder} is a file"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable"


def _unchanged(file: Path, before: os.stat_result) -> bool:
    try:
        now = os.lstat(file)
    except FileNotFoundError:
        return True
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return all(getattr(now, field) == getattr(before, field) for field in fields)


def _identities(file: Path | str) -> set[tuple[int, int]]:
    """Return the device and inode of a file and, if it is a link, of its target."""
    identities = set()
    for read_state in (os.lstat, os.stat):
        with suppress(OSError, ValueError):
            state = read_state(file)
            identities.add((state.st_dev, state.st_ino))
    return identities


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class OutputList:
    """The list of outputs in a folder; ``is_ours`` is False if another program wrote it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LIST
        self.known: dict[tuple[str, str], list[_File]] = {}
        self.is_ours, self._is_ready, self._is_compact = True, False, False
        try:
            with open(_open(self.path), "rb") as file:
                lines = file.read().decode("utf-8", "replace").split("\n")
        except FileNotFoundError:
            return
        except OSError:
            self.is_ours = False
            return
        self.is_ours = lines[0] == _HEADER
        for line in lines[1:]:
            with suppress(ValueError, TypeError, RecursionError):  # a line cut off by a kill or a full disk
                verb, name, size, digest = json.loads(line)
                self._remember((str(verb), str(name)), (int(size), str(digest)))
        few = len(lines) < 2 * sum(map(len, self.known.values())) + 100
        self._is_compact = few and lines[-1] == "" and os.lstat(self.path).st_nlink == 1

    def has(self, verb: str, file: Path) -> bool:
        """Check whether the command ``verb`` wrote ``file`` and the file has not changed since."""
        known = self.known.get((verb, file.name), [])
        try:
            return os.lstat(file).st_size in [size for size, _ in known] and digest_of(file) in known
        except OSError:
            return False

    def prepare(self, *, listed: bool) -> None:
        """Create the folder, and the list if ``listed``, unless an earlier call has done so."""
        if self._is_ready:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        if listed and not self._is_compact:
            rows = [_row(key, file) for key, files in self.known.items() for file in files]
            write_atomically(self.path, "\n".join([_HEADER, *rows, ""]))
        self._is_ready = True

    def add(self, verb: str, name: str, file: _File) -> None:
        """Add an output to the list, before its file gets its final name."""
        key = verb, name
        if key in self.known:
            if file in self.known[key]:
                return
            self._remember(key, file)
        # A new name is not kept in memory, because a command may write a million files. It is appended at
        # once, so that the list is complete even if the command is killed.
        opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(opened, f"{_row(key, file)}\n".encode())
        finally:
            os.close(opened)

    def remove_others(self, verb: str, written: set[str]) -> list[Path]:
        """Remove unchanged outputs of ``verb`` whose names are not in ``written``; return their paths."""
        names = sorted(name for known, name in self.known if known == verb and name not in written)
        removed = []
        for file in (self.folder / name for name in names if Path(name).name == name):
            if self.has(verb, file):
                with suppress(OSError):
                    file.unlink()
                    removed.append(file)
        return removed

    def _remember(self, key: tuple[str, str], file: _File) -> None:
        self.known[key] = [*self.known.get(key, []), file][-_DIGESTS:]


def _row(key: tuple[str, str], file: _File) -> str:
    return json.dumps([*key, *file])


def digest_of(path: Path) -> _File:
    """Return the size and digest of a regular file."""
    with open(_open(path), "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        return file.tell(), digest


def _open(path: Path) -> int:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(0, "is not a regular file")
