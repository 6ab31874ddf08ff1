"""Puts the small stores where tests can import them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "loaders" / "support"))
