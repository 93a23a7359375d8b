"""Where helpers of this room's tests lie, so that loader processes can import them by name, too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
