"""``iobench run --free-data``: loaders hand on their first batches again and again."""

from __future__ import annotations

import os
from typing import Final

FREE_DATA: Final = "IOBENCH_RUN_FREE_DATA"
"""Environment of a run whose data are free: ``1``."""
NOT_FREE: Final = "free data: "
"""How it begins what a process did not see of a loader that loaded as usual."""
KEPT: Final = 4
"""Batches that a loader makes, and hands on again."""


def is_free() -> bool:
    """Return whether the loaders of this process are to hand on their first batches again."""
    return os.environ.get(FREE_DATA) == "1"
