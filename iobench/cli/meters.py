"""Which meters of the machine a command reads, by the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

ENERGY: Final = "IOBENCH_ENERGY"
"""Environment: ``off`` reads no energy counters."""
MONITOR: Final = "IOBENCH_MONITOR"
"""Environment: ``off`` looks at no CPUs, memory, disks and links."""


def meters(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what ``RunConfig`` and ``ScriptRun`` take of both."""
    names = {"energy": ENERGY, "monitor": MONITOR}
    return {field: environ.get(name, "auto") for field, name in names.items()}
