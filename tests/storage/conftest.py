"""Puts the modules that the tests of this folder share on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))
