"""The command ``rankless``; it listens for SIGTERM before anything slow is imported."""

from __future__ import annotations

import os
import signal
import sys

from rankless.errors import STOPPED


def main() -> int:
    """Run the command line; the exit code."""
    if sys.argv[1:2] == ["train"]:
        signal.signal(signal.SIGTERM, _end)
    from rankless import cli
    from rankless.launch import fork_server

    fork_server.allow()
    return cli.main()


def _end(number: int, _: object) -> None:
    """A SIGTERM that comes while libraries are still loading ends a training as a later one does."""
    print("stopped by SIGTERM; the run had not begun", file=sys.stderr, flush=True)
    os._exit(STOPPED)  # an exception could be caught by whatever is being imported


if __name__ == "__main__":
    sys.exit(main())
