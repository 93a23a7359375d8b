"""The command ``rankless``; it listens for requests to stop before anything slow is imported."""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys

from rankless.errors import INTERRUPTED, STOPPED

# Python looks for garbage after 700 new objects, and imports make half a million; at the end it walks through
# all of them once more. Together that was a sixth of what `predict` takes for one image.
_OBJECTS = 10_000
_LOCAL_RANK = re.compile(r"\0--local[-_]rank[=\0][0-9]+(?=\0|\Z)")


def main() -> int:
    """Run the command line; the exit code."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.disable)
    # Old launchers and their scripts add it, whatever they start; LOCAL_RANK has the same number.
    words = "".join(f"\0{word}" for word in sys.argv[1:])
    sys.argv[1:] = _LOCAL_RANK.sub("", words).split("\0")[1:]
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
    """A request that comes while libraries are still loading ends a training as a later one does."""
    print(f"stopped by {signal.Signals(number).name}; the run had not begun", file=sys.stderr, flush=True)
    os._exit(STOPPED)  # an exception could be caught by whatever is being imported


def _interrupt(*_: object) -> None:
    """Ctrl-C while libraries are still loading ends a command as a later one does, without a traceback."""
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
