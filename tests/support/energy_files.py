"""What counters of energy showed, written beside a run's spans as its reader leaves it there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MS = 1_000_000


def source(name: str = "gpu:0", **more: Any) -> dict[str, Any]:
    """Return how a counter describes itself; its kind is the first word of its name."""
    about = {"kind": name.partition(":")[0], "title": "NVIDIA A100", "by": "NVML"}
    return {"name": name, **about, "period_ns": 0, "wraps_uj": None, "estimated": False, **more}


def write_energy(
    run: Path,
    *rows: Any,
    sources: Any = None,
    unreadable: Any = (),
    host: str = "here",
    boot_id: str = "boot",
    end: bytes = b"",
) -> Path:
    """Write one machine's file: a line for each of ``rows``, and ``end`` as it is."""
    head = {
        "version": 1, "host": host, "boot_id": boot_id, "period_ns": 100 * MS, "pid": 1,
        "sources": [source()] if sources is None else sources,
        "unreadable": [{"kind": kind, "reason": reason} for kind, reason in unreadable],
    }  # fmt: skip
    path = run / "energy" / f"{host}-{boot_id[:8]}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes("".join(f"{json.dumps(row)}\n" for row in (head, *rows)).encode() + end)
    return path
