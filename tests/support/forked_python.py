"""Do what ``python -u WORDS`` does, in a process that has PyTorch at once.

For programs that start interpreters of their own, as torchrun does: they start this, which waits for a
process of the tests' server.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.process_server import SERVER

if __name__ == "__main__":
    process = SERVER.start(
        sys.argv[2:], environment=os.environ, cwd=Path.cwd(), output=sys.stdout, errors=sys.stderr
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    if code < 0:  # a signal ended it
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
