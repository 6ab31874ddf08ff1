"""The folder of helpers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
