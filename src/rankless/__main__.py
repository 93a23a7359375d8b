"""The entry point of the ``rankless`` command. It handles signals before it imports slow modules."""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys

from rankless.errors import INTERRUPTED, STOPPED, UserError, without_folder

# By default, Python collects garbage after every 700 new objects and once more at exit. Imports create half a
# million objects, so this took a sixth of the time of `predict` for one image.
_OBJECTS = 10_000
_LOCAL_RANK = re.compile(r"\0--local[-_]rank[=\0][0-9]+(?=\0|\Z)")


def main() -> int:
    """Run the command line and return the exit code."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.disable)
    # Old launchers add --local-rank to every command that they start; LOCAL_RANK has the same value.
    words = "".join(f"\0{word}" for word in sys.argv[1:])
    sys.argv[1:] = _LOCAL_RANK.sub("", words).split("\0")[1:]
    if problem := without_folder():  # before imports, because MKL ends the process there
        print(f"error: {problem}", file=sys.stderr)
        return UserError.exit_code
    if sys.argv[1:2] == ["train"]:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, _end)
    if listens := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    from rankless import cli
    from rankless.launch import fork_server

    fork_server.allow()
    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _end(number: int, _: object) -> None:
    """Exit on a signal during imports, with the exit code of a run that was stopped on request."""
    print(f"stopped by {signal.Signals(number).name} before the run started", file=sys.stderr, flush=True)
    os._exit(STOPPED)  # an exception could be caught by the module being imported


def _interrupt(*_: object) -> None:
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
