"""A rank that tests start from their process server: what the package's own fork server makes of a fork."""

from __future__ import annotations

import os
import sys

from rankless.launch import worker

if __name__ == "__main__":
    del sys.path[0]
    os.environ["PYTHONSAFEPATH"] = "1"
    sys.argv[2] = str(os.getppid())  # it ends with the process server
    sys.exit(worker.main())
