"""The stand-in of an anemoi store is made by a module that benchmarks import, too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
