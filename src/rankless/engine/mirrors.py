"""Copies of the run directory on machines that do not share a disk, each written by one rank.

On one machine, or on several machines that share a file system, only rank 0 writes a copy. Otherwise, the run
survives the loss of any machine, because every machine has a copy of the checkpoints, the journal and the
record of the environment.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rankless.engine.sinks.journal_sink import JournalCopy
from rankless.files import writing
from rankless.files.reading import read_bytes
from rankless.recipe.load import from_json, to_json
from rankless.recipe.schema import Recipe
from rankless.runs.directory import RunDirectory
from rankless.world.process_group import World


@dataclass
class Mirrors:
    """The copies of a run directory.

    Attributes:
        keepers: for each rank, the rank that writes the copy on its machine, or None if there is no copy.
        hosts: name of each rank's machine. Empty if only rank 0 writes a copy.
        problems: messages about machines without a copy.
        journal: this rank's copy of the open journal, or None if it writes no copy.
    """

    world: World
    keepers: Sequence[int | None]
    hosts: Sequence[str] = ()
    problems: Sequence[str] = ()
    journal: JournalCopy | None = field(default=None, compare=False)

    @property
    def writers(self) -> list[int]:
        """The ranks that write a copy, in increasing order, starting with rank 0."""
        return [rank for rank, keeper in enumerate(self.keepers) if rank == keeper]

    @property
    def several(self) -> bool:
        """Whether there is more than one copy."""
        return len(self.writers) > 1

    @property
    def is_writer(self) -> bool:
        return self.world.is_first or self.keepers[self.world.rank] == self.world.rank

    def name(self, rank: int) -> str:
        host = self.hosts[rank] if self.hosts else ""
        return host if self.hosts.count(host) == 1 else f"rank {rank} on {host}"

    def recipe(self, own: Recipe) -> Recipe:
        """Return the recipe of rank 0, which all copies contain. All ranks must call this."""
        return from_json(self.world.broadcast(to_json(own))) if self.several else own

    def label(self, rank: int, text: str) -> str:
        """Prefix a message from ``rank`` with the name of the rank's machine if there are several copies."""
        return f"{self.name(rank)}: {text}" if self.several else text

    def send_journal(self) -> None:
        """Send new lines of the journal to the other copies. All ranks must call this."""
        if self.several:
            lines = self.world.broadcast(self.journal.take() if self.journal else b"")
            if self.journal and not self.world.is_first:
                self.journal.append(lines)

    def send_best(self, path: Path, soundness: Sequence[int]) -> list[str]:
        """Replace the file at ``path`` in all copies with that of the rank whose ``soundness`` is greatest.

        See :meth:`send_file`.
        """
        if not self.several:
            return []
        every = self.world.all_gather(list(soundness))
        return self.send_file(path, max(self.writers, key=lambda rank: every[rank]))

    def send_file(self, path: Path, source: int) -> list[str]:
        """Replace the file at ``path`` in all copies with the file of rank ``source``.

        All ranks must call this, with the path in their own run directory. If the new file does not continue
        the replaced one, the replaced file is kept under another name, and a message about it is returned.
        """
        if not self.several:
            return []
        content, mine = b"", ""
        if self.is_writer:
            with suppress(OSError):
                content = read_bytes(path)
                mine = hashlib.sha256(content).hexdigest()
        digests = self.world.all_gather(mine)
        if not digests[source] or all(digests[rank] == digests[source] for rank in self.writers):
            return []
        sent: bytes = self.world.broadcast(content if self.world.rank == source else None, source)
        if mine == digests[source] or not self.is_writer:
            return []
        said = []
        # A record is a JSON list, which ends with a bracket.
        if os.path.lexists(path) and not (mine and sent.startswith(content.rstrip(b"\n]"))):
            kept = writing.keep_beside(path)
            said.append(
                f"{path} was replaced with the copy from {self.name(source)}; the original file is now {kept}"
            )
        with writing.beside(path) as part:
            part.write_bytes(sent)
        return said

    def gather_messages(self, mine: Sequence[str]) -> list[str]:
        """Return the messages of all ranks, labeled with their machines. All ranks must call this."""
        gathered = self.world.all_gather(list(mine)) if self.several else [list(mine)]
        return [self.label(rank, text) for rank, texts in enumerate(gathered) for text in texts]


def alone(world: World) -> Mirrors:
    """Return the mirrors of a run with a single copy, written by rank 0."""
    return Mirrors(world, [0] * world.size)


def find(world: World, run: RunDirectory) -> Mirrors:
    """Determine which ranks write a copy. All ranks must call this with their own run directory.

    The first rank on every machine creates a file with a random name in its directory. No rank has looked for
    that name before, so the result cannot come from the cache of a network file system.
    """
    # The first rank on each machine writes its copy. Rank 0 writes one in any case.
    firsts = world.all_gather(world.is_first or world.local_rank == 0) if world.size > 1 else [True]
    if sum(firsts) == 1:
        return alone(world)
    with ExitStack() as stack:
        name, problem = None, None
        if firsts[world.rank]:
            try:
                run.path.mkdir(parents=True, exist_ok=True)
                name = stack.enter_context(writing.token(run.path)).name
            except OSError as error:
                problem = f"{run.path} cannot be written ({error})"
        known = world.all_gather([name, os.uname().nodename, problem])
        seen = [rank for rank, (name, _, _) in enumerate(known) if name and (run.path / name).exists()]
        views = world.all_gather(seen)  # after this, the files are no longer needed
    keepers: list[int | None] = []
    for rank, ranks in enumerate(views):
        lowest = 0 if rank == 0 else min(ranks, default=None)
        keepers.append(keepers[lowest] if lowest is not None and lowest < rank else lowest)
    mirrors = Mirrors(world, keepers, hosts=[host for _, host, _ in known])
    mirrors.problems = [
        f"{mirrors.name(rank)} has no copy of the run: {problem}"
        for rank, (_, _, problem) in enumerate(known)
        if problem and keepers[rank] is None
    ]
    return mirrors
