"""What a command may write over: nothing but its own earlier work, unless it is told to.

A folder that outputs went to holds a list of them, ``.rankless-outputs``: of each its command, name, size and
digest. What is on the list and still as it was written may be replaced by the same command. Whatever else is
there belongs to the user: another program's file, a link, and an output that was changed since.

Every output is written beside its place and renamed, so a link is replaced and never written through.
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

from rankless.errors import UserError
from rankless.files.writing import beside, put_aside, sweep, write_atomically

LIST = ".rankless-outputs"
FIRST = 20
"""So many files that stay are named."""
_HEADER = '{"format": "rankless outputs 1"}'
_KEPT = 2  # digests of a file: a process may die between listing a new one and putting it into its place
_File = tuple[int, str]  # size and digest


class Outputs:
    """The files that a command is about to write: all checked first, then written one by one.

    Args:
        files: every file that will be written, folder by folder.
        verb: the command, as in ``data show``; what it wrote before may be replaced. None: replace nothing.
        force: replace other files and links, too; never a folder, a device, or an input.
        option: what named the place.

    Raises:
        UserError: files that are there and stay, all of them, or a place that cannot be written to. Nothing
            was changed then.
    """

    def __init__(
        self, files: Sequence[Path], *, verb: str | None, force: bool = False, option: str = "--out"
    ) -> None:
        self._verb, self._option = verb, option
        self._lists: dict[Path, _List] = {}
        self._found: dict[Path, os.stat_result | None] = {}
        self._forced: list[Path] = []
        self._written: list[Path] = []
        never: list[str] = []
        stay: list[str] = []
        for folder, within in groupby(files, lambda file: file.parent):
            first, *others = within
            if reason := _no_place(folder):
                where = (
                    f"{folder}: cannot be the output folder" if others else f"{first}: it cannot be written"
                )
                never.append(f"{option} {where}: {reason}")
                continue
            self._lists[folder] = _List(folder)
            if verb and not self._lists[folder].is_ours:
                never.append(f"{folder / LIST}: is not a list that rankless wrote; move it away")
        for file in files if not never else ():
            try:
                self._found[file] = there = os.lstat(file)
            except FileNotFoundError:
                self._found[file] = None
                continue
            except (OSError, ValueError) as error:
                never.append(f"{option} {file}: it cannot be written: {_reason(error)}")
                continue
            if reason := self._stays(file, there):
                self._forced.append(file)
                (never if _is_fixed(there) else stay).append(f"{option} {file}: {reason}")
        if never or (stay and not force):
            raise UserError(_told([*never, *stay], "--force to replace what is there" if stay else ""))

    def _stays(self, file: Path, there: os.stat_result) -> str:
        """Why an existing file is not replaced; empty if it is our own."""
        if stat.S_ISDIR(there.st_mode):
            return "is a folder; expected the name of a file"
        if stat.S_ISLNK(there.st_mode):
            return "is a symbolic link"
        if not stat.S_ISREG(there.st_mode):
            return "is no regular file"
        if self._verb is None:
            return "is there already"
        if self._lists[file.parent].has(self._verb, file):
            return ""
        return f"is there already, and rankless {self._verb} did not write it or it was changed since"

    @property
    def replaced(self) -> list[Path]:
        """Those of the files that were there."""
        return [file for file, there in self._found.items() if there is not None]

    @property
    def forced(self) -> list[Path]:
        """Those of them that this command did not write, and that are replaced because it was asked for."""
        return self._forced

    def refuse_inputs(self, inputs: Iterable[Path | str]) -> None:
        """Raise where an output would replace one of ``inputs``, under whatever name; asked for or not.

        Args:
            inputs: files that the command reads; looked at only if one of the outputs is there already.

        Raises:
            UserError: there are such outputs, all of them.
        """
        if not self.replaced:
            return
        read = {identity for each in inputs for identity in _identities(each)}
        if wrong := [file for file in self.replaced if _identities(file) & read]:
            raise UserError(
                _told([f"{self._option} {file}: is an input of this command" for file in wrong], "")
            )

    @contextmanager
    def writing(self, file: Path, *, durable: bool = True) -> Iterator[Path]:
        """A file to write to; it takes the place of ``file`` at the end, and goes on an error.

        Args:
            file: one of the outputs.
            durable: wait until the content is on the disk.

        Raises:
            UserError: it cannot be written, or somebody put another file there since the check.
        """
        before, marks = self._found[file], self._lists[file.parent]
        try:
            marks.prepare(listed=self._verb is not None)
            with beside(file, replace=before is not None, durable=durable) as part:
                yield part
                if before is not None and not _unchanged(file, before):
                    raise FileExistsError(0, "")
                if self._verb is not None:
                    marks.add(self._verb, file.name, _file(part))
            self._written.append(file)
        except FileExistsError:
            raise self._changed(file) from None
        except OSError as error:
            raise UserError(f"{self._option} {file}: it cannot be written: {_reason(error)}") from error

    def remove_others(self, folder: Path) -> list[Path]:
        """Remove what this command wrote into ``folder`` before, and neither replaced nor needs now.

        What was changed since stays, and so does whatever is not on the folder's list.

        Args:
            folder: of some of the outputs, all of which have been written.

        Returns:
            What was removed.
        """
        return self._lists[folder].remove_others(self._verb or "", {file.name for file in self._written})

    @contextmanager
    def as_one(self, files: Sequence[Path]) -> Iterator[list[Path]]:
        """Files to write to that belong together; all that were there come back on an error.

        The first is the one that readers begin with. It is taken away before the others are replaced and
        comes last, so that a process that is killed in between leaves no old file beside new ones that
        anybody could take for a set.

        Args:
            files: some of the outputs.

        Raises:
            UserError: see :meth:`writing`.
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
                    if (before := self._found[file]) is not None:
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

    def _changed(self, file: Path) -> UserError:
        return UserError(
            f"{self._option} {file}: was made or changed while this command ran, and stays as it is; "
            "give another name"
        )


class _List:
    """The outputs that a folder holds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LIST
        self.known: dict[tuple[str, str], list[_File]] = {}
        self.is_ours, self._is_ready, self._is_tidy = True, False, False
        try:
            content = _content(self.path)
        except FileNotFoundError:
            return
        except OSError:
            self.is_ours = False
            return
        lines = content.decode("utf-8", "replace").split("\n")
        self.is_ours = lines[0] == _HEADER
        for line in lines[1:]:
            with suppress(ValueError, TypeError, RecursionError):  # one that a kill or a full disk cut
                verb, name, size, digest = json.loads(line)
                self._know((str(verb), str(name)), (int(size), str(digest)))
        few = len(lines) < 2 * sum(map(len, self.known.values())) + 100
        self._is_tidy = few and lines[-1] == "" and os.lstat(self.path).st_nlink == 1

    def has(self, verb: str, file: Path) -> bool:
        """Whether ``file`` was written by ``verb``, and not changed since."""
        known = self.known.get((verb, file.name), [])
        try:
            return os.lstat(file).st_size in [size for size, _ in known] and _file(file) in known
        except OSError:
            return False

    def prepare(self, *, listed: bool) -> None:
        """Make the folder, and the list if need be; once."""
        if self._is_ready:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        sweep(self.folder)
        if listed and not self._is_tidy:
            rows = [_row(key, file) for key, files in self.known.items() for file in files]
            write_atomically(self.path, "\n".join([_HEADER, *rows, ""]))
        self._is_ready = True

    def add(self, verb: str, name: str, file: _File) -> None:
        """List an output that is about to get its name."""
        key = verb, name
        if file in self.known.get(key, []):
            return
        self._know(key, file)
        # A line at a time: a command that is killed has listed what it wrote.
        opened = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(opened, f"{_row(key, file)}\n".encode())
        finally:
            os.close(opened)

    def remove_others(self, verb: str, kept: set[str]) -> list[Path]:
        """Remove the outputs of ``verb`` that are as they were written, but those called as in ``kept``."""
        names = sorted(name for known, name in self.known if known == verb and name not in kept)
        removed = []
        for file in (self.folder / name for name in names if Path(name).name == name):
            if self.has(verb, file):
                with suppress(OSError):
                    file.unlink()
                    removed.append(file)
        return removed

    def _know(self, key: tuple[str, str], file: _File) -> None:
        self.known[key] = [*self.known.get(key, []), file][-_KEPT:]


def _row(key: tuple[str, str], file: _File) -> str:
    return json.dumps([*key, *file])


def _file(path: Path) -> _File:
    content = hashlib.blake2b(digest_size=16)
    size = 0
    with open(_open(path), "rb") as file:
        while block := file.read(1 << 20):
            content.update(block)
            size += len(block)
    return size, content.hexdigest()


def _content(path: Path) -> bytes:
    with open(_open(path), "rb") as file:
        return file.read()


def _open(path: Path) -> int:
    """A regular file, to read; a pipe is not waited for."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise OSError(0, "is no regular file")


def _no_place(folder: Path) -> str:
    """Why nothing can be written to ``folder``, which need not be there; empty if nothing is known."""
    while True:
        try:
            there = folder.stat()
            break
        except (FileNotFoundError, NotADirectoryError):
            if folder.is_symlink():
                return "it is a link to nothing"
            folder = folder.parent
        except (OSError, ValueError) as error:
            return _reason(error)
    if not stat.S_ISDIR(there.st_mode):
        return f"{folder} is a file"
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written to"


def _is_fixed(there: os.stat_result) -> bool:
    """Whether it stays even when it is to be replaced."""
    return not (stat.S_ISREG(there.st_mode) or stat.S_ISLNK(there.st_mode))


def _unchanged(file: Path, before: os.stat_result) -> bool:
    try:
        now = os.lstat(file)
    except FileNotFoundError:
        return True
    fields = ("st_dev", "st_ino", "st_size", "st_mtime_ns")
    return all(getattr(now, field) == getattr(before, field) for field in fields)


def _identities(file: Path | str) -> set[tuple[int, int]]:
    """Of a file and, if it is a link, of what it leads to; none if there is nothing."""
    found = set()
    for look in (os.lstat, os.stat):
        with suppress(OSError, ValueError):
            state = look(file)
            found.add((state.st_dev, state.st_ino))
    return found


def _told(faults: Sequence[str], force: str) -> list[str]:
    """The first few of the faults, how many more there are, and what to do."""
    more = f"… and {len(faults) - FIRST:,} more; " if len(faults) > FIRST else ""
    remedy = "give another name or folder" + (f", or {force}" if force else "")
    if len(faults) == 1:
        return [f"{faults[0]}; {remedy}"]
    return [*faults[:FIRST], f"{more}nothing was changed; {remedy}"]


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
