"""Which machine this is, and which boot of it."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["boot_id", "cpu_model", "host_name"]


def host_name() -> str:
    """Return the name of this machine on the network, as span files are named after it."""
    return platform.node() or "unknown"


def cpu_model() -> str:
    """Return what the processors of this machine are called; ``""`` where nothing tells."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor()
    told = dict(
        line.split(":", 1) for line in text.partition("\n\n")[0].splitlines() if ":" in line
    )
    names = {name.strip(): value.strip() for name, value in told.items()}
    # Arm's kernels tell numbers alone.
    numbers = " ".join(names.get(f"CPU {what}", "") for what in ("implementer", "part"))
    return names.get("model name") or numbers.strip() or platform.machine()


def boot_id() -> str:
    """Return what tells one boot of this machine from another; ``""`` where nothing does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
