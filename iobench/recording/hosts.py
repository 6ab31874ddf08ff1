"""Which machine this is, and which boot of it."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["boot_id", "host_name"]


def host_name() -> str:
    """Return the name of this machine on the network, as span files are named after it."""
    return platform.node() or "unknown"


def boot_id() -> str:
    """Return what tells one boot of this machine from another; ``""`` where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
