"""The browser of the tests of pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "support"))

from browser import browser, open_page

__all__ = ["browser", "open_page"]
