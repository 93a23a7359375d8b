"""``python -m rankless``: the command line."""

import sys

from rankless.cli import main

if __name__ == "__main__":
    sys.exit(main())
